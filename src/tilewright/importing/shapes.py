"""Finds the extents of plain pointers by running the kernel on tensors that are too small.

If a kernel accesses exactly `rows * cols` elements at two sets of sizes, the tensor has that shape. The contents of
integers differ between the two runs, so the extent of an indirect access stays unknown.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.importing.calls import CallArgument, CallArguments, Relation, Specified, is_block
from tilewright.importing.sizes import threads
from tilewright.importing.sources import ConflictingArguments
from tilewright.kernel_file import ArgumentValue, DoesNotApply, KernelFile, KernelFileError, evaluate
from tilewright.records import GpuProfile

# The tensors that a run accesses out of bounds, with integer contents below the number; None if it does not finish.
OutOfBounds = Callable[[KernelFile, Mapping[str, ArgumentValue], int], frozenset[str] | None]
_PRIMES = (3, 5, 7, 11, 13, 17, 19, 23)
_UNITS = (16, 4, 2, 128, 11)  # sizes are primes times these: most kernels need multiples
_LARGE = 64  # units above this are multiplied by small factors only
_MOST_THREADS = 1 << 16
_MOST_ELEMENTS = 1 << 22
_SCALED = re.compile(r"\b(\w+)\s*=\s*(?:(\w+)\s*\*\s*\d+|\d+\s*\*\s*(\w+))\s*;")  # `int C3 = C * 3;`
_SMALL = 8  # numbers up to this are not scaled
_MOST_FACTORS = 4
_TIMES = (1, 2, 3, 4)
_MOST_TIMES = 256
_FEW_SIZES = 4  # up to this many, squares are tried too
_CONSTANTS = range(33)  # constant lengths
_BELOW = (1, 7)  # bounds of integer contents: indirect accesses differ between the runs


@dataclass(frozen=True)
class Extent:
    """A number of elements: `times` the product of `factors`, which are numbers of the op."""

    times: int
    factors: tuple[str, ...]

    def at(self, numbers: Mapping[str, int]) -> int:
        return self.times * math.prod(numbers[name] for name in self.factors)


def extents(
    file: KernelFile,
    call: CallArguments,
    gpu: GpuProfile,
    out_of_bounds: OutOfBounds,
    relations: Sequence[Relation] = (),
) -> tuple[dict[str, Extent], frozenset[str]]:
    """The extents found for plain pointers, and the pointers without one."""
    bare = [one for one in call if one.is_pointer and one.value is not None]
    numbers = {one.name: one.value for one in call if one.kind == "int" and isinstance(one.value, int)}
    sizes = [name for name, value in numbers.items() if value > 1 and not is_block(name)]
    unknown = frozenset(one.name for one in bare)
    if not sizes or not bare:
        return {}, unknown
    for unit in _UNITS:
        sets = [_related(_other(numbers, sizes, unit, turn), relations, turn) for turn in (0, 1)]
        searches = [_Search(file, call, one, out_of_bounds, below) for one, below in zip(sets, _BELOW, strict=True)]
        if all(_runs(file, search.arguments({}), gpu) for search in searches):
            found, untouched = _found(searches, [one.name for one in bare], _candidates(file, sizes, relations))
            if found:
                return found, unknown - found.keys() - untouched
    return {}, unknown


def _other(numbers: Mapping[str, int], sizes: Sequence[str], unit: int, turn: int) -> dict[str, int]:
    """Other numbers, chosen so that all their products differ."""
    large = [name for name in sizes if numbers[name] > _SMALL]
    few = {name: numbers[name] for name in sizes if name not in large}
    if turn:
        few = {name: 3 if number == 2 else max(number // 2, 2) for name, number in few.items()}
    unit = math.lcm(unit, *few.values())  # such as channels, a multiple of the heads
    times = (1, 2, *_PRIMES)[: max(len(large), 2)] if unit > _LARGE else _PRIMES[: len(large) + 1]
    made = {name: unit * times[(place + turn) % len(times)] for place, name in enumerate(large)}
    return {**numbers, **few, **made}


def _related(numbers: Mapping[str, int], relations: Sequence[Relation], turn: int) -> dict[str, int]:
    few = {one.other: _PRIMES[turn] for one in relations}  # their multiples are large enough
    made = {**numbers, **few}
    return {**made, **{one.name: one.times * made[one.other] for one in relations}}


def _candidates(file: KernelFile, sizes: Sequence[str], relations: Sequence[Relation]) -> list[Extent]:
    """Products of numbers, times constants that appear in the device code."""
    free = [name for name in sizes if name not in {one.other for one in relations}]  # drop the factor
    written = {int(one) for one in re.findall(r"\b\d{1,3}\b", re.sub(r"//[^\n]*", "", file.text))}
    times = sorted({*_TIMES, *(one for one in written if 4 < one <= _MOST_TIMES)})
    few = len(free) <= _FEW_SIZES
    choices = itertools.combinations_with_replacement if few else itertools.combinations
    return [
        Extent(one, chosen)
        for count in range(min(len(free), _MOST_FACTORS) + 1)
        for chosen in choices(free, count)
        for one in (times if count else _CONSTANTS)
    ]


def _runs(file: KernelFile, arguments: Mapping[str, ArgumentValue], gpu: GpuProfile) -> bool:
    try:
        return 0 < threads(evaluate(file, arguments, gpu)) <= _MOST_THREADS
    except (DoesNotApply, KernelFileError):
        return False


@dataclass(frozen=True)
class _Search:
    file: KernelFile
    call: CallArguments
    numbers: Mapping[str, int]
    out_of_bounds: OutOfBounds
    below: int

    def arguments(self, lengths: Mapping[str, int]) -> dict[str, ArgumentValue]:
        made: dict[str, ArgumentValue] = {}
        for one in self.call:
            if one.is_pointer:
                one = replace(one, shape=(lengths.get(one.name, 1),))
            elif one.name in self.numbers:
                one = replace(one, value=self.numbers[one.name])
            if one.is_passed:
                made[one.name] = one.argument()
        return made

    def too_short(self, lengths: Mapping[str, int]) -> frozenset[str] | None:
        return self.out_of_bounds(self.file, self.arguments(lengths), self.below)

    def enough(self, names: Sequence[str], lengths: Sequence[int]) -> dict[str, int] | None:
        """For each tensor the position of the smallest sufficient length; None if a run fails."""
        low, high = dict.fromkeys(names, 0), dict.fromkeys(names, len(lengths) - 1)
        while any(low[name] < high[name] for name in names):
            middle = {name: (low[name] + high[name]) // 2 for name in names}
            short = self.too_short({name: lengths[place] for name, place in middle.items()})
            if short is None:
                return None
            for name in names:
                if name in short:
                    low[name] = min(middle[name] + 1, high[name])
                else:
                    high[name] = middle[name]
        return low


def _found(
    searches: Sequence[_Search], names: Sequence[str], candidates: Sequence[Extent]
) -> tuple[dict[str, Extent], frozenset[str]]:
    likely = {name: list(candidates) for name in names}
    for search in searches:
        lengths = sorted({n for one in candidates if (n := one.at(search.numbers)) <= _MOST_ELEMENTS})
        enough = search.enough(names, lengths)
        if enough is None:
            return {}, frozenset()
        fitting = {name: lengths[place] for name, place in enough.items()}
        likely = {
            name: [one for one in ones if one.at(search.numbers) == fitting[name]] for name, ones in likely.items()
        }
    untouched = frozenset(name for name, ones in likely.items() if Extent(0, ()) in ones)
    likely = {name: ones for name, ones in likely.items() if name not in untouched}

    def complexity(one: Extent) -> tuple[int, int, int]:
        """Squares are rarer than products of different numbers, and those rarer with a constant factor."""
        return len(one.factors) - len({*one.factors}), one.times, len(one.factors)

    found = {name: min(ones, key=complexity) for name, ones in likely.items() if ones}
    for search in searches:
        exact = {name: found[name].at(search.numbers) if name in found else _MOST_ELEMENTS for name in names}
        row = {name: found[name].times if name in found and found[name].factors else 1 for name in names}
        fits, less = (search.too_short({name: n - by * row[name] for name, n in exact.items()}) for by in (0, 1))
        if fits is None or less is None:
            return {}, untouched
        found = {name: one for name, one in found.items() if name not in fits and name in less}
    return found, untouched


def ordered_sizes(extent: Extent, tensor: str, device_code: str, aliases: Mapping[str, str]) -> list[str]:
    """The sizes of a tensor, outermost first: sizes that an index is multiplied by are inner ones.

    `aliases` maps kernel parameters to arguments of the op.
    """
    pointers = "|".join(re.escape(name) for name, text in aliases.items() if name and text == tensor) or re.escape(
        tensor
    )
    used = re.findall(rf"\b(?:{pointers})\s*(?:\[|\+)([^;]*?)(?:\]|;)", device_code)
    named = [name for text in used for name in re.findall(r"\*\s*\(?\s*([A-Za-z_]\w*)", text)]
    local = {one: two or three for one, two, three in _SCALED.findall(device_code)}
    inner = {aliases.get(one, one) for name in named for one in (name, local.get(name, name))}
    if not inner & {*extent.factors}:  # a macro that takes the row length computes the index
        inner = {aliases.get(name, name) for text in used for name in re.findall(r"[A-Za-z_]\w*", text)}
    names = sorted(extent.factors, key=lambda name: name in inner)
    if len(names) < 2:
        return [*names, *([str(extent.times)] if extent.times > 1 or not names else [])]
    return [*names[:-1], names[-1] if extent.times == 1 else f"{names[-1]} * {extent.times}"]


# -- shapes specified for pointers, compared with the shapes found from accesses --

Shapes = Mapping[str, Sequence[str]]  # tensor -> sizes, each a name, a number, or `C * 3`


def shapes_conflict(specified: Specified, shapes: Shapes) -> bool:
    """Whether a specified shape has other dimensions than the one found; pointers then stay flat."""
    return any(
        not _is_alike(given, shape, _numbers(specified)) for given, shape in _specified_shapes(specified, shapes)
    )


def numbers_from_shapes(specified: Specified, shapes: Shapes) -> dict[str, int]:
    """The launcher's numbers, derived from the specified shapes. Raises `ConflictingArguments`."""
    numbers = _numbers(specified)
    found = {name: (value, "--set") for name, value in numbers.items()}
    pairs = _specified_shapes(specified, shapes)
    alike = [len(shape) > 1 and _is_alike(given, shape, numbers) for given, shape in pairs]
    for (given, shape), is_alike in sorted(zip(pairs, alike, strict=True), key=lambda one: not one[1]):
        one = _SpecifiedShape(given, shape)
        if not is_alike:
            _hold(found, one)
            continue
        for text, size in zip(shape, given.shape, strict=True):
            _meet(found, one, text, size)
    return {name: value for name, (value, _) in found.items()}


def _is_alike(given: CallArgument, shape: Sequence[str], numbers: Mapping[str, int]) -> bool:
    """Whether a specified shape matches the shape found.

    If all numbers are specified too, other shapes of as many elements, and longer rows, are accepted as flat tensors.
    """
    if len(given.shape) != len(shape):
        return False
    parts = [_parts(text) for text in shape]
    if not all(name in numbers for name, _ in parts if name):
        return True
    sizes = tuple(times * numbers.get(name, 1) for name, times in parts)
    spare = math.prod(given.shape) - math.prod(sizes)
    return sizes == given.shape or (spare != 0 if len(shape) > 1 else spare < 0)


def with_pointer_lengths(
    call: CallArguments, specified: Specified, shapes: Shapes
) -> tuple[tuple[CallArgument, ...], tuple[str, ...]]:
    """The call's arguments with lengths for flat pointers, and the pointers whose length is a guess.

    A length is the specified one; else that of a specified tensor with the same shape found; else the extent found.
    """
    known = {name: specified[name].shape for name in specified if specified[name].has_shape}
    alike = {tuple(shapes[name]): shape for name, shape in known.items() if name in shapes}
    numbers = _numbers({one.name: one for one in call})
    for name in shapes if known else ():
        parts = [_parts(text) for text in shapes[name]]
        if all(one in numbers for one, _ in parts if one):
            reached = tuple(times * numbers.get(one, 1) for one, times in parts)
            known.setdefault(name, alike.get(tuple(shapes[name]), reached))
    bare = [one.name for one in call if one.is_pointer]
    made = tuple(replace(one, shape=known[one.name]) if one.name in bare and one.name in known else one for one in call)
    return made, tuple(name for name in bare if name not in known)


class _SpecifiedShape:
    def __init__(self, given: CallArgument, shape: Sequence[str]) -> None:
        self.given, self.shape = given, shape
        self.words = f"--shape {given.name}={'x'.join(map(str, given.shape))}"
        self.found = f"the kernel reaches {given.name}[{', '.join(shape)}]"


def _specified_shapes(specified: Specified, shapes: Shapes) -> list[tuple[CallArgument, Sequence[str]]]:
    return [
        (specified[name], shape) for name, shape in shapes.items() if name in specified and specified[name].has_shape
    ]


def _numbers(specified: Specified) -> dict[str, int]:
    return {name: one.value for name, one in specified.items() if one.kind == "int" and isinstance(one.value, int)}


def _meet(found: dict[str, tuple[int, str]], one: _SpecifiedShape, text: str, size: int) -> None:
    """One size, which is a number, a name or so many times a name."""
    name, times = _parts(text)
    if size % times or (not name and size != times):
        raise ConflictingArguments(f"{one.words}: {one.found}, and {size} is not {text}")
    value, other = found.setdefault(name, (size // times, one.words)) if name else (size // times, "")
    if value != size // times:
        raise ConflictingArguments(
            f"{one.words}: {one.found}, so {name} is {size // times}, but {other} makes it {value}"
        )


def _hold(found: dict[str, tuple[int, str]], one: _SpecifiedShape) -> None:
    """A tensor of other dimensions, or a row of elements, must have as many as are reached."""
    count = math.prod(one.given.shape)
    parts = [_parts(text) for text in one.shape]
    unknown = [name for name, _ in parts if name and name not in found]
    if unknown and len(one.shape) == 1:
        _meet(found, one, one.shape[0], count)
    elif unknown:
        like = "x".join(text.replace(" ", "").upper() for text in one.shape)
        more = f"write --shape {one.given.name}={like}, or say {', '.join(unknown)} with --set"
        raise ConflictingArguments(f"{one.words}: {one.found}; {more}")
    reached = math.prod(times * (found[name][0] if name else 1) for name, times in parts)
    if reached > count:
        made = ", ".join(f"{name} = {found[name][0]} by {found[name][1]}" for name, _ in parts if name)
        raise ConflictingArguments(
            f"{one.words}: {one.found}, which is {reached} elements{f' ({made})' if made else ''}"
        )


def _parts(text: str) -> tuple[str, int]:
    """A size as a name, or none, and how many times it."""
    names = [one for one in text.split(" * ") if not one.isdigit()]
    return (names or [""])[0], math.prod(int(one) for one in text.split(" * ") if one.isdigit())
