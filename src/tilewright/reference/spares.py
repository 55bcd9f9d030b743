"""Children that import torch ahead of the reference they will hold: a command that makes a kernel needs several.

Nothing is started ahead unless a program has said that it wants to: a test, or a process of somebody's own, may have
better things to do with its cores.
"""

from __future__ import annotations

import os
import threading

from tilewright.child.process import SupervisedChild

Key = tuple[tuple[tuple[str, str], ...], int]  # environment, most bytes

_FEWEST_CORES = 4

_lock = threading.Lock()
_spares: dict[Key, list[SupervisedChild]] = {}
_wanted = False


def want_spares() -> None:
    """For a program whose whole work is to make kernels."""
    global _wanted
    _wanted = True


def spares_are_wanted() -> bool:
    """Where cores are few, importing torch several times over would only delay the first."""
    return _wanted and len(os.sched_getaffinity(0)) >= _FEWEST_CORES


def keep_spare(key: Key, child: SupervisedChild) -> None:
    with _lock:
        _spares.setdefault(key, []).append(child)


def take_spare(key: Key) -> SupervisedChild | None:
    """A child of that kind that lives; it is the caller's now."""
    with _lock:
        kept = _spares.get(key, [])
        while kept:
            child = kept.pop()
            if child.alive:
                return child
            child.end()
    return None


def end_spares() -> None:
    """End those that nobody has taken."""
    with _lock:
        for kept in _spares.values():
            while kept:
                kept.pop().end()
