"""`load`: kernel files on disk become an operation."""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.runtime.files import Source, find_files, read_files, read_tuned
from tilewright.runtime.operation import Operation, Reference


def load(
    source: Source | Iterable[Source],
    *,
    reference: Reference | None = None,
    strict: bool = False,
    allow_library: bool = True,
) -> Operation:
    """An operation from a kernel file, an ordered list of files, or a folder (its `*.cu` in the order of their names).

    The first file that takes a call runs; where none does, `reference` runs with the same arguments and a warning says
    so once, or `NoKernelApplies` is raised if there is none or `strict` is set. `allow_library=False` refuses files
    with library steps. Nothing is built before the first call or `prepare`.
    """
    paths = find_files(source)
    return Operation(read_files(paths, allow_library), read_tuned(paths), reference, strict)
