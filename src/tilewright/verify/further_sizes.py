"""Sizes between small ones and the task's own, for cases that are run because of what they cover."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator

from tilewright.records import Task
from tilewright.verify.case_sizes import BASE, is_filter, permitted, sizes_of
from tilewright.verify.case_work import Sizes, bytes_of, work_estimate

_MOST_WORK = 100_000_000
_MOST_BYTES = 36 << 20
_MOST_DIMENSIONS = 6  # whose sizes are combined
_PARTS = (1, 4, 16)  # of its own size that a dimension may be at

Constants = Callable[[Sizes], frozenset[Hashable]]


def further_sizes(task: Task, constants: Constants) -> Iterator[Sizes]:
    """Affordable sizes, each dimension at its own size, at parts of it, or small: in turn those nearest to the task's
    own, and those whose code is, where sizes are written into it."""
    found = sorted(_affordable(task), key=lambda one: one[0])
    seen: set[tuple[tuple[str, int], ...]] = set()
    for sizes in _in_turn(_largest(found), _alike(task, found, constants)):
        if tuple(sizes.items()) not in seen:
            seen.add(tuple(sizes.items()))
            yield sizes


def _affordable(task: Task) -> Iterator[tuple[float, Sizes]]:
    """With how far each is from the task's own sizes. Filters keep theirs."""
    base = sizes_of(task, BASE)
    results = {axis for one in task.outputs for axis in one.shape}
    varying = [one for one in task.free if one.varies and not is_filter(one, results)]
    if base is None or len(varying) > _MOST_DIMENSIONS:
        return
    base |= {one.name: one.size for one in task.free if is_filter(one, results)}
    choices = [
        sorted({base[one.name], *(permitted(one, max(one.size // part, 1)) for part in _PARTS)} - {0})
        for one in varying
    ]
    work = work_estimate(task)
    for chosen in itertools.product(*choices):
        sizes = task.complete({**base, **dict(zip((one.name for one in varying), chosen, strict=True))})
        if work(sizes) <= _MOST_WORK and task.is_sound(sizes) and bytes_of(task, sizes) <= _MOST_BYTES:
            away = sum(abs(math.log(size / one.size)) for one, size in zip(varying, chosen, strict=True) if one.size)
            yield away, sizes


def _largest(found: Iterable[tuple[float, Sizes]]) -> Iterator[Sizes]:
    """Those that no earlier one has at least as large in every way."""
    kept: list[Sizes] = []
    for _, sizes in found:
        if not any(all(sizes[name] <= other[name] for name in sizes) for other in kept):
            kept.append(sizes)
            yield sizes


def _alike(task: Task, found: Iterable[tuple[float, Sizes]], constants: Constants) -> Iterator[Sizes]:
    """Those whose code has most of the own call's constants first."""
    own = constants(task.sizes)
    if own:
        yield from (sizes for _, sizes in sorted(found, key=lambda one: (len(own - constants(one[1])), one[0])))


def _in_turn(first: Iterator[Sizes], second: Iterator[Sizes]) -> Iterator[Sizes]:
    for pair in itertools.zip_longest(first, second):
        yield from (one for one in pair if one is not None)
