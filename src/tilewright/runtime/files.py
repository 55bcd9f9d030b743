"""`load`: an operation from kernel files on disk and their tuned choices."""

from __future__ import annotations

import os
import types
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

from tilewright.kernel_file import KernelFile, Op, TunedChoices, parse
from tilewright.records import REFERENCE_FUNCTION, changed_beside_record, read_reference
from tilewright.runtime.backward import Backward
from tilewright.runtime.errors import ChangedKernelFile, LoadError
from tilewright.runtime.fallback import Reference, TextReference
from tilewright.runtime.operation import Operation
from tilewright.runtime.returned import OutputSpec

Source = str | os.PathLike[str]


def load(
    source: Source | Iterable[Source],
    *,
    reference: Reference | None = None,
    strict: bool = False,
    allow_library: bool = True,
) -> Operation:
    """An operation from a kernel file, an ordered list of files, or a folder (its `*.cu` in the order of their names).

    The first file that takes a call runs; where none does, `reference` runs with the same arguments and a warning says
    so once, or `NoKernelApplies` is raised if there is none or `strict` is set. A kernel made from words has its
    reference beside it. `allow_library=False` refuses files with library steps. A file that was changed after it was
    verified is loaded with a warning. Nothing is built before the first call or `prepare`.
    """
    paths = find_files(source)
    files = read_files(paths, allow_library)
    if reference is None and (text := read_reference(paths[0], files[0].identity)):
        names = tuple(parameter.name for parameter in files[0].plan.op.parameters)
        reference = TextReference(text, REFERENCE_FUNCTION, names)
    for said in filter(None, map(changed_beside_record, paths)):
        warnings.warn(said, ChangedKernelFile, stacklevel=2)
    if isinstance(reference, types.FunctionType):
        _check_order(reference, files[0].plan.op)
    return Operation(files, read_tuned(paths), reference, strict)


def _check_order(reference: types.FunctionType, op: Op) -> None:
    """Refuse a reference whose parameters have the op's names in another order: it is called by position."""
    own = reference.__code__.co_varnames[: reference.__code__.co_argcount]
    names = tuple(parameter.name for parameter in op.parameters)
    if own != names and set(own) == set(names):
        raise LoadError(
            f"the reference takes {', '.join(own)}, and {op.name} takes {', '.join(names)}; "
            "a reference is called by position: give it the same order"
        )


def load_again(
    names: tuple[str, ...],
    identities: tuple[str, ...],
    reference: Reference | None,
    strict: bool,
    returned: OutputSpec | None,
    backward: Backward | None,
) -> Operation:
    """Unpickle an operation: the same files, which must not have changed."""
    paths = [Path(name) for name in names]
    files = read_files(paths, allow_library=True)
    for file, identity in zip(files, identities, strict=True):
        if file.identity != identity:
            raise LoadError(
                f"{file.name} is not the file it was when the operation was pickled: its digest was "
                f"{identity[:10]} and is {file.identity[:10]}; load it anew, or put the old file back"
            )
    return Operation(files, read_tuned(paths), reference, strict, returned, backward)


def find_files(source: Source | Iterable[Source]) -> tuple[Path, ...]:
    """The files an operation is made of, in order: as listed, or a folder's `*.cu` by name."""
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        if not path.is_dir():
            return (path,)
        found = tuple(sorted(path.glob("*.cu")))
        if not found:
            raise LoadError(f"{path} has no *.cu file; name a kernel file or a folder of them")
        return found
    try:
        listed = tuple(Path(item) for item in source)
    except TypeError:
        raise LoadError(f"{source!r} is no path; give a path, a list of paths, or a folder") from None
    if not listed:
        raise LoadError("no kernel file was named; give a path, a list of paths, or a folder")
    return listed


def read_files(paths: Sequence[Path], allow_library: bool) -> tuple[KernelFile, ...]:
    """Parse every file; raises `LoadError` for what cannot be read and `KernelFileError` for what is wrong in one."""
    return tuple(parse(_text(path), name=str(path), allow_library=allow_library) for path in paths)


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise LoadError(f"there is no file {path}") from None
    except IsADirectoryError:
        raise LoadError(f"{path} is a folder; load a folder by itself, or list its files") from None
    except UnicodeDecodeError as error:
        raise LoadError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start}); save it as UTF-8") from None
    except OSError as error:
        raise LoadError(f"{path} cannot be read: {error.strerror}") from error


def read_tuned(paths: Sequence[Path]) -> TunedChoices:
    """The tuned choices recorded for all files."""
    tuned = TunedChoices()
    for path in paths:
        tuned = tuned.joined(TunedChoices.load(path))
    return tuned
