"""How much lies behind plain pointers: found by running the kernel on tensors that are too small.

A tensor that a kernel reaches in all of `rows * cols` elements, and in not one more, at two sets of sizes, has that
shape; the numbers are then sizes of the tensor. Indices in memory are others at each: what they reach stays unknown.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.importing.calls import Given, Relation, is_block
from tilewright.importing.sizes import threads
from tilewright.kernel_file import ArgumentValue, DoesNotApply, KernelFile, KernelFileError, evaluate
from tilewright.records import GpuProfile

# Which tensors a run accesses outside of, its whole numbers below the one given; None where it does not come to an end.
Outside = Callable[[KernelFile, Mapping[str, ArgumentValue], int], frozenset[str] | None]
_PRIMES = (3, 5, 7, 11, 13, 17, 19, 23)
_UNITS = (16, 4, 2, 128, 11)  # sizes are these times primes: most kernels count on multiples
_LARGE = 64  # of which once, twice and so on must do
_MOST_THREADS = 1 << 16
_MOST_ELEMENTS = 1 << 22
_SCALED = re.compile(r"\b(\w+)\s*=\s*(?:(\w+)\s*\*\s*\d+|\d+\s*\*\s*(\w+))\s*;")  # `int C3 = C * 3;`
_SMALL = 8  # numbers up to this are kept
_MOST_FACTORS = 4
_TIMES = (1, 2, 3, 4)
_MOST_TIMES = 256
_FEW_SIZES = 4  # then squares, too
_CONSTANTS = range(33)  # lengths that depend on no number
_BELOW = (1, 7)  # whole numbers in memory: where they are indices, what they reach differs


@dataclass(frozen=True)
class Extent:
    """So many elements: a product of numbers of the op, or, without any, just so many."""

    times: int
    factors: tuple[str, ...]

    def at(self, numbers: Mapping[str, int]) -> int:
        return self.times * math.prod(numbers[name] for name in self.factors)


def extents(
    file: KernelFile, call: Sequence[Given], gpu: GpuProfile, outside: Outside, relations: Sequence[Relation] = ()
) -> tuple[dict[str, Extent], frozenset[str]]:
    """The tensors behind plain pointers whose extent was found, and those of which nothing is known."""
    bare = [one for one in call if one.is_bare and one.value is not None]
    numbers = {one.name: one.value for one in call if one.kind == "int" and isinstance(one.value, int)}
    sizes = [name for name, value in numbers.items() if value > 1 and not is_block(name)]
    unknown = frozenset(one.name for one in bare)
    if not sizes or not bare:
        return {}, unknown
    for unit in _UNITS:
        sets = [_related(_other(numbers, sizes, unit, turn), relations, turn) for turn in (0, 1)]
        searches = [_Search(file, call, one, outside, below) for one, below in zip(sets, _BELOW, strict=True)]
        if all(_runs(file, search.arguments({}), gpu) for search in searches):
            found, untouched = _found(searches, [one.name for one in bare], _candidates(file, sizes, relations))
            if found:
                return found, unknown - found.keys() - untouched
    return {}, unknown


def _other(numbers: Mapping[str, int], sizes: Sequence[str], unit: int, turn: int) -> dict[str, int]:
    """The numbers at other sizes whose products are all different."""
    large = [name for name in sizes if numbers[name] > _SMALL]
    few = {name: _fewer(numbers[name]) if turn else numbers[name] for name in sizes if name not in large}
    unit = math.lcm(unit, *few.values())  # channels are many heads
    times = (1, 2, *_PRIMES)[: max(len(large), 2)] if unit > _LARGE else _PRIMES[: len(large) + 1]
    made = {name: unit * times[(place + turn) % len(times)] for place, name in enumerate(large)}
    return {**numbers, **few, **made}


def _fewer(number: int) -> int:
    return 3 if number == 2 else max(number // 2, 2)


def _related(numbers: Mapping[str, int], relations: Sequence[Relation], turn: int) -> dict[str, int]:
    few = {one.other: _PRIMES[turn] for one in relations}  # what is many times these is large enough
    made = {**numbers, **few}
    return {**made, **{one.name: one.times * made[one.other] for one in relations}}


def _candidates(file: KernelFile, sizes: Sequence[str], relations: Sequence[Relation]) -> list[Extent]:
    """Products of numbers and of constants that the device code has."""
    free = [name for name in sizes if name not in {one.other for one in relations}]  # the larger says more
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
    call: Sequence[Given]
    numbers: Mapping[str, int]
    outside: Outside
    below: int

    def arguments(self, lengths: Mapping[str, int]) -> dict[str, ArgumentValue]:
        made: dict[str, ArgumentValue] = {}
        for one in self.call:
            if one.is_bare:
                one = replace(one, shape=(lengths.get(one.name, 1),))
            elif one.name in self.numbers:
                one = replace(one, value=self.numbers[one.name])
            if one.is_passed:
                made[one.name] = one.argument()
        return made

    def too_short(self, lengths: Mapping[str, int]) -> frozenset[str] | None:
        return self.outside(self.file, self.arguments(lengths), self.below)

    def enough(self, names: Sequence[str], lengths: Sequence[int]) -> dict[str, int] | None:
        """For each tensor the place of the least length that it is never left in; None where a run fails."""
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
    found = {name: min(ones, key=_strangeness) for name, ones in likely.items() if ones}
    for search in searches:
        exact = {name: found[name].at(search.numbers) if name in found else _MOST_ELEMENTS for name in names}
        row = {name: found[name].times if name in found and found[name].factors else 1 for name in names}
        fits, less = (search.too_short({name: n - by * row[name] for name, n in exact.items()}) for by in (0, 1))
        if fits is None or less is None:
            return {}, untouched
        found = {name: one for name, one in found.items() if name not in fits and name in less}
    return found, untouched


def _strangeness(one: Extent) -> tuple[int, int, int]:
    """Squares are rarer than numbers once each, and those rarer than some constant times them."""
    return len(one.factors) - len({*one.factors}), one.times, len(one.factors)


def in_order(extent: Extent, tensor: str, device_code: str, aliases: Mapping[str, str]) -> list[str]:
    """The sizes of a tensor, slowest first: those that an index is multiplied by lie further in. `aliases`: what the
    parameters of kernels stand for."""
    pointers = "|".join(re.escape(name) for name, text in aliases.items() if name and text == tensor) or re.escape(
        tensor
    )
    used = re.findall(rf"\b(?:{pointers})\s*(?:\[|\+)([^;]*?)(?:\]|;)", device_code)
    named = [name for text in used for name in re.findall(r"\*\s*\(?\s*([A-Za-z_]\w*)", text)]
    local = {one: two or three for one, two, three in _SCALED.findall(device_code)}
    inner = {aliases.get(one, one) for name in named for one in (name, local.get(name, name))}
    if not inner & {*extent.factors}:  # a macro makes the index, and is given the row's length
        inner = {aliases.get(name, name) for text in used for name in re.findall(r"[A-Za-z_]\w*", text)}
    names = sorted(extent.factors, key=lambda name: name in inner)
    if len(names) < 2:  # so many, or rows of so many
        return [*names, *([str(extent.times)] if extent.times > 1 or not names else [])]
    return [*names[:-1], names[-1] if extent.times == 1 else f"{names[-1]} * {extent.times}"]
