"""How much a call takes, estimated from its sizes alone, and what is small enough to emulate."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from tilewright.records import BETWEEN_0_AND_1, Dimension, DType, Task, TensorInput, TensorSpec
from tilewright.verify.float_values import Floats

Sizes = dict[str, int]

SMALL_WORK = 1_000_000  # product of all free dimensions, roughly the steps of the innermost loop
OWN_WORK = 1_200_000  # at the task's own sizes
MOST_WORK = 4_000_000  # at sizes searched because a file accepts no smaller ones
MOST_BYTES = 32 << 20  # of all tensors of one emulated call


def work_of(task: Task, sizes: Mapping[str, int]) -> int:
    """Estimated work: the product of the free dimensions, which is the number of inner loop steps of a matmul.

    For a chain of layers, whose dimensions are unrelated, it is the sum over the inputs.
    """
    return work_estimate(task)(sizes)


def work_estimate(task: Task) -> Callable[[Mapping[str, int]], int]:
    """`work_of` as a function of the sizes."""
    free, layers = [one.name for one in task.free], _layers(task)

    def estimate(sizes: Mapping[str, int]) -> int:
        def product(names: Iterable[str]) -> int:
            return math.prod(max(sizes[name], 1) for name in names)

        chain = sum(product(elements) * max(map(product, repeats), default=1) for elements, repeats in layers)
        # A square tensor has one dimension but is larger than it.
        largest = max((product(one.dimensions) for one in task.tensors), default=1)
        return max(min(product(free), chain), largest)

    return estimate


def _layers(task: Task) -> list[tuple[list[str], list[list[str]]]]:
    """The axes of every input's elements, and for each output the axes along which each element is reused.

    Reuse axes are those that the input lacks and that come from the first input, or from one that shares an axis with
    it. Reduced axes of the first input alone, such as the pixels of an image that is convolved and then pooled, count
    for all other inputs.
    """
    origin = {one.name: _origin(task, one) for one in task.dimensions}
    axes = [frozenset(origin[name] for name in one.dimensions) for one in task.tensors]
    shapes = [[axis for axis in one.shape if isinstance(axis, str)] for one in task.outputs]
    elsewhere = {*itertools.chain(*axes[1:]), *(origin[axis] for shape in shapes for axis in shape)}
    made = []
    for position, (tensor, own) in enumerate(zip(task.tensors, axes, strict=True)):
        known = axes[0].union(*(other for other in axes if other & own)) - own
        summed = [name for name in task.tensors[0].dimensions if position and origin[name] not in elsewhere]
        repeats = [[axis for axis in shape if origin[axis] in known] for shape in shapes]
        made.append(([*tensor.dimensions, *summed], repeats))
    return made


def _origin(task: Task, dimension: Dimension) -> tuple[str, ...]:
    """The dimension itself, or the one that most of its size comes from: of an image and its filter, the image."""
    if dimension.formula is None or not dimension.formula.terms:
        return (dimension.name,)
    own = task.sizes
    largest = max(dimension.formula.terms, key=lambda one: one.coefficient * math.prod(own[name] for name in one.names))
    return largest.names


def bytes_of(task: Task, sizes: Mapping[str, int]) -> int:
    specs = (*task.specs(sizes).values(), *task.output_specs(sizes).values())
    return sum(spec.storage_bytes for spec in specs)


def elements_of(task: Task, sizes: Mapping[str, int]) -> int:
    """Elements of all inputs and results."""
    return sum(spec.numel for spec in (*task.specs(sizes).values(), *task.output_specs(sizes).values()))


def is_small(task: Task, sizes: Mapping[str, int], most_work: int = SMALL_WORK) -> bool:
    return work_of(task, sizes) <= most_work and bytes_of(task, sizes) <= MOST_BYTES


# -- numbers at the ends of a domain, and beyond them: --

EDGES, OUTSIDE = "edges", "outside"
BOTH, LOWER, UPPER = "0 and 1", "0", "1"  # ends that the reference takes, in a kind of values that says so of a tensor
ANYWHERE = "below 0 or above 1"

_SHARE = 0.25  # of the elements of an ordinary row that are at the ends, or beyond them
_BEYOND = (-0.5, -2.0, -1e-3, 1.5, -30.0, 4.0)
# Distances from an end that a type still tells apart from it, of few bits, so that no rounding reaches the end itself.
_NEAR_0 = {DType.F16: (2.0**-7, 2.0**-12), DType.F8E4M3: (2.0**-5,), DType.F8E5M2: (2.0**-5, 2.0**-12)}
_NEAR_0_OTHERWISE = (2.0**-7, 2.0**-24, 2.0**-60)
_NEAR_1 = {
    DType.F32: (2.0**-8, 2.0**-20),
    DType.F64: (2.0**-8, 2.0**-20),
    DType.F16: (2.0**-8,),
    DType.BF16: (2.0**-7,),
}

_Generator = np.random.Generator
_Row = Callable[[_Generator, int, "_Ends"], Floats]


class _Ends:
    """The ends of a domain that count, and numbers beside them; an ordinary number takes the place of one that does
    not."""

    def __init__(self, level: str, dtype: DType) -> None:
        self.low = 0.0 if level in (BOTH, LOWER) else 0.25
        self.high = 1.0 if level in (BOTH, UPPER) else 0.75
        near = _NEAR_0.get(dtype, _NEAR_0_OTHERWISE) if level in (BOTH, LOWER) else ()
        below = _NEAR_1.get(dtype, ()) if level in (BOTH, UPPER) else ()
        self.beside = (*near, *(1.0 - one for one in below))


def bounded(one: TensorInput) -> bool:
    """Whether a tensor holds what stands for the numbers between 0 and 1."""
    return one.values == BETWEEN_0_AND_1 and one.dtype.is_float and not one.optional


def edge_values(generator: _Generator, spec: TensorSpec, level: str, number: int) -> Floats:
    """Rows with a 1 among zeros, some numbers at the ends, zeros, numbers beside the ends, ones, and both ends in turn.
    Of one dimension, pieces of it. `number` is the tensor's, so that rows of two tensors meet in other pairs."""
    ends = _Ends(level, spec.dtype)
    return _by_rows(spec, lambda row, width: _ROWS[(row + 2 * number) % len(_ROWS)](generator, width, ends))


def values_outside(generator: _Generator, spec: TensorSpec) -> Floats:
    """Some elements of every row below 0 or above 1."""
    values = _ordinary(generator, spec.numel)
    return np.where(generator.random(spec.numel) < _SHARE, generator.choice(_BEYOND, spec.numel), values)


def _by_rows(spec: TensorSpec, row: Callable[[int, int], Floats]) -> Floats:
    if len(spec.shape) < 2:
        pieces = np.array_split(np.arange(spec.numel), len(_ROWS))
        return np.concatenate([row(number, len(piece)) for number, piece in enumerate(pieces)])
    width = spec.shape[-1]
    return np.concatenate([row(number, width) for number in range(spec.numel // max(width, 1))])


def _ordinary(generator: _Generator, width: int) -> Floats:
    low, high = BETWEEN_0_AND_1.low, BETWEEN_0_AND_1.high
    return generator.uniform(low, high, width)


def _one_among_zeros(generator: _Generator, width: int, ends: _Ends) -> Floats:
    values = np.full(width, ends.low)
    if width:
        values[generator.integers(0, width)] = ends.high
    return values


def _some(generator: _Generator, width: int, ends: _Ends) -> Floats:
    at = generator.choice((ends.low, ends.high), width)
    return np.where(generator.random(width) < _SHARE, at, _ordinary(generator, width))


def _beside(generator: _Generator, width: int, ends: _Ends) -> Floats:
    """Half of them ordinary: what is tiny is judged beside what is not."""
    near = generator.choice(ends.beside or (0.5,), width)
    return np.where(generator.random(width) < 0.5, near, _ordinary(generator, width))


_ROWS: tuple[_Row, ...] = (
    _one_among_zeros,
    _some,
    lambda generator, width, ends: np.full(width, ends.low),
    _beside,
    lambda generator, width, ends: np.full(width, ends.high),
    lambda generator, width, ends: generator.choice((ends.low, ends.high), width),
)
