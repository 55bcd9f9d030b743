"""The CUDA of the schedules: files under `kernels/`, in sections, with holes that Python fills.

A section begins behind a line `//@ name` and ends before the empty line above the next; lines that begin with `//#` are
remarks on the template itself. A hole is a word such as `@width`; `unrolled for` and `rolled for` become pragmas.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

_FOLDER = Path(__file__).parent / "kernels"
_REMARK = re.compile(r"^//#.*\n", re.MULTILINE)
_HEAD = re.compile(r"^//@ (\w+)\n", re.MULTILINE)


@cache
def sections(name: str) -> Mapping[str, str]:
    """The sections of a template by their names."""
    text = _REMARK.sub("", (_FOLDER / f"{name}.cu").read_text(encoding="utf-8"))
    _, *found = _HEAD.split(f"{text}\n")
    return MappingProxyType({key: body[:-1] for key, body in zip(found[::2], found[1::2], strict=True)})
