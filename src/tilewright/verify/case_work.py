"""How much a call takes, estimated from its sizes alone, and what is small enough to emulate."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping

from tilewright.records import Dimension, Task

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
    """The axes of every input's elements, and for each output the axes along which each element is reused. Reuse axes
    are those that the input lacks and that come from the first input, or from one that shares an axis with it. Reduced
    axes of the first input alone, such as the pixels of an image that is convolved and then pooled, count for all other
    inputs."""
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
