"""The calls a kernel is judged by: small and odd sizes inside the task's domain, several kinds of values.

They follow from the task alone, cheapest first. Dimensions that the task fixes keep their size; the others take sizes
that kernels get wrong: one, primes, just below and above powers of two and usual tile sizes, one above their own, and
each its own size while the rest is small, because that is where a specialised path is taken, a loop wraps, a grid ends.
Dimensions whose own size is small, such as the taps of a filter, keep it in most cases.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from tilewright.records import Case, IndexValues, NormalValues, Task
from tilewright.verify.case_sizes import Shape, long_sizes, sizes_of
from tilewright.verify.case_work import EDGES, OUTSIDE, Sizes, is_small, work_of
from tilewright.verify.distributions import (
    FLAGS,
    NUMBERS,
    PARTS,
    TASK,
    WHOLE,
    case_task,
    has_flags,
    has_float_numbers,
    has_parts,
    has_varied_floats,
    is_of_numbers,
    values_with,
    whole_inputs,
)
from tilewright.verify.float_values import NEGATIVE_OFFSET, OUTLIERS, PATTERNED, PEAKS
from tilewright.verify.need_sizes import Accepts, accepted_sizes
from tilewright.verify.whole_values import ALIKE, LEAST, NEXT_TO_LEAST

_TINY_WORK = 4096

_SHAPES: tuple[tuple[Shape, tuple[str, ...]], ...] = (
    (Shape(37, (3, 5, 2), as_small=True), (TASK, "impulse", "small", NUMBERS)),
    (Shape(1, (1,), as_small=True), (TASK,)),
    (Shape(129, (65, 17, 3)), ("normal", "logarithmic")),
    (Shape(127, (2, 33, 3), as_small=True), ("offset",)),
    (Shape(257, (1, 7)), ("wide",)),
    (Shape(None, (4, 3, 2)), (TASK, "offset", "impulse", PEAKS, FLAGS, NUMBERS, PARTS)),
    (Shape(512, (33, 31, 2)), ("normal",)),
)

# Kinds of values that are put into one case each, at the first of these sizes that a file takes: rows enough for every
# pattern, and long enough that each is judged by itself.
_VALUE_KINDS = (PATTERNED, OUTLIERS, NEGATIVE_OFFSET, FLAGS)
_VALUE_SHAPES = tuple(
    Shape(inner, others)
    for inner, others in (
        (70, (10, 3, 2)),
        (72, (16, 4, 2)),
        (96, (16, 8, 4)),
        (128, (16, 8, 4)),
        (64, (64, 16, 8)),
        (128, (128, 16, 8)),
        (256, (16, 8, 4)),
        (512, (16, 8, 4)),
        (1024, (16, 8, 4)),
        (None, (16, 8, 4)),
        (None, (4, 3, 2)),
    )
)
_MORE_SHAPES = (Shape(72, (12, 3, 2)), Shape(96, (10, 5, 2)), Shape(40, (18, 3, 2)))  # multiples of vectors, no tiles
_VALUE_SEED = 301
_HIDDEN = (
    "offset",
    "wide",
    "impulse",
)  # what the usual values show least: sums in one pass, no maximum, parts left out


def plan_cases(task: Task) -> tuple[Case, ...]:
    """The cases below the task's own sizes, cheapest first; empty where every dimension is fixed."""
    found: dict[tuple[tuple[tuple[str, int], ...], str], Case] = {}
    shaped = [(sizes_of(task, shape), kinds) for shape, kinds in _SHAPES]
    summed = (TASK, *_largest_sums(task))
    for sizes, kinds in (*shaped, *((sizes, summed) for sizes in long_sizes(task))):
        if sizes is None or not (task.is_sound(sizes) and is_small(task, sizes)):
            continue
        for values in kinds:
            if _applies(task, values):
                key = (tuple(sizes.items()), _canonical(task, values))
                found.setdefault(key, Case(sizes, len(found) + 1, _canonical(task, values)))
    own = tuple(task.sizes.items())
    varied = [case for (sizes, _), case in found.items() if sizes != own]
    # Among tiny cases the odd ones come first: a fault says more in 37 elements than in one.
    return tuple(sorted(varied, key=lambda case: max(work_of(task, case.sizes), _TINY_WORK)))


def _largest_sums(task: Task) -> tuple[str, ...]:
    """Kinds of values whose products add up to the most, where bytes are multiplied."""
    bytes_given = (one for one in whole_inputs(task) if one.dtype.itemsize == 1)
    names = [one.name for one in bytes_given if not isinstance(one.values, IndexValues)]
    levels = (LEAST, NEXT_TO_LEAST) if len(names) > 1 else ()
    return tuple(values_with(WHOLE, dict.fromkeys(names, one)) for one in levels)


def value_cases(task: Task, further: Iterable[str], accepts: Accepts, taken: Iterable[Case]) -> tuple[Case, ...]:
    """Cases with the kinds of values that no case taken so far has, at the cheapest sizes that a file takes.

    `further` are the kinds that the reference was found to take.
    """
    usual = (_canonical(task, one) for _, kinds in _SHAPES for one in kinds)
    wanted = dict.fromkeys(one for one in (*usual, *_VALUE_KINDS) if _applies(task, one))
    wanted |= dict.fromkeys(further)
    missing = [one for one in wanted if one not in {case.values for case in taken}]
    first = value_sizes(task, accepts) if missing else None
    if first is None:
        return ()
    varied = [first] + [sizes for shape in _MORE_SHAPES if (sizes := sizes_of(task, shape)) and accepts(sizes)]
    made = []
    for number, one in enumerate(missing):
        # Numbers may go with the shapes that follow from them at the first sizes.
        sizes = first if ":" in one else varied[number % len(varied)]
        made.append(Case(sizes, _VALUE_SEED + number, one))
    return tuple(made)


def value_sizes(task: Task, accepts: Accepts) -> Sizes | None:
    """Small sizes with several rows that a file takes; None where there are none."""
    for shape in _VALUE_SHAPES:
        sizes = sizes_of(task, shape)
        if sizes is not None and accepts(sizes):
            return sizes
    found = accepted_sizes(task, accepts, count=1)
    return found[0] if found else None


def own_cases(task: Task, further: Iterable[str] = ()) -> tuple[Case, ...]:
    """Cases at the task's own sizes; the task's own values first, `further` kinds last."""
    kinds = [
        TASK,
        *(one for one in (PARTS, "normal", "impulse", "offset", "wide", NUMBERS, FLAGS) if _applies(task, one)),
    ]
    unique = dict.fromkeys(_canonical(task, one) for one in (*kinds, *further))
    return tuple(Case(task.sizes, 101 + number, one) for number, one in enumerate(unique))


def again_values(
    task: Task, further: Iterable[str], *, whole: bool, floats: bool = False, alone: bool = False
) -> tuple[str, ...]:
    """Kinds of values that a part of the own call is run with once more: other scalars, where shapes stay; `whole`:
    where all of it was run, whole numbers that are nearly all the same, which no smaller call has so many of; `floats`:
    other floats, where that costs little; `alone`: every kind, where there is no smaller call."""
    kinds = [one for one in (*(_HIDDEN if floats else ()), NUMBERS) if _applies(task, one)]
    if alone:
        usual = (_canonical(task, one) for _, among in _SHAPES for one in among)
        kinds = list(dict.fromkeys(one for one in (*usual, *_VALUE_KINDS) if one != TASK and _applies(task, one)))
        kinds += [one for one in further if one.startswith((EDGES, OUTSIDE))]
    kept = (
        one
        for one in further
        if is_of_numbers(one) and case_task(task, Case(task.sizes, 1, one)).outputs == task.outputs
    )
    kinds += itertools.islice(kept, 1)
    given = [one.name for one in whole_inputs(task)]
    return (*kinds, values_with(WHOLE, dict.fromkeys(given, ALIKE))) if whole and given else tuple(kinds)


def _applies(task: Task, values: str) -> bool:
    if values.startswith(WHOLE):
        return True
    if values == NUMBERS:
        return has_float_numbers(task)
    if values == FLAGS:
        return has_flags(task)
    if values == PARTS:
        return has_parts(task)
    return values == TASK or has_varied_floats(task)


def _canonical(task: Task, values: str) -> str:
    """`normal` is what most tasks say themselves."""
    plain = all(one.values == NormalValues() for one in task.tensors if one.dtype.is_float)
    return TASK if values == "normal" and plain else values
