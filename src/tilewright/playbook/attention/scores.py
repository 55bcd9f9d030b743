"""What is done with each product of a query and a key before the softmax: a scale, a causal mask, and anything else."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tilewright.playbook.places.indices import Index, Variable
from tilewright.playbook.places.reader import PlaceReader, Position
from tilewright.playbook.places.sizes import Size
from tilewright.playbook.row_program import Constant, LaunchNumber, Load, NumberKind, Pointwise

_ROWS_TRIED = 12
_MASKED = -60000.0  # what stands for minus infinity where some key of every row is not masked: f16's least is -65504

_OPERATORS: dict[str, Callable[..., int | bool]] = {
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "neg", "lt", "le", "gt", "ge", "eq", "ne")},
    "and": lambda a, b: bool(a) and bool(b),
    "or": lambda a, b: bool(a) or bool(b),
    "xor": lambda a, b: bool(a) != bool(b),
    "not": lambda a: not a,
    "where": lambda condition, a, b: a if condition else b,
    "to_int": int,
    "to_bool": bool,
    "minimum": min,
    "maximum": max,
    "abs": abs,
}


class ScoreReader(PlaceReader):
    """Remembers which numbers of the launch are sizes, so that conditions on places can be tried out."""

    sizes: dict[int, Size]

    def size(self, size: Size) -> int:
        index = super().size(size)
        self.__dict__.setdefault("sizes", {})[index] = size
        return index


@dataclass(frozen=True)
class Scores:
    """`scale` is the plan's text of what products are multiplied by; `value` what else is made of them, if anything."""

    scale: str
    causal: Size | None  # keys after row + this are masked
    value: int | None


def read_scores(reader: ScoreReader, value: int, product: int, row: Variable, key: Variable) -> Scores:
    """The value of a score, made of `product`, taken apart."""
    causal: Size | None = None
    for condition in _conditions(reader, value):
        for is_kept in (True, False):
            masked = _folded(reader, value, condition, not is_kept)
            offset = _offset(reader, condition, is_kept, row, key) if _is_masked(reader, masked) else None
            infinite = reader.values[masked] == Constant(-math.inf)
            if offset is not None and causal is None and (infinite or all(one >= 0 for one in offset.values)):
                causal, value = offset, _folded(reader, value, condition, is_kept)
    factors: list[str] = []
    rest = _peeled(reader, value, factors)
    if rest == product:
        return Scores(_product(factors), causal, None)
    return Scores("1.0", causal, value)


def peeled_factors(reader: PlaceReader, value: int) -> tuple[int, tuple[str, ...]]:
    """A value without the numbers it is multiplied by, and those numbers as the plan has them."""
    factors: list[str] = []
    return _peeled(reader, value, factors), tuple(factors)


def scale_text(factors: tuple[str, ...]) -> str:
    return _product(list(factors))


def _peeled(reader: PlaceReader, value: int, factors: list[str]) -> int:
    while True:
        made = reader.values[value]
        if isinstance(made, Pointwise) and made.op == "to_float" and len(made.arguments) == 1:
            value = made.arguments[0]
            continue
        if not isinstance(made, Pointwise) or made.op not in ("mul", "div") or len(made.arguments) != 2:
            return value
        first, second = made.arguments
        number = _number_text(reader, second)
        if number is None and made.op == "mul":
            first, second = second, first
            number = _number_text(reader, second)
        if number is None:
            return value
        factors.append(number if made.op == "mul" else _inverse(number))
        value = first


def _inverse(number: str) -> str:
    return (
        f"1.0 / {number}"
        if (number.endswith(")") and number.count("(") == 1) or _is_number(number)
        else f"1.0 / ({number})"
    )


def _number_text(reader: PlaceReader, value: int) -> str | None:
    made = reader.values[value]
    if isinstance(made, Constant) and not isinstance(made.value, bool) and math.isfinite(made.value) and made.value > 0:
        return repr(float(made.value))
    if isinstance(made, LaunchNumber) and ".shape[" in made.expression:  # which is positive: sizes are
        return made.expression
    if isinstance(made, Pointwise) and made.op == "to_float":
        return _number_text(reader, made.arguments[0])
    return None


def _product(factors: list[str]) -> str:
    """Equal fourth roots, as PyTorch gives one each to queries and keys, make a square root."""
    texts = list(factors)
    for one in dict.fromkeys(factors):
        if one.startswith("1.0 / sqrt(sqrt(") and texts.count(one) == 2:
            texts = [text for text in texts if text != one] + [f"1.0 / sqrt({one[len('1.0 / sqrt(sqrt(') : -2]})"]
        elif texts.count(one) == 2 and _is_number(one):
            texts = [text for text in texts if text != one] + [repr(float(f"{float(one) ** 2:.9g}"))]
    if len(texts) == 1:
        return texts[0]
    return " * ".join(one if _is_number(one) else f"({one})" for one in texts) or "1.0"


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).replace("e-", "", 1).isdigit()


# -- conditions on places --


def _conditions(reader: ScoreReader, value: int) -> Iterator[int]:
    """The largest conditions in a value that depend on places alone."""
    made = reader.values[value]
    if not isinstance(made, Pointwise):
        return
    if reader.kinds[value] is NumberKind.BOOL and _is_of_places(reader, value):
        yield value
        return
    for one in dict.fromkeys(made.arguments):
        yield from _conditions(reader, one)


def _is_of_places(reader: ScoreReader, value: int) -> bool:
    made = reader.values[value]
    if isinstance(made, Load):
        return isinstance(reader.leaves[made.input], Position)
    if isinstance(made, Pointwise):
        return made.op in _OPERATORS and all(_is_of_places(reader, one) for one in made.arguments)
    return isinstance(made, Constant) or value in reader.__dict__.get("sizes", {})


def _folded(reader: ScoreReader, value: int, condition: int, truth: bool) -> int:
    """The value where the condition is known, with what then does not matter left out."""
    if value == condition:
        return reader.constant(truth, NumberKind.BOOL)
    made = reader.values[value]
    if not isinstance(made, Pointwise):
        return value
    arguments = [_folded(reader, one, condition, truth) for one in made.arguments]
    known = [reader.values[one] for one in arguments]
    numbers = [one.value if isinstance(one, Constant) else None for one in known]
    if made.op == "where" and isinstance(numbers[0], bool):
        return arguments[1] if numbers[0] else arguments[2]
    if made.op == "not" and isinstance(numbers[0], bool):
        return reader.constant(not numbers[0], NumberKind.BOOL)
    if made.op.startswith("to_") and numbers[0] is not None:
        return reader.convert(arguments[0], reader.kinds[value])
    if made.op == "add" and len(arguments) == 2:
        for one, other in ((0, 1), (1, 0)):
            if numbers[one] == 0:
                return arguments[other]
            number = numbers[one]
            if isinstance(number, float) and number <= _MASKED:  # a finite score changes nothing
                return arguments[one]
    if arguments == list(made.arguments):
        return value
    return reader.point(made.op, *arguments)


def _is_masked(reader: ScoreReader, value: int) -> bool:
    made = reader.values[value]
    return isinstance(made, Constant) and not isinstance(made.value, bool) and made.value <= _MASKED


def _offset(reader: ScoreReader, condition: int, is_kept: bool, row: Variable, key: Variable) -> Size | None:
    """The number for which `key <= row + number` is what the condition keeps, wherever it is tried; None for others."""
    found: list[int] = []
    for probe in range(len(row.size.values) - 1):
        rows, keys = row.size.values[probe], key.size.values[probe]
        tried = sorted({round(place * (rows - 1) / (_ROWS_TRIED - 1)) for place in range(_ROWS_TRIED)})
        offsets: set[int] = set()
        for at_row in tried:
            kept = [_at(reader, condition, probe, {row: at_row, key: at_key}) for at_key in range(keys)]
            if None in kept:
                return None
            count = sum(one == is_kept for one in kept)
            if any((one == is_kept) != (at_key < count) for at_key, one in enumerate(kept)):
                return None
            if 0 < count < keys:
                offsets.add(count - 1 - at_row)
        if len(offsets) != 1:
            return None
        found.append(offsets.pop())
    return reader.book.of(tuple(found), "a mask")


def _at(reader: ScoreReader, value: int, probe: int, places: dict[Variable, int]) -> int | bool | None:
    """A value made of places at one of them; None where it depends on more."""
    made = reader.values[value]
    if isinstance(made, Constant):
        return int(made.value) if not isinstance(made.value, bool) else made.value
    if isinstance(made, Pointwise):
        arguments = [_at(reader, one, probe, places) for one in made.arguments]
        return None if None in arguments else _OPERATORS[made.op](*arguments)
    if isinstance(made, Load):
        leaf = reader.leaves[made.input]
        assert isinstance(leaf, Position)
        return _index_at(leaf.place, probe, places)
    return reader.sizes[value].values[probe]


def _index_at(index: Index, probe: int, places: dict[Variable, int]) -> int | None:
    total = index.constant.values[probe]
    for atom, factor in index.terms:
        if not isinstance(atom, Variable) or atom not in places:
            return None
        total += factor.values[probe] * places[atom]
    return total
