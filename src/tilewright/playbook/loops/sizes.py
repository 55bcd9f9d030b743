"""Sizes that are known when a kernel is launched, held as their values in several calls.

A graph is lowered once for all calls that were traced (three at varied sizes, then the task's own): a `Size` is what a
number was in each, and two sizes are the same if they were the same in all. How a size follows from the
shapes of the inputs is kept beside it and becomes plan text when a kernel needs it. With one call every size is a
literal, and the kernel is for those sizes alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tilewright.playbook.errors import NotSupported
from tilewright.playbook.families import TracedTask
from tilewright.playbook.places.sizes import SizeBook


class Size:
    """A whole number in every call. Made by a `SizeTable`, which makes each but once."""

    __slots__ = ("form", "table", "values")

    def __init__(self, table: SizeTable, values: tuple[int, ...], form: tuple[str, ...] | tuple[str, Size, Size]):
        self.table, self.values, self.form = table, values, form

    @property
    def own(self) -> int:
        """In the task's own call."""
        return self.values[-1]

    @property
    def literal(self) -> int | None:
        first = self.values[0]
        return first if self.values.count(first) == len(self.values) else None

    def __repr__(self) -> str:
        return f"Size{self.values}"

    def _with(self, sign: str, other: Size | int, make: Callable[[int, int], int]) -> Size:
        other = self.table.size(other)
        values = tuple(map(make, self.values, other.values))
        return self.table.made(values, (sign, self, other))

    def __add__(self, other: Size | int) -> Size:
        return self._with("+", other, lambda a, b: a + b)

    def __sub__(self, other: Size | int) -> Size:
        return self._with("-", other, lambda a, b: a - b)

    def __mul__(self, other: Size | int) -> Size:
        return self._with("*", other, lambda a, b: a * b)

    def over(self, other: Size | int) -> Size:
        """Divided without a remainder. A plan divides no negative numbers."""
        if any(one < 0 for one in self.values):
            return (self * -1).over(other) * -1
        return self._with("/", other, lambda a, b: a // b)

    def ceil_div(self, other: Size | int) -> Size:
        return self._with("ceil_div", other, lambda a, b: -(-a // b))

    def remainder(self, other: Size | int) -> Size:
        return self._with("%", other, lambda a, b: a % b)

    def largest(self, other: Size | int) -> Size:
        return self._with("max", other, max)

    @property
    def next_power(self) -> Size:
        values = tuple(1 << max(one - 1, 0).bit_length() for one in self.values)
        return self.table.made(values, ("next_pow2", self, self))

    def is_always(self, number: int) -> bool:
        return self.literal == number

    def divides(self, other: Size) -> bool:
        return all(one and not another % one for one, another in zip(self.values, other.values, strict=True))


class SizeTable:
    def __init__(self, traced: TracedTask, calls: int) -> None:
        self.calls = calls
        self._book = SizeBook(traced)
        self._known: dict[tuple[int, ...], Size] = {}
        self.zero, self.one = self.size(0), self.size(1)

    def made(self, values: tuple[int, ...], form: tuple[str, ...] | tuple[str, Size, Size]) -> Size:
        found = self._known.get(values)
        if found is None:
            found = self._known[values] = Size(self, values, form)
        return found

    def size(self, number: Size | int) -> Size:
        return number if isinstance(number, Size) else self.made((number,) * self.calls, ("literal",))

    def traced(self, values: tuple[int, ...], what: str) -> Size:
        """The size of these values in the traces. Raises `NotSupported` where it follows from nothing known."""
        found = self._known.get(values)
        if found is not None:
            return found
        if values.count(values[0]) == len(values):
            return self.size(values[0])
        composed = self._composed(values)
        if composed is not None:
            return composed
        explained = self._book.of(values[:-1], what)
        if explained.values != values:
            raise NotSupported(f"the playbook cannot tell how a size of {what} follows from the inputs'")
        return self.made(values, ("text", explained.text))

    def _composed(self, values: tuple[int, ...]) -> Size | None:
        """The product, sum or difference of two sizes that came up, where that is what these values are."""
        known = [one for one in self._known.values() if one.literal is None]
        for one in known:
            pairs = tuple(zip(values, one.values, strict=True))
            if all(its and not own % its for own, its in pairs):
                other = self.known(tuple(own // its for own, its in pairs))
                if other is not None:
                    return one * other
        for one in known:
            pairs = tuple(zip(values, one.values, strict=True))
            other = self.known(tuple(own - its for own, its in pairs))
            if other is not None:
                return one + other
            other = self.known(tuple(its - own for own, its in pairs))
            if other is not None:
                return one - other
        return None

    def ratio(self, values: tuple[float, ...]) -> tuple[Size, Size] | None:
        """Two sizes whose quotient took these values: half of a size, one over a size, a scale of coordinates."""
        sizes = [*(self.size(one) for one in (1, 2, 4, 8, 16, 64)), *self._known.values()]
        for below in dict.fromkeys(sizes):
            above = tuple(round(value * by) for value, by in zip(values, below.values, strict=True))
            found = self.known(above)
            if found is not None and all(
                by and abs(value - one / by) <= 2e-7 * abs(value)
                for value, one, by in zip(values, above, below.values, strict=True)
            ):
                return found, below
        return None

    def named(self, values: tuple[int, ...], text: str) -> Size:
        """A size with a plan text of its own, such as a stride."""
        return self.made(values, ("text", text))

    def known(self, values: tuple[int, ...]) -> Size | None:
        """The size of these values, if one came up or it is a literal."""
        same = values.count(values[0]) == len(values)
        return self.size(values[0]) if same else self._known.get(values)

    def product(self, sizes: tuple[Size, ...] | list[Size]) -> Size:
        return math.prod(sizes, start=self.one)
