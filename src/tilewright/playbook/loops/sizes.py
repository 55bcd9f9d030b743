"""Sizes that are known when a kernel is launched, held as their values in several calls.

A graph is lowered once for all calls: those that were traced at varied sizes, some at the ends of what the task takes,
then that at the task's own. A `Size` is what a number was in each; two sizes are the same if they were the same in all
that were traced, which come first. How a size follows from the shapes of the inputs is kept beside it and becomes plan
text when a kernel needs it. The ends are for bounds: what holds where one dimension is long and another is 1, either
way, holds everywhere. With one call every size is a literal, and the kernel is for those sizes alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from types import SimpleNamespace

from tilewright.playbook.errors import NotSupported
from tilewright.playbook.families import TracedTask
from tilewright.playbook.places.sizes import SizeBook
from tilewright.records import Task

_LONG = 1009  # more than the traced sizes of what is compared with


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
    def at_least(self) -> int:
        """Where every dimension is as small as it may be."""
        return self.values[min(self.table.count, len(self.values) - 1)]

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
        seen = (*self.traced, self.own)
        if any(one < 0 for one in seen) and all(one <= 0 for one in seen):
            return (self * -1).over(other) * -1
        return self._with("/", other, lambda a, b: a // (b or 1))

    def ceil_div(self, other: Size | int) -> Size:
        return self._with("ceil_div", other, lambda a, b: -(-a // (b or 1)))

    def remainder(self, other: Size | int) -> Size:
        return self._with("%", other, lambda a, b: a % (b or 1))

    def largest(self, other: Size | int) -> Size:
        """One of the two only where it is a multiple of the other: which is longer in all traced calls says little."""
        other = self.table.size(other)
        if other is self or other.divides(self) or (self.form[0] == "max" and other in self.form):
            return self
        return other if self.divides(other) else self.table.longer(self, other)

    @property
    def next_power(self) -> Size:
        values = tuple(1 << max(one - 1, 0).bit_length() for one in self.values)
        return self.table.made(values, ("next_pow2", self, self))

    def is_always(self, number: int) -> bool:
        return self.literal == number

    def divides(self, other: Size) -> bool:
        pairs = (*zip(self.traced, other.traced, strict=True), (self.own, other.own))
        return all(one and not another % one for one, another in pairs)

    @property
    def traced(self) -> tuple[int, ...]:
        """In the calls that were traced."""
        return self.values[: self.table.count]


class SizeTable:
    """Sizes by what they were in the calls that were traced: those at the probes, or that at the task's own sizes."""

    def __init__(self, traced: TracedTask) -> None:
        self.count = len(traced.traces)
        own = traced.task.sizes
        ends = [] if traced.probes.fixed else _ends(traced.task)
        self.sizes_of_calls = [*(one.sizes for one in traced.probes.probes), *ends, own] if ends else [own, own]
        self.calls = len(self.sizes_of_calls)
        self._book = SizeBook(traced)
        self._ends = [_shapes(traced.task, sizes) for sizes in ends]
        self.possible = list(range(self.calls))  # calls that the function takes, as far as is known
        self._known: dict[tuple[int, ...], Size] = {}
        self._apart: dict[tuple[int, ...], Size] = {}  # those that are others' only in the traced calls
        self._longer: dict[tuple[Size, Size], Size] = {}
        self.zero, self.one = self.size(0), self.size(1)

    def made(self, values: tuple[int, ...], form: tuple[str, ...] | tuple[str, Size, Size]) -> Size:
        key = values[: self.count]
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = Size(self, values, form)
        if found.own != values[-1] and isinstance(form[-1], Size):
            # Computed, and another at the task's own sizes: parts of a row may be one in all traced calls.
            found = self._apart.setdefault((*key, values[-1]), Size(self, values, form))
        return found

    def longer(self, one: Size, other: Size) -> Size:
        values = tuple(map(max, one.values, other.values))
        return self._longer.setdefault((one, other), Size(self, values, ("max", one, other)))

    def size(self, number: Size | int) -> Size:
        return number if isinstance(number, Size) else self.made((number,) * self.calls, ("literal",))

    def traced(self, values: tuple[int, ...], what: str, own: int | None = None) -> Size:
        """The size of these values in the traces, and of this one in the task's own call.

        Raises `NotSupported` where it follows from nothing known.
        """
        found = self.known(values) or self._explained(values, what)
        if (own is not None and found.own != own) or found.own < 0 <= min(values):
            raise NotSupported(f"the playbook cannot tell how a size of {what} follows from the inputs'")
        return found

    def _explained(self, values: tuple[int, ...], what: str) -> Size:
        try:
            explained = self._book.of(values, what)
        except NotSupported:
            composed = self._composed(values)
            if composed is None:
                raise
            return composed
        text = explained.text.replace("/", "//")
        at_ends = (int(eval(text, {"__builtins__": {}}, shapes)) for shapes in self._ends)  # a formula of SizeBook's
        return self.made((*explained.values[: self.count], *at_ends, explained.own), ("text", explained.text))

    def shape(self, sizes: tuple[Size, ...]) -> tuple[Size, ...]:
        """A tensor's sizes; a call where one is below zero is none that the function takes."""
        self.possible = [call for call in self.possible if all(one.values[call] >= 0 for one in sizes)]
        return sizes

    def always(self, test: Callable[..., bool], *numbers: tuple[int, ...]) -> bool:
        """Whether numbers pass in every call that the function takes."""
        return all(test(*(one[call] for one in numbers)) for call in self.possible)

    def named(self, values: tuple[int, ...], text: str) -> Size:
        """A size with a plan text of its own, such as a stride."""
        return self.made(values, ("text", text))

    def known(self, values: tuple[int, ...]) -> Size | None:
        """The size of these values, if one came up or it is a literal."""
        same = values.count(values[0]) == len(values)
        return self.size(values[0]) if same else self._known.get(values[: self.count])

    def _composed(self, values: tuple[int, ...]) -> Size | None:
        """The product, sum or difference of two sizes that came up, where that is what these values are."""
        varying = [one for one in self._known.values() if one.literal is None]
        for one in varying:
            pairs = tuple(zip(values, one.values, strict=False))
            if all(its and not own % its for own, its in pairs):
                other = self.known(tuple(own // its for own, its in pairs))
                if other is not None:
                    return one * other
        for one in varying:
            pairs = tuple(zip(values, one.values, strict=False))
            if (other := self.known(tuple(own - its for own, its in pairs))) is not None:
                return one + other
            if (other := self.known(tuple(its - own for own, its in pairs))) is not None:
                return one - other
        for one, divisor in itertools.product(varying, range(2, 9)):
            if all(own == -(-its // divisor) for own, its in zip(values, one.values, strict=False)):
                return one.ceil_div(divisor)
            if all(own == its // divisor for own, its in zip(values, one.values, strict=False)):
                return (one - one.remainder(divisor)).over(divisor)
        return None

    def ratio(self, values: tuple[float, ...]) -> tuple[Size, Size] | None:
        """Two sizes whose quotient took these values: half of a size, one over a size, a scale of coordinates."""
        below = dict.fromkeys([*(self.size(one) for one in (1, 2, 4, 8, 16, 64)), *self._known.values()])
        for one in below:
            pairs = tuple(zip(values, one.values, strict=False))
            above = tuple(round(value * by) for value, by in pairs)
            exact = (
                by and abs(value - its / by) <= 2e-7 * abs(value) for (value, by), its in zip(pairs, above, strict=True)
            )
            if not all(exact):
                continue
            for more in (0, 1, -1):
                found = self.known(tuple(its + more for its in above))
                if found is not None:
                    return found - more, one
        return None

    def product(self, sizes: tuple[Size, ...] | list[Size]) -> Size:
        return math.prod(sizes, start=self.one)


def _shapes(task: Task, sizes: dict[str, int]) -> dict[str, object]:
    """What plan texts mention, at these sizes; nothing is divided by zero."""
    return {
        one.name: SimpleNamespace(shape=[max(sizes[name], 1) for name in one.dimensions])
        for one in task.tensors
        if not one.optional
    }


def _ends(task: Task) -> list[dict[str, int]]:
    """Every dimension at its least; then, of any two, one long and the other at its least, and the reverse."""
    varied = [one for one in task.free if one.varies]
    calls = []
    for bit in range(-1, len(varied).bit_length()):
        for side in (0, 1) if bit >= 0 else (0,):
            is_long = {one.name: bit >= 0 and (number >> bit & 1) == side for number, one in enumerate(varied)}
            sizes = {
                one.name: one.permitted(_LONG + number if is_long.get(one.name) else 1) if one.varies else one.size
                for number, one in enumerate(task.free)
            }
            calls.append(task.complete(sizes))
    return calls
