"""Programs by build: reading PTX again for every call would cost more than many calls."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilewright.ptx.program import Program

__all__ = ["Program", "program_of"]

_MOST_PROGRAMS = 64

_programs: OrderedDict[str, Program] = OrderedDict()
_lock = Lock()


def program_of(key: str, ptx: str) -> Program:
    """The program of a build; `key` is the build's content address. Raises `PtxError`."""
    # Here, so that what runs on a GPU never asks whether the interpreter was compiled.
    from tilewright.ptx.program import load_program

    with _lock:
        known = _programs.get(key)
        if known is None:
            known = _programs[key] = load_program(ptx)
        _programs.move_to_end(key)
        while len(_programs) > _MOST_PROGRAMS:
            _programs.popitem(last=False)
        return known
