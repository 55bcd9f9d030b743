"""The playbook's own form of a computation: rows of elements, pointwise operations, and reductions along a row.

Every tensor is seen as `rows` x `cols`, where `cols` runs over the dimensions that are reduced, wherever they lie in
memory: `Layout` says that. A value belongs to an element, or to a whole row (`varies` is false: a reduction, a number,
an input with one element per row). Values are numbered in an order in which each needs only earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property

from tilewright.records import DType


class NumberKind(str, Enum):
    """What arithmetic a value takes part in: all floats are f32 inside a kernel, all whole numbers 64 bits wide."""

    FLOAT = "float"
    INT = "int"
    BOOL = "bool"

    @property
    def cpp(self) -> str:
        return {"float": "float", "int": "long long", "bool": "bool"}[self.value]


class Reduction(str, Enum):
    SUM = "sum"
    PRODUCT = "product"
    MAXIMUM = "maximum"  # NaN if any element is
    MINIMUM = "minimum"
    GREATEST = "greatest"  # the same but NaN is skipped: to subtract before exponentials
    ANY = "any"
    ALL = "all"
    ARGMAX = "argmax"
    ARGMIN = "argmin"

    @property
    def finds_place(self) -> bool:
        return self in (Reduction.ARGMAX, Reduction.ARGMIN)


@dataclass(frozen=True)
class Load:
    """An element of an input; which one follows from the input's access."""

    input: str


@dataclass(frozen=True)
class Constant:
    """A number of the function's own."""

    value: int | float | bool


@dataclass(frozen=True)
class LaunchNumber:
    """A number known when the kernel is launched: a scalar argument, or what follows from sizes."""

    name: str  # in the kernel
    expression: str  # in the plan


@dataclass(frozen=True)
class Count:
    """How many elements these dimensions have together: in a program it is `COLS`, or what the plan says of sizes."""

    axes: tuple[int, ...]


@dataclass(frozen=True)
class Pointwise:
    op: str  # a name of `cpp_text`
    arguments: tuple[int, ...]


@dataclass(frozen=True)
class Reduce:
    op: Reduction
    argument: int


Value = Load | Constant | LaunchNumber | Count | Pointwise | Reduce


def arguments_of(value: Value) -> tuple[int, ...]:
    """The values that a value is made of."""
    if isinstance(value, Pointwise):
        return value.arguments
    return (value.argument,) if isinstance(value, Reduce) else ()


def renumbered(value: Value, number: Callable[[int], int]) -> Value:
    """The same of values that have other numbers."""
    if isinstance(value, Pointwise):
        return Pointwise(value.op, tuple(map(number, value.arguments)))
    return Reduce(value.op, number(value.argument)) if isinstance(value, Reduce) else value


COLS = LaunchNumber("cols", "cols")


class Layout(str, Enum):
    """Where the elements of a row lie in memory."""

    ROWS = "rows"  # one after the other
    COLUMNS = "columns"  # `inner` apart, and the rows in between: the reduced dimensions are first, or in the middle
    SEGMENTS = "segments"  # in runs of `inner`, one in every outer part: the first and the last dimensions are reduced


@dataclass(frozen=True)
class RowPart:
    """A part of an input's own row number: (row / divisor) % modulus, each a plan expression, or "" for none."""

    divisor: str
    modulus: str


@dataclass(frozen=True)
class ProgramInput:
    """A tensor the kernel reads. `parts` empty: the same for every row; None: the row's own number indexes it."""

    name: str
    dtype: DType
    varies: bool  # has an element for every column
    parts: tuple[RowPart, ...] | None
    in_place: bool = False
    # Where it has some of the columns' dimensions, or some of the rows' and rows lie side by side: parts of the
    # column's number.
    spans: tuple[RowPart, ...] = ()
    own_cols: str = ""  # and how many columns it has itself

    @property
    def is_whole(self) -> bool:
        """One element for every element of the row space."""
        return self.varies and self.parts is None and not self.spans

    @property
    def is_column(self) -> bool:
        """The same for every row."""
        return self.varies and self.parts == () and not self.spans


@dataclass(frozen=True)
class ProgramOutput:
    """A tensor the kernel writes: a new one, or an input changed in place."""

    name: str
    dtype: DType
    value: int
    varies: bool
    in_place: bool = False
    over_rows: bool = False  # the sum of the value over all rows, for every column


@dataclass(frozen=True)
class RowProgram:
    name: str
    inputs: tuple[ProgramInput, ...]
    outputs: tuple[ProgramOutput, ...]
    values: tuple[Value, ...]
    kinds: tuple[NumberKind, ...]
    out_lines: tuple[str, ...]  # plan text of the results, without the directive
    shape_needs: tuple[str, ...]  # plan conditions on dtypes and shapes
    rows: str  # plan expressions
    cols: str
    task_rows: int  # at the task's own sizes
    task_cols: int
    layout: Layout = Layout.ROWS
    inner: str = ""  # a plan expression, where the layout is not `ROWS`
    task_inner: int = 1
    has_clusters: bool = True  # whether the task's GPU has clusters of blocks and bulk copies

    @cached_property
    def varies(self) -> tuple[bool, ...]:
        """For every value: whether it differs along a row."""
        of_input = {one.name: one.varies for one in self.inputs}
        found: list[bool] = []
        for value in self.values:
            if isinstance(value, Load):
                found.append(of_input[value.input])
            else:
                found.append(isinstance(value, Pointwise) and any(found[one] for one in value.arguments))
        return tuple(found)

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """For every value: how many sweeps along the row must have ended before it can be known."""
        found: list[int] = []
        for value in self.values:
            found.append(max((found[one] for one in arguments_of(value)), default=0) + isinstance(value, Reduce))
        return tuple(found)

    @property
    def reductions(self) -> tuple[int, ...]:
        return tuple(index for index, value in enumerate(self.values) if isinstance(value, Reduce))

    @property
    def is_pointwise(self) -> bool:
        return not self.reductions

    @property
    def is_flat(self) -> bool:
        """Nothing but whole tensors and numbers: the row structure does not matter."""
        if self.column_sums:
            return False
        return self.is_pointwise and all(one.is_whole or (not one.varies and one.parts == ()) for one in self.inputs)

    @property
    def span_constants(self) -> dict[str, str]:
        """Constants for the numbers that columns are divided by where tensors have some of their dimensions."""
        parts = [part for one in self.inputs for part in one.spans]
        numbers = dict.fromkeys(one for part in parts for one in (part.divisor, part.modulus) if one)
        return {one: f"SPAN_{place}" if place else "SPAN" for place, one in enumerate(numbers)}

    @property
    def span_units(self) -> tuple[str, ...]:
        """Of those constants the ones that vectors must not straddle: a tensor that repeats is read by vectors."""
        units = (one.spans[-1].modulus for one in self.inputs if one.spans and not one.spans[-1].divisor)
        return tuple(dict.fromkeys(self.span_constants[one] for one in units if one))

    @property
    def tensors(self) -> tuple[ProgramInput | ProgramOutput, ...]:
        return (*self.inputs, *self.outputs)

    @property
    def columns(self) -> tuple[ProgramInput, ...]:
        return tuple(one for one in self.inputs if one.is_column)

    @property
    def streams(self) -> tuple[ProgramInput, ...]:
        """Inputs whose elements a row reads for itself; not what is only written."""
        read = {value.input for value in self.values if isinstance(value, Load)}
        own = (one for one in self.inputs if one.varies and not one.is_column and not one.spans)
        return tuple(one for one in own if one.name in read)

    @property
    def widest(self) -> DType:
        """The widest element among tensors that vary along a row: it decides how many elements 16 bytes hold."""
        wide = [one.dtype for one in self.tensors if one.varies]
        return max(wide or [one.dtype for one in self.tensors], key=lambda one: one.itemsize)

    @property
    def is_sixteen_bit(self) -> bool:
        """Whether every float that leaves the kernel has 16 bits: then quick forms lose nothing that is kept."""
        floats = [one.dtype for one in self.outputs if one.dtype.is_float]
        return bool(floats) and all(dtype.itemsize == 2 for dtype in floats)

    @property
    def sweeps(self) -> int:
        """How often a row must be gone through: once per level of reductions, and once more to write elements."""
        last = max((self.levels[index] for index in self.reductions), default=0)
        return last + any(one.varies for one in self.outputs)

    def arguments(self, index: int) -> tuple[int, ...]:
        return arguments_of(self.values[index])

    def reductions_of(self, sweep: int) -> tuple[int, ...]:
        """The reductions that a sweep, counted from 0, can finish."""
        return tuple(index for index in self.reductions if self.levels[index] == sweep + 1)

    @property
    def outputs_along(self) -> tuple[ProgramOutput, ...]:
        return tuple(one for one in self.outputs if one.varies and not one.over_rows)

    @property
    def column_sums(self) -> tuple[ProgramOutput, ...]:
        return tuple(one for one in self.outputs if one.over_rows)

    @property
    def without_sums(self) -> RowProgram:
        """The same without the outputs that are sums over rows: what a kernel that goes along rows writes itself."""
        return replace(self, outputs=tuple(one for one in self.outputs if not one.over_rows))

    @property
    def outputs_of_row(self) -> tuple[ProgramOutput, ...]:
        return tuple(one for one in self.outputs if not one.varies)
