"""Programs by build: reading PTX again for every call would cost more than many calls."""

from __future__ import annotations

import atexit
from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilewright.ptx.program import Program

__all__ = ["Program", "core_problem", "core_width", "program_of"]

_MOST_PROGRAMS = 64

_programs: OrderedDict[str, Program] = OrderedDict()
_lock = Lock()
atexit.register(_programs.clear)  # while the interpreter that frees them is still there


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


def core_problem() -> str | None:
    """Why the interpreter cannot be used and what to do about it; None where it can."""
    from tilewright.ptx.native import CoreMissing, core

    try:
        core()
    except (CoreMissing, OSError) as error:
        return str(error)
    return None


def core_width() -> str:
    """Which of the interpreter's codes this processor gets."""
    from tilewright.ptx.native import vector_width

    return vector_width()
