"""What is reached from a few things by going on from each to those that follow it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def reached(starts: Iterable[T], following: Callable[[T], Iterable[T]]) -> set[T]:
    """The starts, and all that follows."""
    found: set[T] = set()
    waiting = list(starts)
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting += following(one)
    return found
