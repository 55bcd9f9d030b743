"""Sizes that a file takes: its plan says so, and nothing is built or run to find out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace

from tilewright.kernel_file.supported_sizes import further_sizes
from tilewright.records import Case, Dimension, Task
from tilewright.verify.case_sizes import BASE, permitted, sizes_of
from tilewright.verify.case_work import MOST_BYTES, MOST_WORK, Sizes, bytes_of, is_small, work_estimate

Accepts = Callable[[Sizes], bool]
Way = Callable[[Sizes], Hashable]  # what a plan does at these sizes, all but how often; None where it declines them

_EXTRA_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
_STEPS = (3, 5, 6, 7, 12, 20, 24, 40, 48, 72, 80, 96, 100, 160, 192, 320, 384, 640, 768, 1536, 3072)
_PAIRED = (16, 40, 64, 128, 160, 256, 512, 1000)  # of two dimensions at once
_MOST_PAIRS = 6  # of the largest dimensions
_MOST_WAYS = 8  # of one dimension
_UNITS = (2, 4, 8, 16, 32, 64, 128, 256)  # that needs are written with
_MOST_COMBINED = 8000  # combinations of sizes that are looked at
_MOST_TRIED = 4000  # and that a file is asked about


def accepted_sizes(task: Task, accepts: Accepts, count: int = 3) -> tuple[Sizes, ...]:
    """Sizes small enough to emulate that the file takes: the smallest, and the next that differ in every way found."""
    found: list[Sizes] = []
    for sizes in itertools.islice(_by_work(task, MOST_WORK), _MOST_TRIED):
        if accepts(sizes):
            found.append(sizes)
            if len(found) == count:
                break
    return tuple(found)


def within_need(task: Task, case: Case, accepts: Accepts) -> Case | None:
    """The case at sizes beside its own that the file takes: those that vary rounded up to a common multiple, and the
    longest halved until it is affordable. None where there are none."""
    varying = [one for one in task.free if one.varies]
    for unit in _UNITS:
        chosen = {one.name: permitted(one, _multiple(case.sizes[one.name], unit)) for one in varying}
        sizes = task.complete({**case.sizes, **chosen})
        while not is_small(task, sizes, MOST_WORK):
            longest = max(varying, key=lambda one: sizes[one.name])
            half = permitted(longest, _multiple(sizes[longest.name] // 2, unit))
            if half >= sizes[longest.name]:
                break
            sizes = task.complete({**sizes, longest.name: half})
        if task.is_sound(sizes) and is_small(task, sizes, MOST_WORK) and accepts(sizes):
            return replace(case, sizes=sizes)
    return None


def _multiple(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def turning_sizes(task: Task, way: Way) -> Iterator[Sizes]:
    """Along each dimension, the others small: sizes beside each other between which the plan turns to another way, or
    declines, and one of every way. Where every size has a way of its own nothing turns, and nothing is yielded."""
    base = sizes_of(task, BASE)
    for one in task.free if base is not None else ():
        assert base is not None
        at = {size: task.complete({**base, one.name: size}) for size in _stepped(one)} if one.varies else {}
        tried = [size for size, sizes in at.items() if task.is_sound(sizes)]
        ways = {size: way(at[size]) for size in tried}
        if not 1 < len(set(ways.values())) <= _MOST_WAYS:
            continue
        found: dict[int, None] = {}
        for low, high in itertools.pairwise(tried):
            if ways[low] != ways[high]:
                found.update(dict.fromkeys(_turn(task, base, one, way, low, high)))
        for size in found:
            sizes = task.complete({**base, one.name: size})
            if way(sizes) is not None and task.is_sound(sizes) and is_small(task, sizes):
                yield sizes


def paired_sizes(task: Task, way: Way) -> Iterator[Sizes]:
    """With two dimensions larger at once, the others small: of every way that the plan goes only there, the smallest
    sizes. Where every size has a way of its own, nothing."""
    base = sizes_of(task, BASE)
    varying = [one for one in task.free if one.varies] if base is not None else []
    pairs = sorted(itertools.combinations(varying, 2), key=lambda pair: -pair[0].size * pair[1].size)
    work = work_estimate(task)
    for pair in pairs[:_MOST_PAIRS]:
        assert base is not None
        steps = [sorted({base[one.name], *(permitted(one, size) for size in _PAIRED)}) for one in pair]
        names = [one.name for one in pair]
        tried = (task.complete({**base, **dict(zip(names, one, strict=True))}) for one in itertools.product(*steps))
        small = sorted((one for one in tried if task.is_sound(one) and is_small(task, one)), key=work)
        found = [(way(sizes), sizes) for sizes in small]
        alone = {one for one, sizes in found if any(sizes[name] == base[name] for name in names)}
        ways: dict[Hashable, Sizes] = {}
        for one, sizes in found:
            ways.setdefault(one, sizes)
        if len(ways) <= _MOST_WAYS:
            yield from (sizes for one, sizes in ways.items() if one is not None and one not in alone)


def _turn(task: Task, base: Sizes, one: Dimension, way: Way, low: int, high: int) -> tuple[int, int]:
    """The last size that goes the way of the lower one, and the next, if there is a single turn between them."""
    first = way(task.complete({**base, one.name: low}))
    while low < (middle := permitted(one, (low + high) // 2)) < high:
        same = way(task.complete({**base, one.name: middle})) == first
        low, high = (middle, high) if same else (low, middle)
    return low, high


def _stepped(dimension: Dimension) -> list[int]:
    """Sizes from small to large, multiples of what vectors and tiles are made of among them."""
    steps = {permitted(dimension, size) for size in (*_EXTRA_SIZES, *_STEPS)}
    return sorted({*further_sizes(dimension), *steps, dimension.size})


def _by_work(task: Task, most_work: int) -> Iterator[Sizes]:
    names = [one.name for one in task.free]
    chosen = itertools.product(*_thinned([_choices(one) for one in task.free]))
    completed = (task.complete(dict(zip(names, one, strict=True))) for one in chosen)
    work = work_estimate(task)
    light = (sizes for sizes in completed if work(sizes) <= most_work and task.is_sound(sizes))
    return iter(sorted((sizes for sizes in light if bytes_of(task, sizes) <= MOST_BYTES), key=work))


def _thinned(choices: list[list[int]]) -> list[list[int]]:
    """The sizes to combine, with the small ones but the least left out of the longest lists until they are few enough.

    Files that do not take every size take multiples of a tile's.
    """
    while math.prod(map(len, choices)) > _MOST_COMBINED:
        max(reversed(choices), key=len).pop(1)
    return choices


def _choices(dimension: Dimension) -> list[int]:
    if not dimension.varies:
        return [dimension.size]
    multiples = {permitted(dimension, size) for size in _EXTRA_SIZES if size <= max(dimension.size, 256)}
    return sorted(multiples | {dimension.size})
