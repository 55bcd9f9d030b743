"""Sizes inside a task's domain: those wanted of each dimension, rounded to what it permits and cut down until small.

Dimensions that the task fixes keep their size. Sizes that follow from others are never chosen.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from tilewright.records import Case, Dimension, SizeFormula, Task
from tilewright.verify.case_work import Sizes, is_small

_LONG_WORK = 400_000  # of a case with one more dimension at its own size
_TILED = 3  # dimensions, of which two tiles each way are affordable together
_LONG = 512  # a size
_FEW_PLACES = 16  # a dimension that is summed up, with no more than these, keeps them in most cases: filters
_WIDEST = 4  # times the own size of the innermost dimension
_FEW_LEFT = 3  # places of a filter in its image
_MOST_WIDENED = 1000


@dataclass(frozen=True)
class Shape:
    """Wanted sizes: of the innermost varying dimension of the largest tensor, and of the others in turn."""

    inner: int | None  # None: the task's own
    others: tuple[int, ...]
    as_small: bool = False  # dimensions of few places take the sizes of the others too


SMALLEST = Shape(5, (2, 3, 2), as_small=True)
BASE = Shape(6, (3, 10, 2))  # what one dimension is made long beside


def inner_dimension(task: Task) -> str | None:
    """The varying dimension that is innermost in the largest tensor: the one that most kernels specialise for."""
    largest = sorted(task.tensors, key=lambda one: -math.prod(task.sizes[name] for name in one.dimensions))
    varying = {one.name for one in task.free if one.varies}
    formulas = {one.name: one.formula for one in task.dimensions if one.formula is not None}
    varying = varying - _taken_off(formulas.values()) or varying
    for tensor in largest:
        for name in reversed(tensor.dimensions):
            for source in reversed(formulas[name].names if name in formulas else (name,)):
                if source in varying:
                    return source
    return next(iter(sorted(varying)), None)


def sizes_of(task: Task, shape: Shape) -> Sizes | None:
    """The wanted sizes, rounded to what dimensions permit and cut down until they are small."""
    inner = inner_dimension(task)
    if inner is None:
        return None
    wanted: Sizes = {}
    others = itertools.cycle(shape.others)
    taken_off = _taken_off(one.formula for one in task.dimensions if one.formula is not None)
    results = {axis for one in task.outputs for axis in one.shape}
    for one in task.free:
        if not one.varies:
            wanted[one.name] = one.size
        elif one.name == inner:
            wanted[one.name] = one.size if shape.inner is None else permitted(one, shape.inner)
        else:
            # A filter is no larger than the task's own: what matters of it is how it lies in its image.
            size = next(others)
            size = min(size, one.size) if one.name in taken_off else size
            kept = is_filter(one, results) and not shape.as_small
            wanted[one.name] = one.size if kept else permitted(one, size)
    wanted = _with_room(task, task.complete(wanted), min(_FEW_LEFT, max(shape.others)))
    return _cut_down(task, wanted, keep=inner if shape.inner is None else None)


def long_sizes(task: Task) -> Iterator[Sizes]:
    """Two tiles each way; filters above their own size; the innermost dimension a little above its own, and far above
    it; the longest of the others a little above its own, and the rest at theirs, one after another, those together that
    are affordable together. Not all of them need be affordable."""
    inner = inner_dimension(task)
    base = sizes_of(task, BASE)
    if inner is None or base is None:
        return
    free = {one.name: one for one in task.free if one.varies}
    results = {axis for one in task.outputs for axis in one.shape}
    if len(free) <= _TILED:
        yield task.complete({**base, **{name: permitted(one, 64) for name, one in free.items()}})
    elif len(pair := _innermost(task, inner)) > 1:
        wanted = {name: permitted(free[name], 37 - 2 * number) for number, name in enumerate(pair)}
        thin = sizes_of(task, Shape(6, (1, 2, 2)))
        yield _with_room(task, task.complete({**(thin or base), **wanted}), 2)
    longest_other = max((name for name in free if name != inner), key=lambda name: free[name].size, default=None)
    if len(free) <= _TILED:
        tiles = {name: permitted(one, 130 if name in results else 40) for name, one in free.items()}
        yield task.complete({**base, **tiles})
    wider = {name: one.size + 2 for name, one in free.items() if is_filter(one, results)}
    if wider:
        yield _with_room(
            task, task.complete({**base, **{name: permitted(free[name], wider[name]) for name in wider}}), 2
        )
    yield _stretched(task, base, free[inner], _round(free[inner], free[inner].size + 1))
    for one in free.values():
        if one.branches and one.at_most is not None:  # next to where the reference goes another way
            yield _stretched(task, base, one, one.at_most)
        if one.unless:  # less than its least, which the others make up for
            yield task.complete({**base, one.name: one.multiple_of})
    for few in (5, 1):
        beside = {name: permitted(one, few if name == longest_other else 1) for name, one in free.items()}
        wide = {**_fixed(task), **beside, inner: _round(free[inner], _WIDEST * free[inner].size)}
        if task.is_sound(sizes := task.complete(wide)) and is_small(task, sizes, _LONG_WORK):
            yield sizes
            break
    left = sorted((name for name in free if name != inner and base[name] < free[name].size), key=lambda n: free[n].size)
    while left:
        longest = free[left.pop()]
        # The task's own call has the longest at its own size, and some blocks of that are judged too.
        size = _round(longest, longest.size + 1) if longest.name == longest_other else longest.size
        sizes = _stretched(task, base, longest, size)
        for name in tuple(reversed(left)):
            more = task.complete({**sizes, name: free[name].size})
            if task.is_sound(more) and is_small(task, more, _LONG_WORK):
                sizes = more
                left.remove(name)
        yield sizes


def _innermost(task: Task, inner: str) -> tuple[str, ...]:
    """The two innermost dimensions that vary of a tensor that has the innermost one: of an image, both."""
    varying = {one.name for one in task.free if one.varies}
    for tensor in task.tensors:
        names = [name for name in tensor.dimensions if name in varying]
        if inner in names:
            return tuple(names[-2:])
    return ()


def _fixed(task: Task) -> Sizes:
    return {one.name: one.size for one in task.free if not one.varies}


def is_filter(dimension: Dimension, results: Collection[str | int]) -> bool:
    """Whether few places are summed up along it."""
    return dimension.size <= _FEW_PLACES and dimension.name not in results


def _stretched(task: Task, base: Sizes, dimension: Dimension, size: int) -> Sizes:
    """The sizes with one dimension large and the others cut down until it is affordable, or else as large as may be."""
    stretched = _cut_down(task, task.complete({**base, dimension.name: size}), keep=dimension.name)
    if stretched is not None and task.is_sound(stretched):
        return stretched
    while (size := permitted(dimension, size // 2)) > base[dimension.name]:
        sizes = task.complete({**base, dimension.name: _round(dimension, size)})
        if task.is_sound(sizes) and is_small(task, sizes, _LONG_WORK):
            return sizes
    return base


def _round(dimension: Dimension, size: int) -> int:
    """The next size that is 2 modulo 4 and a multiple of 5, or that the dimension permits."""
    return permitted(dimension, size + (10 - size) % 20)


def _taken_off(formulas: Iterable[SizeFormula]) -> set[str]:
    """The dimensions by which others become smaller."""
    return {name for one in formulas for term in one.terms if term.coefficient < 0 for name in term.names}


def _with_room(task: Task, sizes: Sizes, least: int) -> Sizes:
    """The sizes with images so large that a few places are left beside their filters."""
    varying = {one.name: one.multiple_of for one in task.free if one.varies}
    for one in task.dimensions:
        if one.formula is None or (
            one.formula.constant >= 0 and one.formula.divisor == 1 and not _taken_off([one.formula])
        ):
            continue
        images = [term.names[0] for term in one.formula.terms if term.coefficient > 0 and term.names[0] in varying]
        for _ in range(_MOST_WIDENED if images else 0):
            if sizes[one.name] >= least:
                break
            sizes = task.complete({**sizes, images[0]: sizes[images[0]] + varying[images[0]]})
    return sizes


def permitted(dimension: Dimension, size: int) -> int:
    return dimension.permitted(size)


def _cut_down(task: Task, sizes: Sizes, keep: str | None) -> Sizes | None:
    """Sizes halved until they are small and nothing that follows from them is below 1; None where that cannot be."""
    while True:
        lacking = [one.formula for one in task.dimensions if one.formula is not None and sizes[one.name] < 1]
        if not lacking and is_small(task, sizes):
            return sizes
        # Of an image that is smaller than its filter, the filter gives way.
        taken_off = _taken_off(lacking)
        shrinkable = [
            one
            for one in task.free
            if one.varies
            and sizes[one.name] > permitted(one, 1)
            and (one.name in taken_off if lacking else one.name != keep)
        ]
        largest = max(shrinkable, key=lambda one: sizes[one.name], default=None)
        if largest is None:
            return None
        sizes = task.complete({**sizes, largest.name: permitted(largest, sizes[largest.name] // 2)})


def shorter(task: Task, case: Case) -> Case | None:
    """The case with its longest dimension an eighth as long; None where it is short already."""
    longest = max((one for one in task.free if one.varies), key=lambda one: case.sizes[one.name], default=None)
    if longest is None or case.sizes[longest.name] < _LONG:
        return None
    sizes = task.complete({**case.sizes, longest.name: permitted(longest, case.sizes[longest.name] // 8)})
    return replace(case, sizes={**case.sizes, **sizes}) if task.is_sound(sizes) else None


def has_own_size(task: Task, case: Case) -> bool:
    """Whether a long dimension that varies is at its own size or above."""
    return any(case.sizes[one.name] >= max(one.size, _LONG) for one in task.free if one.varies)
