"""Sizes inside a task's domain: the wanted ones, rounded to what dimensions permit and reduced until they are small.

Fixed dimensions keep their size; sizes that follow from others are computed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

from tilewright.records import Case, Dimension, SizeFormula, Task
from tilewright.verify.case_work import SMALL_WORK, Sizes, is_small

_LONG_WORK = 400_000  # of a case with one more dimension at its full size
_TILED = 3  # dimensions that can all have two tiles in one affordable case
_LONG = 512  # a size
_DRAWN_FROM = 24  # the least full size near which others are drawn
_SHORT = 64  # up to which larger ones than the full size are drawn too
_MOST_DRAWN = 5  # dimensions
_LEFT = ((1, 7), (5, 3))  # what the first two sizes of a long dimension leave of vectors of eight
_NEAR_WORK = 150_000  # of a case with one dimension near its own size
_TOGETHER_WORK = 600_000  # of a case with several large dimensions
_COUNTED = 300_000  # elements, of which a quarter may be counted
_COUNTED_FROM = 1024  # full size of what is counted
_FEW_PLACES = 16  # a reduced dimension up to this size is a filter and keeps its size in most cases
_WIDEST = 4  # times the full size of the innermost dimension
_FEW_LEFT = 3  # positions of a filter in its image
_MOST_WIDENED = 1000


@dataclass(frozen=True)
class Shape:
    """Wanted sizes: of the innermost varying dimension of the largest tensor, and of the others in turn."""

    inner: int | None  # None: its full size
    others: tuple[int, ...]
    as_small: bool = False  # filters are resized too


SMALLEST = Shape(5, (2, 3, 2), as_small=True)
BASE = Shape(6, (3, 10, 2))  # the other dimensions where one is long


def inner_dimension(task: Task) -> str | None:
    """The innermost varying dimension of the largest tensor, which most kernels specialise for."""
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
    """The wanted sizes, rounded to what dimensions permit and reduced until they are small."""
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
            wanted[one.name] = one.size if shape.inner is None else one.permitted(shape.inner)
        else:
            # A filter is no larger than the task's: what matters is its position in the image.
            size = next(others)
            size = min(size, one.size) if one.name in taken_off else size
            kept = is_filter(one, results) and not shape.as_small
            wanted[one.name] = one.size if kept else one.permitted(size)
    wanted = _with_room(task, task.complete(wanted), min(_FEW_LEFT, max(shape.others)))
    return _cut_down(task, wanted, keep=inner if shape.inner is None else None)


def long_sizes(task: Task) -> Iterator[Sizes]:
    """Sizes that exercise tiles and long loops; not all of them need be affordable.

    They are: two tiles each way; filters larger than the task's; the innermost dimension just above its full size, and
    far above it; the longest other dimension just above its full size; and the rest at full size, as many at once as
    are affordable.
    """
    inner = inner_dimension(task)
    base = sizes_of(task, BASE)
    if inner is None or base is None:
        return
    free = {one.name: one for one in task.free if one.varies}
    results = {axis for one in task.outputs for axis in one.shape}
    if len(free) <= _TILED:
        yield task.complete({**base, **{name: one.permitted(64) for name, one in free.items()}})
    elif len(pair := _innermost(task, inner)) > 1:
        wanted = {name: free[name].permitted(37 - 2 * number) for number, name in enumerate(pair)}
        thin = sizes_of(task, Shape(6, (1, 2, 2)))
        yield _with_room(task, task.complete({**(thin or base), **wanted}), 2)
    longest_other = max((name for name in free if name != inner), key=lambda name: free[name].size, default=None)
    if len(free) <= _TILED:
        tiles = {name: one.permitted(130 if name in results else 40) for name, one in free.items()}
        yield task.complete({**base, **tiles})
    wider = {name: one.size + 2 for name, one in free.items() if is_filter(one, results)}
    if wider:
        yield _with_room(
            task, task.complete({**base, **{name: free[name].permitted(wider[name]) for name in wider}}), 2
        )
    yield _stretched(task, base, free[inner], _round(free[inner], free[inner].size + 1))
    for one in free.values():
        if one.branches and one.at_most is not None:  # just before the reference takes another branch
            yield _stretched(task, base, one, one.at_most)
        if one.unless:  # below its minimum, which other sizes make up for
            yield task.complete({**base, one.name: one.multiple_of})
    for few in (5, 1):
        beside = {name: one.permitted(few if name == longest_other else 1) for name, one in free.items()}
        fixed = {one.name: one.size for one in task.free if not one.varies}
        wide = {**fixed, **beside, inner: _round(free[inner], _WIDEST * free[inner].size)}
        if task.is_sound(sizes := task.complete(wide)) and is_small(task, sizes, _LONG_WORK):
            yield sizes
            break
    left = sorted((name for name in free if name != inner and base[name] < free[name].size), key=lambda n: free[n].size)
    while left:
        longest = free[left.pop()]
        # The full-size call has the longest at exactly its size, and sampled blocks of it are judged too.
        size = _round(longest, longest.size + 1) if longest.name == longest_other else longest.size
        sizes = _stretched(task, base, longest, size)
        for name in tuple(reversed(left)):
            more = task.complete({**sizes, name: free[name].size})
            if task.is_sound(more) and is_small(task, more, _LONG_WORK):
                sizes = more
                left.remove(name)
        yield sizes


def sizes_near_own(task: Task, draw: Random) -> Iterator[Sizes]:
    """Sizes between the small ones and the full size, drawn anew for every kernel file.

    Each dimension in turn from half its full size up to that, short ones up to twice; the innermost and the longest
    other one between the small sizes and half of it too; the rest is small. Then pairs of dimensions, and all three of
    three, as large at once as is affordable. Long sizes leave both odd remainders of vectors of four.
    """
    base = sizes_of(task, BASE)
    if base is None:
        return
    results, inner = {axis for one in task.outputs for axis in one.shape}, inner_dimension(task)
    drawn = [one for one in task.free if one.varies and one.size >= _DRAWN_FROM and not is_filter(one, results)]
    drawn.sort(key=lambda one: (one.name != inner, -one.size))
    for number, one in enumerate(drawn[:_MOST_DRAWN]):
        near = 2 if not number and _SHORT < one.size <= 2 * _LONG else 1
        most = one.size if one.size > _SHORT else 2 * one.size
        wanted = [draw.randrange(one.size // 2, most) for _ in range(near)]
        if number < 2 and one.size > 2 * _LONG:
            low, high = math.log2(_LONG), math.log2(one.size / 2)
            ends = (high, low) if number else (high, (low + high) / 2, low)
            wanted += [int(2 ** draw.uniform(*pair)) for pair in itertools.pairwise(ends)]
        others = {other.name: other.permitted(draw.randint(1, 8)) for other in task.free if other.varies}
        left = draw.sample(draw.choice(_LEFT), 2)
        for place, size in enumerate(wanted):
            unit = 8 if place < 2 and len(wanted) > 1 else draw.choice((1, 4, 32))
            size = size // unit * unit + (left[place] if unit == 8 else 0)
            small = _with_room(task, task.complete({**base, **others}), _FEW_LEFT)
            yield _stretched(task, small, one, one.permitted(size), _NEAR_WORK)
    pairs = drawn if len(drawn) <= _TILED else draw.sample(drawn, len(drawn))
    for group in (pairs[:2], pairs[2:4], drawn if len(drawn) == _TILED else []):
        sizes = _together(task, base, group, draw) if len(group) > 1 else None
        if sizes is not None:
            yield sizes


def _together(task: Task, base: Sizes, group: Sequence[Dimension], draw: Random) -> Sizes | None:
    """Several dimensions at up to their full size at once, the longest cut first until it is affordable."""
    results = {axis for one in task.outputs for axis in one.shape}
    rest = [one for one in task.free if one.varies and one not in group and not is_filter(one, results)]
    kept = {**base, **{one.name: one.permitted(1) for one in rest}}
    wanted = {one.name: one.size * draw.uniform(0.6, 1.0) for one in group}
    left = {one.name: draw.choice((1, 3)) for one in group}
    while True:
        made = {one.name: one.permitted(int(wanted[one.name]) // 4 * 4 + left[one.name]) for one in group}
        sizes = _with_room(task, task.complete({**kept, **made}), 1)
        if is_small(task, sizes, _TOGETHER_WORK):
            return sizes if task.is_sound(sizes) else None
        longest = max(wanted, key=lambda name: wanted[name])
        if wanted[longest] < _FEW_PLACES:
            return None
        wanted[longest] *= 0.9


def counted_sizes(task: Task) -> Sizes | None:
    """So many elements that a count of 16 bits passes its end, where results are integers and fewer than what they are
    made of, or where integers say what to add to; None elsewhere, and where that many are too many to emulate."""
    kept = {name for one in task.outputs for name in one.shape}
    gone = [one for one in task.free if one.varies and one.name not in kept]
    counts = task.outputs and not any(one.dtype.is_float or one.dtype.itemsize == 1 for one in task.outputs)
    places = [one.dimensions for one in task.tensors if not one.dtype.is_float and one.dtype.itemsize > 1]
    if not counts and not any(names and {*names} <= {one.name for one in gone} for names in places):
        return None
    base = sizes_of(task, SMALLEST)
    longest = max(gone, key=lambda one: one.size, default=None)
    if longest is None or base is None or longest.size < _COUNTED_FROM:
        return None
    sizes = task.complete({**base, longest.name: longest.permitted(_COUNTED)})
    return sizes if task.is_sound(sizes) and is_small(task, sizes) else None


def _innermost(task: Task, inner: str) -> tuple[str, ...]:
    """The two innermost varying dimensions of a tensor with the innermost one: height and width of an image."""
    varying = {one.name for one in task.free if one.varies}
    for tensor in task.tensors:
        names = [name for name in tensor.dimensions if name in varying]
        if inner in names:
            return tuple(names[-2:])
    return ()


def is_filter(dimension: Dimension, results: Collection[str | int]) -> bool:
    """Whether it is a short reduced dimension, such as the taps of a filter."""
    return dimension.size <= _FEW_PLACES and dimension.name not in results


def _stretched(task: Task, base: Sizes, dimension: Dimension, size: int, most_work: int = SMALL_WORK) -> Sizes:
    """One dimension at `size` and the others reduced until it is affordable, or else as large as is affordable."""
    stretched = _cut_down(task, task.complete({**base, dimension.name: size}), dimension.name, most_work)
    if stretched is not None and task.is_sound(stretched):
        return stretched
    while (size := dimension.permitted(size // 2)) > base[dimension.name]:
        sizes = task.complete({**base, dimension.name: _round(dimension, size)})
        if task.is_sound(sizes) and is_small(task, sizes, _LONG_WORK):
            return sizes
    return base


def _round(dimension: Dimension, size: int) -> int:
    """The next size that is 2 modulo 4 and a multiple of 5, or that the dimension permits."""
    return dimension.permitted(size + (10 - size) % 20)


def _taken_off(formulas: Iterable[SizeFormula]) -> set[str]:
    """The dimensions that reduce others, as a filter does in a convolution without padding."""
    return {name for one in formulas for term in one.terms if term.coefficient < 0 for name in term.names}


def _with_room(task: Task, sizes: Sizes, least: int) -> Sizes:
    """Enlarge images until `least` positions are left for their filters."""
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


def _cut_down(task: Task, sizes: Sizes, keep: str | None, most_work: int = SMALL_WORK) -> Sizes | None:
    """Halve sizes until they are small and all computed sizes are positive; None where that is impossible."""
    while True:
        lacking = [one.formula for one in task.dimensions if one.formula is not None and sizes[one.name] < 1]
        if not lacking and is_small(task, sizes, most_work):
            return sizes
        # Where an image is smaller than its filter, shrink the filter.
        taken_off = _taken_off(lacking)
        shrinkable = [
            one
            for one in task.free
            if one.varies
            and sizes[one.name] > one.permitted(1)
            and (one.name in taken_off if lacking else one.name != keep)
        ]
        largest = max(shrinkable, key=lambda one: sizes[one.name], default=None)
        if largest is None:
            return None
        sizes = task.complete({**sizes, largest.name: largest.permitted(sizes[largest.name] // 2)})


def shorter(task: Task, case: Case) -> Case | None:
    """The case with its longest dimension divided by eight; None where it is short already."""
    longest = max((one for one in task.free if one.varies), key=lambda one: case.sizes[one.name], default=None)
    if longest is None or case.sizes[longest.name] < _LONG:
        return None
    sizes = task.complete({**case.sizes, longest.name: longest.permitted(case.sizes[longest.name] // 8)})
    return replace(case, sizes={**case.sizes, **sizes}) if task.is_sound(sizes) else None


def has_own_size(task: Task, case: Case) -> bool:
    """Whether a long varying dimension is at its full size or above."""
    return any(case.sizes[one.name] >= max(one.size, _LONG) for one in task.free if one.varies)
