"""A cache of parsed PTX programs by build."""

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
atexit.register(_programs.clear)  # while ctypes can still free them


def program_of(key: str, ptx: str) -> Program:
    """The program of a build; `key` is the build's content address. Raises `PtxError`."""
    # Imported here: GPU runs must not need the compiled core.
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
    """Why the compiled core cannot be used, with a remedy; None where it can."""
    from tilewright.ptx.native import CoreMissing, core

    try:
        core()
    except (CoreMissing, OSError) as error:
        return str(error)
    return None


def core_width() -> str:
    """The instruction set that the core uses on this processor."""
    from tilewright.ptx.native import vector_width

    return vector_width()
