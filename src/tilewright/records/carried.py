"""Exceptions that reach other processes: a pool of processes pickles what its workers raise."""

from __future__ import annotations

from typing import Any


class Carried(Exception):
    """One whose own arguments are not those of `Exception`, which is how pickle would make it again."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (type(self), self.args), self.__dict__


def _again(kind: type[Carried], arguments: tuple[Any, ...]) -> Carried:
    return kind.__new__(kind, *arguments)
