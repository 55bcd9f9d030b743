"""The calls a kernel is judged by: small and odd sizes inside the task's domain, several kinds of values.

They follow from the task alone, cheapest first. Dimensions that the task fixes keep their size; the others take sizes
that kernels get wrong: one, primes, just below and above powers of two and usual tile sizes, one above their own, and
each its own size while the rest is small, because that is where a specialised path is taken, a loop wraps, a grid ends.
Dimensions whose own size is small, such as the taps of a filter, keep it in most cases. Sizes that follow from others
are never chosen.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from tilewright.records import Case, Dimension, NormalValues, SizeFormula, Task
from tilewright.verify.distributions import (
    FLAGS,
    NEGATIVE_OFFSET,
    NUMBERS,
    OUTLIERS,
    PATTERNED,
    TASK,
    has_flags,
    has_float_numbers,
    has_varied_floats,
)

Sizes = dict[str, int]

SMALL_WORK = 1_000_000  # product of all free dimensions, roughly the steps of the innermost loop
OWN_WORK = 1_200_000  # at the task's own sizes
MOST_WORK = 4_000_000  # at sizes that are only looked for because a file takes no smaller ones
MOST_BYTES = 32 << 20  # of all tensors of one emulated call
_TINY_WORK = 4096
_LONG_WORK = 400_000  # of a case with one more dimension at its own size
_TILED = 3  # dimensions, of which two tiles each way are affordable together
_LONG = 512  # a size
_FEW_PLACES = 16  # a dimension that is summed up, with no more than these, keeps them in most cases: filters
_EXTRA_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
_UNITS = (2, 4, 8, 16, 32, 64, 128, 256)  # that needs are written with
_FEW_LEFT = 3  # places of a filter in its image
_MOST_WIDENED = 1000
_MOST_COMBINED = 8000  # combinations of sizes that are looked at
_MOST_TRIED = 4000  # and that a file is asked about
_WIDEST = 4  # times the own size
_HALVINGS = 11  # powers of two below the largest; smaller ones are left to the cases
_SHOWN = 5  # sizes of a dimension in a note


@dataclass(frozen=True)
class _Shape:
    """Wanted sizes: of the innermost varying dimension of the largest tensor, and of the others in turn."""

    inner: int | None  # None: the task's own
    others: tuple[int, ...]
    values: tuple[str, ...]
    as_small: bool = False  # dimensions of few places take the sizes of the others too


_SHAPES = (
    _Shape(37, (3, 5, 2), (TASK, "impulse", "small", NUMBERS), as_small=True),
    _Shape(1, (1,), (TASK,), as_small=True),
    _Shape(129, (65, 17, 3), ("normal", "logarithmic")),
    _Shape(127, (2, 33, 3), ("offset",), as_small=True),
    _Shape(257, (1, 7), ("wide",)),
    _Shape(None, (4, 3, 2), (TASK, "offset", "impulse", FLAGS, NUMBERS)),
    _Shape(512, (33, 31, 2), ("normal",)),
)

# Kinds of values that are put into one case each, at the first of these sizes that a file takes: rows enough for every
# pattern, and long enough that each is judged by itself.
_VALUE_KINDS = (PATTERNED, OUTLIERS, NEGATIVE_OFFSET, FLAGS)
_VALUE_SHAPES = tuple(
    _Shape(inner, others, ())
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
_VALUE_SEED = 301


def plan_cases(task: Task) -> tuple[Case, ...]:
    """The cases below the task's own sizes, cheapest first; empty where every dimension is fixed."""
    found: dict[tuple[tuple[tuple[str, int], ...], str], Case] = {}
    shaped = [(_sizes(task, shape), shape.values) for shape in _SHAPES]
    for sizes, kinds in (*shaped, *((sizes, (TASK,)) for sizes in _long_sizes(task))):
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


def value_cases(
    task: Task, further: Iterable[str], accepts: Callable[[Sizes], bool], taken: Iterable[Case]
) -> tuple[Case, ...]:
    """Cases with the kinds of values that no case taken so far has, at the cheapest sizes that a file takes.

    `further` are the kinds that the reference was found to take.
    """
    usual = (_canonical(task, one) for shape in _SHAPES for one in shape.values)
    wanted = dict.fromkeys(one for one in (*usual, *_VALUE_KINDS) if _applies(task, one))
    wanted |= dict.fromkeys(further)
    missing = wanted.keys() - {case.values for case in taken}
    sizes = value_sizes(task, accepts) if missing else None
    if sizes is None:
        return ()
    return tuple(Case(sizes, _VALUE_SEED + number, one) for number, one in enumerate(wanted) if one in missing)


def value_sizes(task: Task, accepts: Callable[[Sizes], bool]) -> Sizes | None:
    """Small sizes with several rows that a file takes; None where there are none."""
    for shape in _VALUE_SHAPES:
        sizes = _sizes(task, shape)
        if sizes is not None and accepts(sizes):
            return sizes
    found = accepted_sizes(task, accepts, count=1)
    return found[0] if found else None


def smallest_sizes(task: Task) -> Sizes | None:
    """Sizes at which every call is quick; None where every dimension is fixed, or they cannot be small."""
    return _sizes(task, _Shape(5, (2, 3, 2), (), as_small=True))


def own_cases(task: Task) -> tuple[Case, ...]:
    """Cases at the task's own sizes; the task's own values first."""
    kinds = [TASK, *(one for one in ("normal", "impulse", "offset", "wide", NUMBERS, FLAGS) if _applies(task, one))]
    unique = dict.fromkeys(_canonical(task, one) for one in kinds)
    return tuple(Case(task.sizes, 101 + number, one) for number, one in enumerate(unique))


def work_of(task: Task, sizes: Mapping[str, int]) -> int:
    """An estimate of the work: the product of the free dimensions, which is the steps of a matrix product's loops.

    Of a chain of layers, where the dimensions of one are no business of the other, it is the sum over the inputs.
    """
    return _estimate(task)(sizes)


def _estimate(task: Task) -> Callable[[Mapping[str, int]], int]:
    """`work_of` for many sizes of one task."""
    free, layers = [one.name for one in task.free], _layers(task)

    def estimate(sizes: Mapping[str, int]) -> int:
        def product(names: Iterable[str]) -> int:
            return math.prod(max(sizes[name], 1) for name in names)

        chain = sum(product(elements) * max(map(product, repeats), default=1) for elements, repeats in layers)
        return min(product(free), chain)

    return estimate


def _layers(task: Task) -> list[tuple[list[str], list[list[str]]]]:
    """The axes of every input's elements, and for each output the axes along which each of them is used again.

    These are the axes that the input does not have itself and that come from the first input, or from one that shares
    an axis with it. Places of the first input that no other input has and that are summed up, such as the pixels of an
    image that is convolved and then pooled, count as axes of all others.
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
    """The dimension itself, or what most of its size comes from: of an image and its filter, the image."""
    if dimension.formula is None or not dimension.formula.terms:
        return (dimension.name,)
    own = task.sizes
    largest = max(dimension.formula.terms, key=lambda one: one.coefficient * math.prod(own[name] for name in one.names))
    return largest.names


def bytes_of(task: Task, sizes: Mapping[str, int]) -> int:
    specs = (*task.specs(sizes).values(), *task.output_specs(sizes).values())
    return sum(spec.storage_bytes for spec in specs)


def is_small(task: Task, sizes: Mapping[str, int], most_work: int = SMALL_WORK) -> bool:
    return work_of(task, sizes) <= most_work and bytes_of(task, sizes) <= MOST_BYTES


def _applies(task: Task, values: str) -> bool:
    if values == NUMBERS:
        return has_float_numbers(task)
    if values == FLAGS:
        return has_flags(task)
    return values == TASK or has_varied_floats(task)


def _canonical(task: Task, values: str) -> str:
    """`normal` is what most tasks say themselves."""
    plain = all(one.values == NormalValues() for one in task.tensors if one.dtype.is_float)
    return TASK if values == "normal" and plain else values


# -- sizes --


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


def _sizes(task: Task, shape: _Shape) -> Sizes | None:
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
            wanted[one.name] = one.size if shape.inner is None else _permitted(one, shape.inner)
        else:
            # A filter is no larger than the task's own: what matters of it is how it lies in its image.
            size = next(others)
            size = min(size, one.size) if one.name in taken_off else size
            kept = _is_filter(one, results) and not shape.as_small
            wanted[one.name] = one.size if kept else _permitted(one, size)
    wanted = _with_room(task, task.complete(wanted), min(_FEW_LEFT, max(shape.others)))
    return _cut_down(task, wanted, keep=inner if shape.inner is None else None)


def _long_sizes(task: Task) -> Iterator[Sizes]:
    """Two tiles each way; filters above their own size; the innermost dimension a little above its own; then the others
    at theirs, one after another, those together that are affordable together. Not all of them need be affordable."""
    inner = inner_dimension(task)
    base = _sizes(task, _Shape(6, (3, 10, 2), ()))
    if inner is None or base is None:
        return
    free = {one.name: one for one in task.free if one.varies}
    results = {axis for one in task.outputs for axis in one.shape}
    if len(free) <= _TILED:
        tiles = {name: _permitted(one, 130 if name in results else 40) for name, one in free.items()}
        yield task.complete({**base, **tiles})
    wider = {name: one.size + 2 for name, one in free.items() if _is_filter(one, results)}
    if wider:
        yield _with_room(
            task, task.complete({**base, **{name: _permitted(free[name], wider[name]) for name in wider}}), 2
        )
    yield _stretched(task, base, free[inner], _round(free[inner], free[inner].size + 1))
    left = sorted((name for name in free if name != inner and base[name] < free[name].size), key=lambda n: free[n].size)
    while left:
        longest = free[left.pop()]
        sizes = _stretched(task, base, longest, longest.size)
        for name in tuple(reversed(left)):
            more = task.complete({**sizes, name: free[name].size})
            if task.is_sound(more) and is_small(task, more, _LONG_WORK):
                sizes = more
                left.remove(name)
        yield sizes


def _is_filter(dimension: Dimension, results: Collection[str | int]) -> bool:
    """Whether few places are summed up along it."""
    return dimension.size <= _FEW_PLACES and dimension.name not in results


def _stretched(task: Task, base: Sizes, dimension: Dimension, size: int) -> Sizes:
    """The sizes with one dimension large and the others cut down until it is affordable, or else as large as may be."""
    stretched = _cut_down(task, task.complete({**base, dimension.name: size}), keep=dimension.name)
    if stretched is not None and task.is_sound(stretched):
        return stretched
    while (size := _permitted(dimension, size // 2)) > base[dimension.name]:
        sizes = task.complete({**base, dimension.name: _round(dimension, size)})
        if task.is_sound(sizes) and is_small(task, sizes, _LONG_WORK):
            return sizes
    return base


def _round(dimension: Dimension, size: int) -> int:
    """The next size that is 2 modulo 4 and a multiple of 5, or that the dimension permits."""
    return _permitted(dimension, size + (10 - size) % 20)


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


def _permitted(dimension: Dimension, size: int) -> int:
    return -(-max(size, dimension.at_least) // dimension.multiple_of) * dimension.multiple_of


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
            and sizes[one.name] > _permitted(one, 1)
            and (one.name in taken_off if lacking else one.name != keep)
        ]
        largest = max(shrinkable, key=lambda one: sizes[one.name], default=None)
        if largest is None:
            return None
        sizes = task.complete({**sizes, largest.name: _permitted(largest, sizes[largest.name] // 2)})


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


def within_need(task: Task, case: Case, accepts: Callable[[Sizes], bool]) -> Case | None:
    """The case at sizes beside its own that the file takes: those that vary rounded up to a common multiple, and the
    longest halved until it is affordable. None where there are none."""
    varying = [one for one in task.free if one.varies]
    for unit in _UNITS:
        chosen = {one.name: _permitted(one, _multiple(case.sizes[one.name], unit)) for one in varying}
        sizes = task.complete({**case.sizes, **chosen})
        while not is_small(task, sizes, MOST_WORK):
            longest = max(varying, key=lambda one: sizes[one.name])
            half = _permitted(longest, _multiple(sizes[longest.name] // 2, unit))
            if half >= sizes[longest.name]:
                break
            sizes = task.complete({**sizes, longest.name: half})
        if task.is_sound(sizes) and is_small(task, sizes, MOST_WORK) and accepts(sizes):
            return replace(case, sizes=sizes)
    return None


def _multiple(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def limits_of_need(task: Task, accepts: Callable[[Sizes], bool]) -> Iterator[Sizes]:
    """For each dimension the largest size before one that is declined, the others small."""
    base = _sizes(task, _Shape(6, (3, 10, 2), ()))
    if base is None or not accepts(base):
        return
    for one in task.free:
        tried = [size for size in _further(one) if size > base[one.name]] if one.varies else []
        wholes = {size: task.complete({**base, one.name: size}) for size in tried}
        declined = next((size for size in tried if not accepts(wholes[size])), None)
        if declined is None:
            continue
        low, high = max([base[one.name], *(size for size in tried if size < declined)]), declined
        while low < (middle := _permitted(one, (low + high) // 2)) < high:
            taken = accepts(task.complete({**base, one.name: middle}))
            low, high = (middle, high) if taken else (low, middle)
        sizes = task.complete({**base, one.name: low})
        if task.is_sound(sizes) and is_small(task, sizes):
            yield sizes


def _by_work(task: Task, most_work: int) -> Iterator[Sizes]:
    names = [one.name for one in task.free]
    chosen = itertools.product(*_thinned([_choices(one) for one in task.free]))
    completed = (task.complete(dict(zip(names, one, strict=True))) for one in chosen)
    work = _estimate(task)
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
    multiples = {_permitted(dimension, size) for size in _EXTRA_SIZES if size <= max(dimension.size, 256)}
    return sorted(multiples | {dimension.size})


def shorter(task: Task, case: Case) -> Case | None:
    """The case with its longest dimension an eighth as long; None where it is short already."""
    longest = max((one for one in task.free if one.varies), key=lambda one: case.sizes[one.name], default=None)
    if longest is None or case.sizes[longest.name] < _LONG:
        return None
    sizes = task.complete({**case.sizes, longest.name: _permitted(longest, case.sizes[longest.name] // 8)})
    return replace(case, sizes=sizes) if task.is_sound(sizes) else None


def has_own_size(task: Task, case: Case) -> bool:
    """Whether a long dimension that varies is at its own size or above."""
    return any(case.sizes[one.name] >= max(one.size, _LONG) for one in task.free if one.varies)


# -- sizes beyond the cases, at which a plan is only evaluated: nothing is built or run, so they may be large --


def declined_note(task: Task, takes: Callable[[Sizes], bool]) -> str:
    """What is declined of each dimension that varies, in a few words; empty where nothing is."""
    said, own = [], task.sizes
    for one in task.free:
        if not one.varies:
            continue
        tried = {
            size: sizes for size in _further(one) if task.is_sound(sizes := task.complete({**own, one.name: size}))
        }
        declined = [size for size, sizes in tried.items() if not takes(sizes)]
        if declined and len(declined) == len(tried):
            said.append(f"every {one.name} tried but {one.size}")
        elif declined:
            said.append(f"{one.name}={', '.join(map(str, _spread(declined)))}")
    return f"the file declines, among others, {'; '.join(said)}" if said else ""


def _further(dimension: Dimension) -> list[int]:
    """About twenty sizes: powers of two, odd ones beside them, some between."""
    own, largest = dimension.size, _WIDEST * dimension.size
    power = 1 << max(largest.bit_length() - 1, 0)
    wanted = {power >> step for step in range(_HALVINGS)} | {1, 3, own // 2 | 1, own - 1 | 1, own + 1 | 1, 2 * own + 1}
    wanted |= {3 * own // 4, 3 * own // 2, 3 * own, largest - 1}
    permitted = {_permitted(dimension, size) for size in wanted if size > 0}
    return sorted(permitted - {own})


def _spread(sizes: list[int]) -> list[int]:
    """A few of them, from the least to the greatest."""
    if len(sizes) <= _SHOWN:
        return sizes
    return [sizes[number * (len(sizes) - 1) // (_SHOWN - 1)] for number in range(_SHOWN)]
