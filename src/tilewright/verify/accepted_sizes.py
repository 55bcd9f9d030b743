"""Sizes that a file accepts, found by evaluating its plan; nothing is built or run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace

from tilewright.kernel_file.supported_sizes import further_sizes
from tilewright.records import Case, Dimension, Task
from tilewright.verify.case_sizes import BASE, sizes_of
from tilewright.verify.case_work import MOST_BYTES, MOST_WORK, Sizes, bytes_of, is_small, work_estimate

Accepts = Callable[[Sizes], bool]
Path = Callable[[Sizes], Hashable]  # identifies the plan's code path at these sizes; None where it declines them

_EXTRA_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
_STEPS = (3, 5, 6, 7, 12, 20, 24, 40, 48, 72, 80, 96, 100, 160, 192, 320, 384, 640, 768, 1536, 3072)
_PAIRED = (16, 40, 64, 128, 160, 256, 512, 1000)  # sizes of two dimensions at once
_MOST_PAIRS = 6  # of the largest dimensions
_MOST_PATHS = 8  # of one dimension
_UNITS = (2, 4, 8, 16, 32, 64, 128, 256)  # usual divisors in `need` lines
_MOST_COMBINED = 8000  # combinations of sizes considered
_MOST_TRIED = 4000  # and evaluated


def accepted_sizes(task: Task, accepts: Accepts, count: int = 3) -> tuple[Sizes, ...]:
    """The smallest sizes that the file accepts and that are small enough to emulate."""
    found: list[Sizes] = []
    for sizes in itertools.islice(_by_work(task, MOST_WORK), _MOST_TRIED):
        if accepts(sizes):
            found.append(sizes)
            if len(found) == count:
                break
    return tuple(found)


def nearest_accepted(task: Task, case: Case, accepts: Accepts) -> Case | None:
    """The case at nearby sizes that the file accepts; None where there are none.

    Varying sizes are rounded up to a common multiple, and the longest is halved until it is affordable.
    """
    varying = [one for one in task.free if one.varies]
    for unit in _UNITS:
        chosen = {one.name: one.permitted(_multiple(case.sizes[one.name], unit)) for one in varying}
        sizes = task.complete({**case.sizes, **chosen})
        while not is_small(task, sizes, MOST_WORK):
            longest = max(varying, key=lambda one: sizes[one.name])
            half = longest.permitted(_multiple(sizes[longest.name] // 2, unit))
            if half >= sizes[longest.name]:
                break
            sizes = task.complete({**sizes, longest.name: half})
        if task.is_sound(sizes) and is_small(task, sizes, MOST_WORK) and accepts(sizes):
            return replace(case, sizes=sizes)
    return None


def _multiple(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def branch_sizes(task: Task, path: Path) -> Iterator[Sizes]:
    """For each dimension, with the others small: both sides of every size at which the plan changes its code path.

    Nothing where every size has a path of its own.
    """
    base = sizes_of(task, BASE)
    for one in task.free if base is not None else ():
        assert base is not None
        at = {size: task.complete({**base, one.name: size}) for size in _stepped(one)} if one.varies else {}
        tried = [size for size, sizes in at.items() if task.is_sound(sizes)]
        ways = {size: path(at[size]) for size in tried}
        if not 1 < len(set(ways.values())) <= _MOST_PATHS:
            continue
        found: dict[int, None] = {}
        for low, high in itertools.pairwise(tried):
            if ways[low] != ways[high]:
                found.update(dict.fromkeys(_turn(task, base, one, path, low, high)))
        for size in found:
            sizes = task.complete({**base, one.name: size})
            if path(sizes) is not None and task.is_sound(sizes) and is_small(task, sizes):
                yield sizes


def branch_pair_sizes(task: Task, path: Path) -> Iterator[Sizes]:
    """The smallest sizes of every code path that needs two large dimensions at once.

    Nothing where every size has a path of its own.
    """
    base = sizes_of(task, BASE)
    varying = [one for one in task.free if one.varies] if base is not None else []
    pairs = sorted(itertools.combinations(varying, 2), key=lambda pair: -pair[0].size * pair[1].size)
    work = work_estimate(task)
    for pair in pairs[:_MOST_PAIRS]:
        assert base is not None
        steps = [sorted({base[one.name], *(one.permitted(size) for size in _PAIRED)}) for one in pair]
        names = [one.name for one in pair]
        tried = (task.complete({**base, **dict(zip(names, one, strict=True))}) for one in itertools.product(*steps))
        small = sorted((one for one in tried if task.is_sound(one) and is_small(task, one)), key=work)
        found = [(path(sizes), sizes) for sizes in small]
        alone = {one for one, sizes in found if any(sizes[name] == base[name] for name in names)}
        ways: dict[Hashable, Sizes] = {}
        for one, sizes in found:
            ways.setdefault(one, sizes)
        if len(ways) <= _MOST_PATHS:
            yield from (sizes for one, sizes in ways.items() if one is not None and one not in alone)


def _turn(task: Task, base: Sizes, one: Dimension, path: Path, low: int, high: int) -> tuple[int, int]:
    """The last size on the path of the lower one, and the next, if there is a single change between them."""
    first = path(task.complete({**base, one.name: low}))
    while low < (middle := one.permitted((low + high) // 2)) < high:
        same = path(task.complete({**base, one.name: middle})) == first
        low, high = (middle, high) if same else (low, middle)
    return low, high


def _stepped(dimension: Dimension) -> list[int]:
    steps = {dimension.permitted(size) for size in (*_EXTRA_SIZES, *_STEPS)}
    return sorted({*further_sizes(dimension), *steps, dimension.size})


def _by_work(task: Task, most_work: int) -> Iterator[Sizes]:
    names = [one.name for one in task.free]
    chosen = itertools.product(*_thinned([_choices(one) for one in task.free]))
    completed = (task.complete(dict(zip(names, one, strict=True))) for one in chosen)
    work = work_estimate(task)
    light = (sizes for sizes in completed if work(sizes) <= most_work and task.is_sound(sizes))
    return iter(sorted((sizes for sizes in light if bytes_of(task, sizes) <= MOST_BYTES), key=work))


def _thinned(choices: list[list[int]]) -> list[list[int]]:
    """Drop small sizes, except the smallest, from the longest lists until there are few enough combinations. Files that
    do not accept every size accept multiples of a tile."""
    while math.prod(map(len, choices)) > _MOST_COMBINED:
        max(reversed(choices), key=len).pop(1)
    return choices


def _choices(dimension: Dimension) -> list[int]:
    if not dimension.varies:
        return [dimension.size]
    multiples = {dimension.permitted(size) for size in _EXTRA_SIZES if size <= max(dimension.size, 256)}
    return sorted(multiples | {dimension.size})
