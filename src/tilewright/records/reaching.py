"""What is reached from a few things by going on from each to those that follow it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

_T = TypeVar("_T", bound=Hashable)


def reached(starts: Iterable[_T], following: Callable[[_T], Iterable[_T]]) -> set[_T]:
    """The starts, and all that follows."""
    found: set[_T] = set()
    waiting = list(starts)
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting += following(one)
    return found
