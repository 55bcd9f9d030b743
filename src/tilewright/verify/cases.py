"""The cases a kernel is judged by: small and odd sizes inside the task's domain, with several kinds of values.

They follow from the task alone, cheapest first. Varying dimensions take sizes that kernels get wrong: one, primes, just
below and above powers of two and usual tile sizes, one above the full size, and each at its full size while the rest is
small, where specialised paths, long loops and partial grids occur. Filters keep their size in most cases.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random

from tilewright.kernel_file.compiled_plan import CompiledPlan
from tilewright.kernel_file.syntax import Accept
from tilewright.records import Case, IndexValues, Layout, NormalValues, Task
from tilewright.verify.accepted_sizes import Accepts, accepted_sizes
from tilewright.verify.case_sizes import Shape, counted_sizes, long_sizes, sizes_near_own, sizes_of
from tilewright.verify.case_work import Sizes, is_small, work_of
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
from tilewright.verify.float_values import EDGES, NEGATIVE_OFFSET, OUTLIERS, OUTSIDE, PATTERNED, PEAKS, TAILS
from tilewright.verify.integer_values import ALIKE, LEAST, NEXT_TO_LEAST

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

# Kinds of values that get one case each, at the first of these sizes that the file accepts: enough rows for every
# pattern, each long enough to be a tile of its own.
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
_MORE_SHAPES = (Shape(72, (12, 3, 2)), Shape(96, (10, 5, 2)), Shape(40, (18, 3, 2)))  # whole vectors, not whole tiles
_VALUE_SEED = 301
_DRAWN_SEED = 501
_ODD_TAILS = 2  # of the sizes near the task's own: odd ones of the innermost dimension
# Values that show faults the usual ones hide: one-pass variances, a softmax without maximum, skipped elements.
_HIDDEN = ("offset", "wide", "impulse")


def plan_cases(task: Task) -> tuple[Case, ...]:
    """The cases below the task's own sizes, cheapest first; none where every dimension is fixed."""
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
    many = counted_sizes(task)
    if many is not None:
        names = [one.name for one in whole_inputs(task)]
        values = values_with(WHOLE, dict.fromkeys(names, ALIKE)) if names else TASK
        found.setdefault((tuple(many.items()), values), Case(many, len(found) + 1, values))
    own = tuple(task.sizes.items())
    varied = [case for (sizes, _), case in found.items() if sizes != own]
    # Among tiny cases the odd ones come first: a diagnosis says more about 37 elements than about one.
    return tuple(sorted(varied, key=lambda case: max(work_of(task, case.sizes), _TINY_WORK)))


def _largest_sums(task: Task) -> tuple[str, ...]:
    """Kinds of values with the largest sums of products, where 8-bit integers are multiplied."""
    bytes_given = (one for one in whole_inputs(task) if one.dtype.itemsize == 1)
    names = [one.name for one in bytes_given if not isinstance(one.values, IndexValues)]
    levels = (LEAST, NEXT_TO_LEAST) if len(names) > 1 else ()
    return tuple(values_with(WHOLE, dict.fromkeys(names, one)) for one in levels)


def value_cases(task: Task, further: Iterable[str], accepts: Accepts, taken: Iterable[Case]) -> tuple[Case, ...]:
    """Cases with the kinds of values that no accepted case has so far, at the cheapest sizes the file accepts.

    `further` are kinds that the reference was found to accept.
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
        # Scalars may determine result shapes, which were computed at the first sizes.
        sizes = first if ":" in one else varied[number % len(varied)]
        made.append(Case(sizes, _VALUE_SEED + number, one))
    return tuple(made)


def value_sizes(task: Task, accepts: Accepts) -> Sizes | None:
    """Small sizes with several rows that the file accepts; None where there are none."""
    for shape in _VALUE_SHAPES:
        sizes = sizes_of(task, shape)
        if sizes is not None and accepts(sizes):
            return sizes
    found = accepted_sizes(task, accepts, count=1)
    return found[0] if found else None


def drawn_cases(task: Task, text: str) -> tuple[Case, ...]:
    """Cases near the task's own sizes, others for every kernel file, so that no file is right at those alone."""
    found: dict[tuple[tuple[tuple[str, int], ...], str], Case] = {}
    for number, sizes in enumerate(sizes_near_own(task, Random(f"{task.hash} {text}"))):
        kinds = (TASK, TAILS) if number < _ODD_TAILS and _applies(task, TAILS) else (TASK,)
        for values in kinds if task.is_sound(sizes) and is_small(task, sizes) else ():
            found.setdefault((tuple(sizes.items()), values), Case(sizes, _DRAWN_SEED + len(found), values))
    return tuple(found.values())


def full_size_cases(task: Task, further: Iterable[str] = ()) -> tuple[Case, ...]:
    """Cases at the task's own sizes; the task's own values first, `further` kinds last."""
    kinds = [
        TASK,
        *(one for one in (PARTS, "normal", "impulse", "offset", "wide", NUMBERS, FLAGS) if _applies(task, one)),
    ]
    unique = dict.fromkeys(_canonical(task, one) for one in (*kinds, *further))
    return tuple(Case(task.sizes, 101 + number, one) for number, one in enumerate(unique))


def resampled_values(
    task: Task, further: Iterable[str], *, whole: bool, floats: bool = False, alone: bool = False
) -> tuple[str, ...]:
    """Kinds of values to run sampled blocks of the full-size call with again: other scalars, where shapes stay.

    `whole`: all of it was run, so also integers that are nearly all equal, for counters that only a large call fills.
    `floats`: other floats too, where that is cheap. `alone`: every kind, where there is no smaller call.
    """
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
    special = {NUMBERS: has_float_numbers, FLAGS: has_flags, PARTS: has_parts}
    if values in special:
        return special[values](task)
    return values == TASK or values.startswith(WHOLE) or has_varied_floats(task)


def _canonical(task: Task, values: str) -> str:
    """`normal` is what most tasks draw anyway."""
    plain = all(one.values == NormalValues() for one in task.tensors if one.dtype.is_float)
    return TASK if values == "normal" and plain else values


# -- other forms of the same call: optional tensors, accepted strides, leading dimensions --

_BASES = 3  # cases whose sizes are used
_MOST_ALONE = 4  # optional tensors that are also given one at a time
_SEED_STEP = 401
_LEADING = ((2,), (2, 3))


def other_forms(task: Task, plan: CompiledPlan, cases: Sequence[Case]) -> Iterator[Case]:
    """Every other form of the given cases that the task and the file allow."""
    bases: dict[tuple[tuple[str, int], ...], Case] = {}
    for case in cases:
        if case.values == TASK and max(case.sizes.values(), default=1) > 1:
            bases.setdefault(tuple(case.sizes.items()), case)
    optional = tuple(one.name for one in task.tensors if one.optional)
    alone = [(name,) for name in optional[:_MOST_ALONE]] if len(optional) > 1 else []
    given = [optional, *alone] if optional else []
    chosen = [*bases.values()]
    for base in chosen if len(chosen) <= _BASES else [*chosen[: _BASES - 1], chosen[-1]]:
        forms = (*(replace(base, given=one) for one in given), *_layouts(task, plan.accepts, base))
        if plan.lead is not None and base is chosen[0]:
            forms += tuple(_led(task, base))
        for number, form in enumerate(forms):
            yield replace(form, seed=base.seed + _SEED_STEP * (number + 1))


def _led(task: Task, base: Case) -> Iterator[Case]:
    """The rows under one more leading dimension, and under two."""
    free = (name for number in itertools.count(1) if (name := f"leading_{number}") not in task.sizes)
    for sizes in _LEADING:
        names = tuple(itertools.islice(free, len(sizes)))
        yield replace(base, sizes={**base.sizes, **dict(zip(names, sizes, strict=True))}, leading=names)


def _layouts(task: Task, accepts: Mapping[str, Accept], base: Case) -> Iterator[Case]:
    known = {one.name: bool(one.dimensions) for one in task.tensors if not one.optional}
    taken = [accept for name, accept in accepts.items() if known.get(name)]
    strided = [accept.name for accept in taken if accept.strided]
    unaligned = [accept.name for accept in taken if accept.unaligned]
    for layout in Layout:
        names = unaligned if layout is Layout.UNALIGNED else [] if layout is Layout.DENSE else strided
        if names:
            yield replace(base, layouts=tuple((name, layout) for name in names))
