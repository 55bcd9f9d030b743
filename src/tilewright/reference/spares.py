"""Spare children that import torch ahead of the references they will hold.

None are started unless a program asks for them with `want_spares`.
"""

from __future__ import annotations

import os
import threading

from tilewright.child.process import SupervisedChild

Key = tuple[tuple[tuple[str, str], ...], int]  # (environment, memory limit)

_FEWEST_CORES = 4

_lock = threading.Lock()
_spares: dict[Key, list[SupervisedChild]] = {}
_wanted = False


def want_spares() -> None:
    """Enable spare children, for a program whose only work is to make kernels."""
    global _wanted
    _wanted = True


def spares_are_wanted() -> bool:
    """Whether spares are enabled and there are enough cores for several imports of torch."""
    return _wanted and len(os.sched_getaffinity(0)) >= _FEWEST_CORES


def keep_spare(key: Key, child: SupervisedChild) -> None:
    with _lock:
        _spares.setdefault(key, []).append(child)


def take_spare(key: Key) -> SupervisedChild | None:
    """A live spare of that kind, which the caller then owns; None where there is none."""
    with _lock:
        kept = _spares.get(key, [])
        while kept:
            child = kept.pop()
            if child.alive:
                return child
            child.end()
    return None


def end_spares() -> None:
    """End the spares that are left."""
    with _lock:
        for kept in _spares.values():
            while kept:
                kept.pop().end()
