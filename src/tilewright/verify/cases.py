"""The calls a kernel is judged by: small and odd sizes inside the task's domain, several kinds of values.

They follow from the task alone, cheapest first. Dimensions that the task fixes keep their size; the others take sizes
that kernels get wrong: one, primes, just below and above powers of two and usual tile sizes, and their own size while
the rest is small, because that is where a specialised path is taken.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tilewright.records import Case, Dimension, NormalValues, Task
from tilewright.verify.distributions import NUMBERS, TASK, has_float_numbers, has_varied_floats

Sizes = dict[str, int]

SMALL_WORK = 1_000_000  # product of all dimensions, roughly the steps of the innermost loop
OWN_WORK = 1_200_000  # at the task's own sizes
MOST_WORK = 4_000_000  # at sizes that are only looked for because a file takes no smaller ones
MOST_BYTES = 32 << 20  # of all tensors of one emulated call
_TINY_WORK = 4096
_EXTRA_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
_MOST_TRIED = 4000  # combinations of sizes that a file is asked about


@dataclass(frozen=True)
class _Shape:
    """Wanted sizes: of the innermost varying dimension of the largest tensor, and of the others in turn."""

    inner: int | None  # None: the task's own
    others: tuple[int, ...]
    values: tuple[str, ...]


_SHAPES = (
    _Shape(37, (3, 5, 2), (TASK, "impulse", "small", NUMBERS)),
    _Shape(1, (1,), (TASK,)),
    _Shape(129, (65, 17, 3), ("normal", "logarithmic")),
    _Shape(127, (2, 33, 3), ("offset",)),
    _Shape(257, (1, 7), ("wide",)),
    _Shape(None, (4, 3, 2), (TASK, "offset", "impulse")),
    _Shape(512, (33, 31, 2), ("normal",)),
)


def plan_cases(task: Task) -> tuple[Case, ...]:
    """The cases below the task's own sizes, cheapest first; empty where every dimension is fixed."""
    found: dict[tuple[tuple[tuple[str, int], ...], str], Case] = {}
    for shape in _SHAPES:
        sizes = _sizes(task, shape)
        if sizes is None:
            continue
        for values in shape.values:
            if _applies(task, values):
                key = (tuple(sizes.items()), _canonical(task, values))
                found.setdefault(key, Case(sizes, len(found) + 1, _canonical(task, values)))
    own = tuple(task.sizes.items())
    varied = [case for (sizes, _), case in found.items() if sizes != own]
    # Among tiny cases the odd ones come first: a fault says more in 37 elements than in one.
    return tuple(sorted(varied, key=lambda case: max(work_of(task, case.sizes), _TINY_WORK)))


def own_cases(task: Task) -> tuple[Case, ...]:
    """Cases at the task's own sizes; the task's own values first."""
    kinds = [TASK, *(one for one in ("normal", "impulse", "offset", "wide", NUMBERS) if _applies(task, one))]
    unique = dict.fromkeys(_canonical(task, one) for one in kinds)
    return tuple(Case(task.sizes, 101 + number, one) for number, one in enumerate(unique))


def work_of(task: Task, sizes: Mapping[str, int]) -> int:
    """An estimate of the work: the product of all dimensions, which is the steps of a matrix product's loops."""
    return math.prod(max(sizes[one.name], 1) for one in task.dimensions)


def bytes_of(task: Task, sizes: Mapping[str, int]) -> int:
    specs = (*task.specs(sizes).values(), *task.output_specs(sizes).values())
    return sum(spec.storage_bytes for spec in specs)


def is_small(task: Task, sizes: Mapping[str, int], most_work: int = SMALL_WORK) -> bool:
    return work_of(task, sizes) <= most_work and bytes_of(task, sizes) <= MOST_BYTES


def _applies(task: Task, values: str) -> bool:
    if values == NUMBERS:
        return has_float_numbers(task)
    return values == TASK or has_varied_floats(task)


def _canonical(task: Task, values: str) -> str:
    """`normal` is what most tasks say themselves."""
    plain = all(one.values == NormalValues() for one in task.tensors if one.dtype.is_float)
    return TASK if values == "normal" and plain else values


# -- sizes --


def inner_dimension(task: Task) -> str | None:
    """The varying dimension that is innermost in the largest tensor: the one that most kernels specialise for."""
    largest = sorted(task.tensors, key=lambda one: -math.prod(task.sizes[name] for name in one.dimensions))
    varying = {one.name for one in task.dimensions if one.varies}
    for tensor in largest:
        for name in reversed(tensor.dimensions):
            if name in varying:
                return name
    return next(iter(sorted(varying)), None)


def _sizes(task: Task, shape: _Shape) -> Sizes | None:
    """The wanted sizes, rounded to what dimensions permit and cut down until they are small."""
    inner = inner_dimension(task)
    if inner is None:
        return None
    wanted: Sizes = {}
    others = itertools.cycle(shape.others)
    for one in task.dimensions:
        if not one.varies:
            wanted[one.name] = one.size
        elif one.name == inner:
            wanted[one.name] = one.size if shape.inner is None else _permitted(one, shape.inner)
        else:
            wanted[one.name] = _permitted(one, next(others))
    return _cut_down(task, wanted, keep=inner if shape.inner is None else None)


def _permitted(dimension: Dimension, size: int) -> int:
    return -(-size // dimension.multiple_of) * dimension.multiple_of


def _cut_down(task: Task, sizes: Sizes, keep: str | None) -> Sizes | None:
    while not is_small(task, sizes):
        shrinkable = [one for one in task.dimensions if one.varies and one.name != keep]
        largest = max(shrinkable, key=lambda one: sizes[one.name], default=None)
        if largest is None or sizes[largest.name] <= largest.multiple_of:
            return None
        sizes = {**sizes, largest.name: _permitted(largest, sizes[largest.name] // 2)}
    return sizes


def accepted_sizes(
    task: Task, accepts: Callable[[Sizes], bool], most_work: int = MOST_WORK, count: int = 3
) -> tuple[Sizes, ...]:
    """Sizes small enough to emulate that the file takes: the smallest, and the next that differ in every way found."""
    found: list[Sizes] = []
    for sizes in itertools.islice(_by_work(task, most_work), _MOST_TRIED):
        if accepts(sizes):
            found.append(sizes)
            if len(found) == count:
                break
    return tuple(found)


def _by_work(task: Task, most_work: int) -> Iterator[Sizes]:
    names = [one.name for one in task.dimensions]
    choices = [_choices(one) for one in task.dimensions]
    everything = (dict(zip(names, one, strict=True)) for one in itertools.islice(itertools.product(*choices), 100_000))
    small = [sizes for sizes in everything if is_small(task, sizes, most_work)]
    return iter(sorted(small, key=lambda sizes: work_of(task, sizes)))


def _choices(dimension: Dimension) -> list[int]:
    if not dimension.varies:
        return [dimension.size]
    multiples = {_permitted(dimension, size) for size in _EXTRA_SIZES if size <= max(dimension.size, 256)}
    return sorted(multiples | {dimension.size})
