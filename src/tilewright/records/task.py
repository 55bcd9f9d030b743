"""What must be computed: a PyTorch reference, its inputs, and what is asked of the kernel."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import ClassVar

from tilewright.records.dtypes import DType
from tilewright.records.execution import Part
from tilewright.records.formulas import SizeFormula
from tilewright.records.gpu import PROFILES, GpuProfile
from tilewright.records.json_form import to_json
from tilewright.records.steps import ScalarType
from tilewright.records.tensors import TensorSpec

# -- what a backward task has to do with its forward one: --

BACKWARD = "_backward"  # how the name of a backward op ends


@dataclass(frozen=True)
class SavedTensor:
    """An input or a result of the forward that the backward is given, under the same name."""

    name: str
    bytes: int  # at the task's own sizes
    is_result: bool = False


@dataclass(frozen=True)
class Derivative:
    """The backward's arguments are `gradients`, then `saved`, then the forward's numbers; its results go with `by`."""

    forward: str  # hash of the forward task
    op: str  # its name
    results: tuple[str, ...]  # the forward's results whose gradients are taken
    gradients: tuple[str, ...]  # what these gradients are called among the backward's arguments
    saved: tuple[SavedTensor, ...]
    by: tuple[str, ...]  # the inputs that get a gradient, in the order of the backward's results
    without: tuple[tuple[str, str], ...] = ()  # tensors that get none, and why
    autograd_bytes: int | None = None  # what PyTorch's autograd would keep; None where that was not found out

    @property
    def saved_bytes(self) -> int:
        return sum(one.bytes for one in self.saved)


# -- what an input holds, without a seed --


@dataclass(frozen=True)
class NormalValues:
    LEFT_OUT: ClassVar[tuple[str, ...]] = ("part",)  # so that tasks keep their identity

    mean: float = 0.0
    deviation: float = 1.0
    part: Part = Part.WHOLE


@dataclass(frozen=True)
class UniformValues:
    LEFT_OUT: ClassVar[tuple[str, ...]] = ("part",)

    low: float = 0.0
    high: float = 1.0
    part: Part = Part.WHOLE


# Where nobody said what floats hold and a reference takes no negative ones: inside the numbers from 0 to 1, which it
# stands for.
BETWEEN_0_AND_1 = UniformValues(0.01, 0.99)


@dataclass(frozen=True)
class IntegerValues:
    """Whole numbers from `low` up to but not including `high`; for a boolean tensor 0 and 1."""

    low: int
    high: int


@dataclass(frozen=True)
class IndexValues:
    """Whole numbers that index the dimension named."""

    dimension: str


Values = NormalValues | UniformValues | IntegerValues | IndexValues


@dataclass(frozen=True)
class Dimension:
    """One size of the task. Where it varies, a kernel is verified at other sizes too and should take them.

    One with a formula is never chosen: it follows from others, and varies where one of them does.
    """

    # So that tasks without them keep their identity.
    LEFT_OUT: ClassVar[tuple[str, ...]] = ("formula", "at_least", "at_most", "branches", "unless")

    name: str
    size: int
    varies: bool = True
    multiple_of: int = 1  # of every size it takes
    formula: SizeFormula | None = None
    at_least: int = 1  # less is refused by the reference, such as an image smaller than its filter
    at_most: int | None = None
    branches: bool = False  # at sizes other than these the reference does something else, so a file must decline them
    # Where one of these is above its own least (`Task.least_of`), `at_least` does not hold: batch * cols > 1.
    unless: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.formula is not None and (self.multiple_of, self.at_least, self.at_most) != (1, 1, None):
            raise ValueError(f"dimension {self.name} follows from others; they have the multiples and least sizes")
        if self.at_most is not None and self.size > self.at_most:
            raise ValueError(f"dimension {self.name}: {self.size} is not a size of at most {self.at_most}")
        if self.at_least < 1 or (self.at_least > 1 and self.size < self.at_least):
            raise ValueError(f"dimension {self.name}: {self.size} is not a size of at least {self.at_least}")
        if self.size < 0 or self.multiple_of < 1 or self.size % self.multiple_of:
            raise ValueError(
                f"dimension {self.name}: {self.size} is not a size that is a multiple of {self.multiple_of}"
            )

    def takes(self, size: int) -> bool:
        """Whether the size is one that it may have."""
        if not self.varies:
            return size == self.size
        within = self.at_least <= size and (self.at_most is None or size <= self.at_most)
        return within and size % self.multiple_of == 0

    def permitted(self, size: int) -> int:
        """The next size that it may have, or the greatest where that would be beyond it."""
        unit = self.multiple_of
        wanted = -(-max(size, self.at_least) // unit) * unit
        return wanted if self.at_most is None else min(wanted, self.at_most // unit * unit)


class Layout(str, Enum):
    """How a tensor lies in memory, beside the order of its dimensions."""

    DENSE = "dense"
    PADDED = "padded rows"  # sixteen elements between one row and the next
    ODD = "rows at odd places"  # three
    SPREAD = "every other element"
    UNALIGNED = "unaligned"  # dense, and aligned to no more than an element


@dataclass(frozen=True)
class TensorInput:
    LEFT_OUT: ClassVar[tuple[str, ...]] = ("layout",)  # so that tasks keep their identity

    name: str
    dtype: DType
    dimensions: tuple[str, ...]
    values: Values = field(default_factory=NormalValues)
    memory_order: tuple[int, ...] = ()  # dimensions from the outermost in memory to the innermost; (): row-major
    in_place: bool = False  # the op changes it
    optional: bool = False
    parameter: bool = False  # of a module: a weight, the same over many calls
    layout: Layout = Layout.DENSE


@dataclass(frozen=True)
class NumberBounds:
    """Between which values the reference does the same as at the task's own; None: there is no bound on that side."""

    low: int | float | None = None
    high: int | float | None = None
    low_excluded: bool = False
    high_excluded: bool = False
    branches: bool = True  # beyond, the reference does something else, so a file must decline that; else it raises

    def holds(self, value: float) -> bool:
        above = self.low is None or value > self.low or (value == self.low and not self.low_excluded)
        return above and (self.high is None or value < self.high or (value == self.high and not self.high_excluded))

    def conditions(self, name: str) -> tuple[str, ...]:
        """What must hold of the number, as a kernel file writes it."""
        if self.low is not None and self.low == self.high:
            return (f"{name} == {self.low!r}",)
        low = () if self.low is None else (f"{name} {'>' if self.low_excluded else '>='} {self.low!r}",)
        high = () if self.high is None else (f"{name} {'<' if self.high_excluded else '<='} {self.high!r}",)
        return (*low, *high)


@dataclass(frozen=True)
class NumberInput:
    """A scalar argument, with the value the task gives it."""

    LEFT_OUT: ClassVar[tuple[str, ...]] = ("bounds",)  # so that tasks without them keep their identity

    name: str
    type: ScalarType
    value: int | float | bool
    default: bool = True  # whether the function itself gives that value when none is passed
    bounds: NumberBounds | None = None

    def takes(self, value: float) -> bool:
        """Whether a kernel that is right for the task's own value must be right for this one."""
        return self.bounds is None or self.bounds.holds(value)


TaskInput = TensorInput | NumberInput


@dataclass(frozen=True)
class TaskOutput:
    """A result as the reference returns it: each size a dimension's name or a number."""

    name: str
    dtype: DType
    shape: tuple[str | int, ...]


class Precision(str, Enum):
    """The promise of a task: the arithmetic that a kernel may use inside, and that its baselines use.

    Sums of 16-bit inputs are made in f32 whatever is promised.
    """

    DTYPE = "dtype"  # what PyTorch does by default: f32 convolutions round to TF32, all else in f32 is true f32
    # The same where PyTorch by default computes this task's convolutions in true f32, as it does some: so must kernels.
    DEFAULT_F32 = "default-f32"
    STRICT = "strict"  # true f32, convolutions too
    TF32 = "tf32"  # all f32 products may be rounded to TF32
    HALF = "half"  # f32 work may be done in 16 bits

    @property
    def words(self) -> str:
        """What people are told of kernel and baselines alike."""
        match self:
            case Precision.DTYPE:
                return "as PyTorch by default: f32 convolutions in TF32, other f32 products in f32"
            case Precision.DEFAULT_F32:
                here = "which computes these f32 convolutions in f32 on this GPU"
                return f"as PyTorch by default, {here}: so must the kernel"
            case Precision.STRICT:
                return "strict: f32 products and convolutions in f32"
            case Precision.TF32:
                return "f32 products and convolutions in TF32"
            case Precision.HALF:
                return "f32 work in 16 bits; baselines under autocast to bf16"

    @property
    def rounds_products(self) -> bool:
        """Whether a kernel may round the operands of all f32 products to TF32 or less."""
        return self in (Precision.TF32, Precision.HALF)

    @property
    def rounds_convolutions(self) -> bool:
        """Whether it may those of f32 convolutions."""
        return self.rounds_products or self is Precision.DTYPE


class Goal(str, Enum):
    LATENCY = "latency"
    THROUGHPUT = "throughput"


class Origin(str, Enum):
    WORDS = "words"
    FUNCTION = "function"
    MODULE = "module"
    KERNELBENCH = "kernelbench"
    FOLDER = "folder"


class Kind(str, Enum):
    """The kind of workload, for advice."""

    POINTWISE = "pointwise"
    REDUCTION = "reduction"
    NORMALISATION = "normalisation"
    SOFTMAX = "softmax"
    MATMUL = "matmul"
    CONVOLUTION = "convolution"
    ATTENTION = "attention"
    SCAN = "scan"
    LOSS = "loss"
    GATHER = "gather"
    POOLING = "pooling"
    OTHER = "other"


@dataclass(frozen=True)
class Task:
    """Everything that says what is right and what is wanted. `reference` is Python source that defines `function`.

    The function takes the inputs by name, in order, and returns the outputs, a tuple of several; inputs marked
    `in_place` it changes. It is run only in a limited child process.
    """

    LEFT_OUT: ClassVar[tuple[str, ...]] = ("derivative", "leading")

    name: str  # the op's name in kernel files
    reference: str
    function: str
    inputs: tuple[TaskInput, ...]
    outputs: tuple[TaskOutput, ...]
    dimensions: tuple[Dimension, ...]
    kind: Kind = Kind.OTHER
    gpu: str = "H200"  # a name of `PROFILES`
    precision: Precision = Precision.DTYPE
    goal: Goal = Goal.THROUGHPUT
    allow_library: bool = False
    origin: Origin = Origin.FUNCTION
    words: str = ""  # the request, where it was made in words
    assumptions: tuple[str, ...] = ()
    degenerate: str = ""  # why answers prove nothing; such a task is left out of claims
    derivative: Derivative | None = None  # of a backward task
    # Inputs, and how many dimensions each has here, whose first may stand for any number of leading ones: the reference
    # takes them so, and does the same with each row. It says nothing of what is wanted.
    leading: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        names = [one.name for one in self.inputs] + [one.name for one in self.outputs]
        if len(set(names)) != len(names):
            raise ValueError(f"task {self.name}: the names {', '.join(names)} are not all different")
        known = {dimension.name for dimension in self.dimensions}
        used = {name for one in self.tensors for name in one.dimensions}
        used |= {name for one in self.outputs for name in one.shape if isinstance(name, str)}
        used |= {one.values.dimension for one in self.tensors if isinstance(one.values, IndexValues)}
        if used - known:
            raise ValueError(f"task {self.name}: no dimension is called {min(used - known)}")
        if self.dimensions != following(self.dimensions):
            wrong = next(a for a, b in zip(self.dimensions, following(self.dimensions), strict=True) if a != b)
            raise ValueError(f"task {self.name}: {wrong.name} is not as {wrong.formula} says")
        if self.gpu not in PROFILES:
            raise ValueError(f"task {self.name}: no known GPU is called {self.gpu!r}; known: {', '.join(PROFILES)}")

    @property
    def tensors(self) -> tuple[TensorInput, ...]:
        return tuple(one for one in self.inputs if isinstance(one, TensorInput))

    @property
    def numbers(self) -> tuple[NumberInput, ...]:
        return tuple(one for one in self.inputs if isinstance(one, NumberInput))

    @property
    def profile(self) -> GpuProfile:
        return PROFILES[self.gpu]

    @property
    def sizes(self) -> dict[str, int]:
        """Every dimension at the size the task is about."""
        return {dimension.name: dimension.size for dimension in self.dimensions}

    @property
    def free(self) -> tuple[Dimension, ...]:
        """The dimensions whose sizes are chosen; the others follow from these."""
        return tuple(one for one in self.dimensions if one.formula is None)

    def complete(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """The size of every dimension from those of the free ones; sizes given for others are not looked at."""
        return {one.name: sizes[one.name] if one.formula is None else one.formula.at(sizes) for one in self.dimensions}

    def agrees(self, sizes: Mapping[str, int]) -> bool:
        """Whether sizes that were found somewhere, of some dimensions or all, can be as the formulas say."""
        for one in self.dimensions:
            if one.formula is None or one.name not in sizes:
                continue
            unknown = [name for name in one.formula.names if name not in sizes]
            if not unknown and one.formula.at(sizes) != sizes[one.name]:
                return False
            told = len(unknown) == 1 and one.formula.divisor == 1
            if told and one.formula.solved(unknown[0], sizes[one.name], sizes) is None:
                return False
        return True

    def is_sound(self, sizes: Mapping[str, int]) -> bool:
        """Whether no size is below its least or above its greatest, nor one that follows from others below 1."""
        return all(
            self._least(one, sizes) <= sizes[one.name] and (one.at_most is None or sizes[one.name] <= one.at_most)
            for one in self.dimensions
            if one.varies or one.formula is not None
        )

    def _least(self, dimension: Dimension, sizes: Mapping[str, int]) -> int:
        others = (one for one in self.dimensions if one.name in dimension.unless)
        return 1 if any(sizes[one.name] > self.least_of(one) for one in others) else dimension.at_least

    def least_of(self, dimension: Dimension) -> int:
        """The least size of a dimension that is free: what it is a multiple of, and what follows from it, count too."""
        return max(dimension.at_least, self._least_by_formulas(dimension))

    def least_words(self, dimension: Dimension) -> str:
        """`at least 5`, `at least 2 where batch is 1`; "" where a dimension that is free may be 1, or its multiple.

        What the reference refuses counts, and that nothing that follows from this size alone may be below 1.
        """
        least = self._least_by_formulas(dimension)
        if least > max(dimension.at_least, dimension.multiple_of):
            return f"at least {least}"
        if dimension.at_least <= 1:
            return ""
        others = [one for one in self.dimensions if one.name in dimension.unless]
        beside = " and ".join(f"{one.name} is {self.least_of(one)}" for one in others)
        return f"at least {dimension.at_least}{f' where {beside}' if beside else ''}"

    def _least_by_formulas(self, dimension: Dimension) -> int:
        following = [one.formula for one in self.dimensions if one.formula and one.formula.names == (dimension.name,)]
        sizes = range(dimension.multiple_of, dimension.size, dimension.multiple_of)
        return next((n for n in sizes if all(one.at({dimension.name: n}) > 0 for one in following)), dimension.size)

    def specs(self, sizes: Mapping[str, int] | None = None) -> dict[str, TensorSpec]:
        """The tensor inputs at the given sizes, or at the task's own; absent optional tensors are not among them."""
        sizes = self.sizes if sizes is None else sizes
        return {one.name: _spec(one, sizes) for one in self.tensors if not one.optional}

    def output_specs(self, sizes: Mapping[str, int] | None = None) -> dict[str, TensorSpec]:
        sizes = self.sizes if sizes is None else sizes
        return {
            one.name: TensorSpec.contiguous(
                one.dtype, tuple(size if isinstance(size, int) else sizes[size] for size in one.shape)
            )
            for one in self.outputs
        }

    def arguments(self, sizes: Mapping[str, int] | None = None) -> dict[str, TensorSpec | int | float | bool | None]:
        """Every input in order, as `kernel_file.evaluate` wants them."""
        specs = self.specs(sizes)
        return {one.name: one.value if isinstance(one, NumberInput) else specs.get(one.name) for one in self.inputs}

    @property
    def moved_bytes(self) -> int:
        """The least a kernel can move at the task's sizes: every input read once, every output written once. What is
        changed in place is written; it may be overwritten unread."""
        moved = sum(spec.storage_bytes for spec in self.specs().values())
        return moved + sum(spec.storage_bytes for spec in self.output_specs().values())

    @property
    def hash(self) -> str:
        """The identity of the task: of all that decides what is right and what is wanted, not of how it was asked."""
        said = replace(self, words="", assumptions=(), derivative=None, leading=())
        plain = to_json(replace(said, origin=Origin.FUNCTION, kind=Kind.OTHER, degenerate=""))
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:20]


def following(dimensions: tuple[Dimension, ...]) -> tuple[Dimension, ...]:
    """The dimensions with the size of each that follows, and whether it varies, from those it follows from.

    Raises `ValueError` where a formula names what is no dimension, or one that follows itself.
    """
    free = {one.name: one for one in dimensions if one.formula is None}
    sizes = {name: one.size for name, one in free.items()}
    made = []
    for one in dimensions:
        if one.formula is None:
            made.append(one)
            continue
        for name in one.formula.names:
            if name not in free:
                known = any(name == other.name for other in dimensions)
                wrong = f"{name} follows from others itself" if known else f"no dimension is called {name}"
                raise ValueError(f"dimension {one.name} = {one.formula}: {wrong}; name {', '.join(free) or 'a size'}")
        size = one.formula.at(sizes)
        if size < 0:
            given = ", ".join(f"{name} = {sizes[name]}" for name in one.formula.names)
            raise ValueError(f"dimension {one.name} = {one.formula} is {size} at {given}; no size is below 0")
        made.append(replace(one, size=size, varies=any(free[name].varies for name in one.formula.names)))
    return tuple(made)


def _spec(one: TensorInput, sizes: Mapping[str, int]) -> TensorSpec:
    shape = tuple(sizes[name] for name in one.dimensions)
    plain = TensorSpec.contiguous(one.dtype, shape)
    if one.layout is Layout.UNALIGNED:
        plain = replace(plain, alignment=one.dtype.itemsize)
    if not one.memory_order and one.layout not in (*_PADDING, Layout.SPREAD):
        return plain
    stride = [0] * len(shape)
    step, padding = 2 if one.layout is Layout.SPREAD else 1, _PADDING.get(one.layout, 0)
    for index in reversed(one.memory_order or range(len(shape))):
        stride[index] = step
        step, padding = step * max(shape[index], 1) + padding, 0
    return replace(plain, stride=tuple(stride))


_PADDING = {Layout.PADDED: 16, Layout.ODD: 3}
