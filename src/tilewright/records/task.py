"""`Task`: a PyTorch reference, its inputs, and the requirements on the kernel."""

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
from tilewright.records.tensors import TensorSpec, strides_in

# -- backward tasks --

BACKWARD = "_backward"  # suffix of a backward op's name


@dataclass(frozen=True)
class SavedTensor:
    """An input or result of the forward that is saved for the backward, under the same name."""

    name: str
    bytes: int  # at the task's own sizes
    is_result: bool = False


@dataclass(frozen=True)
class Derivative:
    """The backward takes `gradients`, `saved`, then the forward's numbers, and returns the gradients of `by`."""

    forward: str  # hash of the forward task
    op: str  # its name
    results: tuple[str, ...]  # the differentiable results of the forward
    gradients: tuple[str, ...]  # the names of their gradients among the backward's arguments
    saved: tuple[SavedTensor, ...]
    by: tuple[str, ...]  # the inputs with a gradient, in the order of the backward's results
    without: tuple[tuple[str, str], ...] = ()  # tensors without a gradient, and why
    autograd_bytes: int | None = None  # saved by PyTorch's autograd; None: unknown

    @property
    def saved_bytes(self) -> int:
        return sum(one.bytes for one in self.saved)


# -- values of inputs --


@dataclass(frozen=True)
class NormalValues:
    LEFT_OUT: ClassVar[tuple[str, ...]] = ("part",)  # keeps the hashes of older tasks

    mean: float = 0.0
    deviation: float = 1.0
    part: Part = Part.WHOLE


@dataclass(frozen=True)
class UniformValues:
    LEFT_OUT: ClassVar[tuple[str, ...]] = ("part",)

    low: float = 0.0
    high: float = 1.0
    part: Part = Part.WHOLE


# For floats without given values, if the reference does not accept negative ones.
BETWEEN_0_AND_1 = UniformValues(0.01, 0.99)


@dataclass(frozen=True)
class IntegerValues:
    """Integers from `low` up to `high`, exclusive; for a bool tensor 0 and 1."""

    low: int
    high: int


@dataclass(frozen=True)
class IndexValues:
    """Indices into the named dimension."""

    dimension: str


Values = NormalValues | UniformValues | IntegerValues | IndexValues


@dataclass(frozen=True)
class Dimension:
    """One dimension of the task. A kernel should take all sizes of a dynamic dimension, and is verified at some.

    A dimension with a formula is computed from others, and dynamic if one of them is.
    """

    LEFT_OUT: ClassVar[tuple[str, ...]] = ("formula", "at_least", "at_most", "branches", "unless")

    name: str
    size: int
    varies: bool = True
    multiple_of: int = 1  # of every size it takes
    formula: SizeFormula | None = None
    at_least: int = 1  # the reference refuses less, such as an image smaller than its filter
    at_most: int | None = None
    branches: bool = False  # the reference takes another branch at other sizes, so kernel files must decline them
    # `at_least` does not apply if one of these is above its own least (`Task.least_of`), as in batch * cols > 1.
    unless: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.formula is not None and (self.multiple_of, self.at_least, self.at_most) != (1, 1, None):
            raise ValueError(f"dimension {self.name} has a formula; give multiples and bounds to the dimensions in it")
        if self.at_most is not None and self.size > self.at_most:
            raise ValueError(f"dimension {self.name}: {self.size} is not a size of at most {self.at_most}")
        if self.at_least < 1 or (self.at_least > 1 and self.size < self.at_least):
            raise ValueError(f"dimension {self.name}: {self.size} is not a size of at least {self.at_least}")
        if self.size < 0 or self.multiple_of < 1 or self.size % self.multiple_of:
            raise ValueError(
                f"dimension {self.name}: {self.size} is not a size that is a multiple of {self.multiple_of}"
            )

    def takes(self, size: int) -> bool:
        """Whether the size is allowed."""
        if not self.varies:
            return size == self.size
        within = self.at_least <= size and (self.at_most is None or size <= self.at_most)
        return within and size % self.multiple_of == 0

    def permitted(self, size: int) -> int:
        """The next allowed size, or the largest one if that is smaller."""
        unit = self.multiple_of
        wanted = -(-max(size, self.at_least) // unit) * unit
        return wanted if self.at_most is None else min(wanted, self.at_most // unit * unit)


class Layout(str, Enum):
    """The memory layout of a tensor, besides the order of its dimensions."""

    DENSE = "dense"
    PADDED = "padded rows"  # 16 elements between rows
    ODD = "rows at odd places"  # 3 elements between rows
    SPREAD = "every other element"
    UNALIGNED = "unaligned"  # dense, aligned only to the element size


@dataclass(frozen=True)
class TensorInput:
    LEFT_OUT: ClassVar[tuple[str, ...]] = ("layout",)  # keeps the hashes of older tasks

    name: str
    dtype: DType
    dimensions: tuple[str, ...]
    values: Values = field(default_factory=NormalValues)
    memory_order: tuple[int, ...] = ()  # dimensions from the outermost in memory to the innermost; (): row-major
    in_place: bool = False  # the op changes it
    optional: bool = False
    parameter: bool = False  # a module's weight, the same over many calls
    layout: Layout = Layout.DENSE


@dataclass(frozen=True)
class NumberBounds:
    """The range in which the reference takes the same branch as at the task's own value; None: unbounded."""

    low: int | float | None = None
    high: int | float | None = None
    low_excluded: bool = False
    high_excluded: bool = False
    branches: bool = True  # outside, the reference takes another branch, so files must decline; else it raises

    def holds(self, value: float) -> bool:
        above = self.low is None or value > self.low or (value == self.low and not self.low_excluded)
        return above and (self.high is None or value < self.high or (value == self.high and not self.high_excluded))

    def conditions(self, name: str) -> tuple[str, ...]:
        """The bounds as conditions of a kernel file."""
        if self.low is not None and self.low == self.high:
            return (f"{name} == {self.low!r}",)
        low = () if self.low is None else (f"{name} {'>' if self.low_excluded else '>='} {self.low!r}",)
        high = () if self.high is None else (f"{name} {'<' if self.high_excluded else '<='} {self.high!r}",)
        return (*low, *high)


@dataclass(frozen=True)
class NumberInput:
    """A scalar argument with its value."""

    LEFT_OUT: ClassVar[tuple[str, ...]] = ("bounds",)  # keeps the hashes of older tasks

    name: str
    type: ScalarType
    value: int | float | bool
    default: bool = True  # whether the value is the function's default
    bounds: NumberBounds | None = None

    def takes(self, value: float) -> bool:
        """Whether a kernel must be right for this value too."""
        return self.bounds is None or self.bounds.holds(value)


TaskInput = TensorInput | NumberInput


@dataclass(frozen=True)
class TaskOutput:
    """A result of the reference; each size is a dimension's name or a number."""

    name: str
    dtype: DType
    shape: tuple[str | int, ...]


class Precision(str, Enum):
    """The arithmetic that a kernel may use, and that its baselines use. Sums of 16-bit inputs are always in f32."""

    DTYPE = "dtype"  # PyTorch's default: TF32 for f32 convolutions, true f32 for other f32 work
    DEFAULT_F32 = "default-f32"  # the same, for a task whose convolutions PyTorch computes in true f32
    STRICT = "strict"  # true f32, convolutions too
    TF32 = "tf32"  # all f32 products may be rounded to TF32
    HALF = "half"  # f32 work may be done in 16 bits

    @property
    def words(self) -> str:
        """A description for users."""
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
        """Whether a kernel may round operands of all f32 products to TF32 or less."""
        return self in (Precision.TF32, Precision.HALF)

    @property
    def rounds_convolutions(self) -> bool:
        """Whether a kernel may round operands of f32 convolutions to TF32."""
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
    """The kind of workload, which selects advice."""

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
    """Defines what a kernel computes and what is required of it. `reference` is Python source that defines `function`.

    The function takes the inputs by name, returns the outputs (a tuple of several) and changes `in_place` inputs. It
    runs only in a restricted child process.
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
    degenerate: str = ""  # why the task is degenerate; it is then left out of statistics
    derivative: Derivative | None = None  # of a backward task
    # Inputs, with their ranks, whose first dimension may be any number of leading dimensions: the reference accepts
    # that and computes each row alike.
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
            raise ValueError(f"task {self.name}: there is no dimension {min(used - known)}")
        if self.dimensions != following(self.dimensions):
            wrong = next(a for a, b in zip(self.dimensions, following(self.dimensions), strict=True) if a != b)
            raise ValueError(f"task {self.name}: {wrong.name} is not {wrong.formula}")
        if self.gpu not in PROFILES:
            raise ValueError(f"task {self.name}: {self.gpu!r} is no known GPU; known: {', '.join(PROFILES)}")

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
        """The task's own size of every dimension."""
        return {dimension.name: dimension.size for dimension in self.dimensions}

    @property
    def free(self) -> tuple[Dimension, ...]:
        """The dimensions without a formula."""
        return tuple(one for one in self.dimensions if one.formula is None)

    def complete(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """The size of every dimension, computed from those of the free ones."""
        return {one.name: sizes[one.name] if one.formula is None else one.formula.at(sizes) for one in self.dimensions}

    def agrees(self, sizes: Mapping[str, int]) -> bool:
        """Whether sizes of some or all dimensions are consistent with the formulas."""
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
        """Whether all sizes are within their bounds."""
        return all(
            self._least(one, sizes) <= sizes[one.name] and (one.at_most is None or sizes[one.name] <= one.at_most)
            for one in self.dimensions
            if one.varies or one.formula is not None
        )

    def _least(self, dimension: Dimension, sizes: Mapping[str, int]) -> int:
        others = (one for one in self.dimensions if one.name in dimension.unless)
        return 1 if any(sizes[one.name] > self.least_of(one) for one in others) else dimension.at_least

    def least_of(self, dimension: Dimension) -> int:
        """The least size of a free dimension, with its multiple and the formulas over it taken into account."""
        return max(dimension.at_least, self._least_by_formulas(dimension))

    def least_words(self, dimension: Dimension) -> str:
        """`at least 5`, `at least 2 where batch is 1`; "" if a free dimension may be 1, or its multiple."""
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
        """The tensor inputs at the given sizes, or at the task's own, without optional ones."""
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
        """The inputs in order, as arguments of `kernel_file.evaluate`."""
        specs = self.specs(sizes)
        return {one.name: one.value if isinstance(one, NumberInput) else specs.get(one.name) for one in self.inputs}

    @property
    def moved_bytes(self) -> int:
        """The fewest bytes a kernel can move: inputs read once, outputs written once.

        Tensors changed in place count once, because they may be overwritten unread.
        """
        moved = sum(spec.storage_bytes for spec in self.specs().values())
        return moved + sum(spec.storage_bytes for spec in self.output_specs().values())

    @property
    def hash(self) -> str:
        """The identity of the task, independent of how it was requested."""
        same = replace(self, words="", assumptions=(), derivative=None, leading=())
        plain = to_json(replace(same, origin=Origin.FUNCTION, kind=Kind.OTHER, degenerate=""))
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:20]


def following(dimensions: tuple[Dimension, ...]) -> tuple[Dimension, ...]:
    """The dimensions with the sizes given by formulas, and whether those are dynamic, computed.

    Raises `ValueError` if a formula names an unknown dimension or one with a formula.
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
                wrong = f"{name} has a formula itself" if known else f"there is no dimension {name}"
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
    order = one.memory_order or tuple(range(len(shape)))
    step = 2 if one.layout is Layout.SPREAD else 1
    return replace(plain, stride=strides_in(shape, order, _PADDING.get(one.layout, 0), step))


_PADDING = {Layout.PADDED: 16, Layout.ODD: 3}
