"""Sizes that are known when a kernel is launched: what each was at every probe, and the plan's text for it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction

from tilewright.playbook.errors import NotSupported
from tilewright.playbook.families import TracedTask
from tilewright.records import Task

_SUM, _PRODUCT, _ATOM = range(3)


@dataclass(frozen=True)
class Size:
    """A whole number of the plan, the same as another where it was at every probe; the task's own sizes come last."""

    values: tuple[int, ...]
    text: str = field(compare=False)
    binds: int = field(compare=False, default=_ATOM)
    label: str = field(compare=False, default="")  # what a kernel may call it; a literal has none

    @property
    def own(self) -> int:
        """At the task's own sizes."""
        return self.values[-1]

    @property
    def literal(self) -> int | None:
        return int(self.text) if self.text.lstrip("-").isdigit() else None

    def is_always(self, number: int) -> bool:
        return all(value == number for value in self.values)

    def divides(self, other: Size) -> bool:
        return all(mine and not its % mine for mine, its in zip(self.values, other.values, strict=True))

    @property
    def name(self) -> str:
        """For a parameter of a kernel."""
        return self._word if not self._word[0].isdigit() else f"by_{self._word}"

    @property
    def _word(self) -> str:
        return self.label or self.text.replace("-", "minus_")

    @property
    def factor(self) -> str:
        """The text as it stands in a product or a quotient."""
        return self._within(_PRODUCT)

    def _within(self, binds: int) -> str:
        return self.text if self.binds >= binds else f"({self.text})"

    def _like(self, number: int) -> Size:
        return Size((number,) * len(self.values), str(number), _ATOM if number >= 0 else _SUM)

    def _with(self, other: Size, make: Callable[[int, int], int]) -> tuple[int, ...]:
        return tuple(make(one, its) for one, its in zip(self.values, other.values, strict=True))

    def plus(self, other: Size) -> Size:
        values = self._with(other, lambda a, b: a + b)
        if self.literal is not None and other.literal is not None:
            return self._like(values[0])
        if self.literal == 0 or other.literal == 0:
            return other if self.literal == 0 else self
        if other.literal is not None and other.literal < 0:
            return Size(values, f"{self.text} - {-other.literal}", _SUM, f"{self.label}_less_{-other.literal}")
        return Size(values, f"{self.text} + {other.text}", _SUM, f"{self._word}_and_{other._word}")

    def minus(self, other: Size) -> Size:
        values = self._with(other, lambda a, b: a - b)
        if self == other or (self.literal is not None and other.literal is not None):
            return self._like(values[0])
        label = f"{self._word}_less_{other._word}"
        return self if other.literal == 0 else Size(values, f"{self.text} - {other._within(_PRODUCT)}", _SUM, label)

    def negated(self) -> Size:
        values = tuple(-value for value in self.values)
        if self.literal is not None:
            return self._like(values[0])
        if self.text.startswith("0 - "):
            rest = self.text[4:]
            bare = rest[1:-1] if rest.startswith("(") and rest.endswith(")") and rest.count("(") == 1 else rest
            return Size(values, bare, _SUM, self.label.removeprefix("minus_"))
        return Size(values, f"0 - {self._within(_PRODUCT)}", _SUM, f"minus_{self.label}")

    def times(self, other: Size) -> Size:
        values = self._with(other, lambda a, b: a * b)
        if 0 in (self.literal, other.literal) or (self.literal is not None and other.literal is not None):
            return self._like(values[0])
        if self.literal == 1 or other.literal == 1:
            return other if self.literal == 1 else self
        if self.literal == -1 or other.literal == -1:
            return (other if self.literal == -1 else self).negated()
        label = f"{self._word}_{other._word}"
        return Size(values, f"{self._within(_PRODUCT)} * {other._within(_PRODUCT)}", _PRODUCT, label)

    def over(self, other: Size) -> Size:
        """Divided without a remainder."""
        values = self._with(other, lambda a, b: a // b)
        if self == other or self.literal == 0 or (self.literal is not None and other.literal is not None):
            return self._like(values[0])
        if any(value < 0 for value in self.values):  # a plan divides no negative numbers
            if any(value > 0 for value in self.values):
                raise NotSupported(f"the playbook cannot divide {self.text}, which is negative at some sizes")
            return self.negated().over(other).negated()
        label = f"{self._word}_by_{other._word}"
        made = Size(values, f"{self._within(_PRODUCT)} / {other._within(_ATOM)}", _SUM, label)
        return self if other.literal == 1 else made


class SizeBook:
    """Plan texts for numbers that were seen at the probes."""

    def __init__(self, traced: TracedTask) -> None:
        self._task = traced.task
        self._probes = [probe.sizes for probe in traced.probes.probes]
        self._fixed = traced.probes.fixed
        self._texts = dimension_texts(self._task)
        self._known: dict[tuple[int, ...], Size] = {}
        for name in self._texts:
            size = self.dimension(name)
            if size.literal is None:
                self._known.setdefault(size.values[:-1], size)

    def number(self, value: int) -> Size:
        return Size((value,) * (len(self._probes) + 1), str(value), _ATOM if value >= 0 else _SUM)

    def dimension(self, name: str) -> Size:
        """The size of a dimension of the task."""
        values = (*(sizes[name] for sizes in self._probes), self._task.sizes[name])
        if self._fixed or len(set(values)) == 1:
            return self.number(self._task.sizes[name])
        if name not in self._texts:
            raise NotSupported(f"the playbook cannot tell the size {name} from the inputs' shapes")
        text = self._texts[name]
        return Size(values, text, _SUM if " " in text else _ATOM, name)

    def of(self, values: tuple[int, ...], what: str) -> Size:
        """The size that took these values at the probes."""
        found = self._known.get(values) or self._explained(values)
        if found is None:
            shown = ", ".join(map(str, values))
            raise NotSupported(
                f"the playbook cannot tell how a size of {what} follows from the inputs' (it was {shown})"
            )
        self._known[values] = found
        return found

    def _explained(self, values: tuple[int, ...]) -> Size | None:
        if len(set(values)) == 1:
            return self.number(values[0])
        bases = [one for one in self._known.values() if one.text in self._texts.values()]
        products: list[Size] = []
        for count in range(1, min(len(bases), 4) + 1):
            for chosen in itertools.combinations(bases, count):
                product = chosen[0]
                for one in chosen[1:]:
                    product = product.times(one)
                products.append(product)
        sums = [one.plus(other) for one, other in itertools.combinations_with_replacement(bases, 2)]
        found = [made for base in (*products, *sums) if (made := self._linear(base, values))]
        if found:
            return min(found, key=lambda made: made[0])[1]
        differences = (one.minus(other) for one, other in itertools.permutations(bases, 2))
        found_difference = next((one for one in differences if one.values[: len(values)] == values), None)
        return found_difference or next((size for base in bases if (size := self._rounded(base, values))), None)

    def _rounded(self, base: Size, values: tuple[int, ...]) -> Size | None:
        """(base + constant) / divisor, rounded down: halves of odd sizes, and what they leave."""
        seen = base.values[: len(values)]
        for divisor, constant in itertools.product(range(2, 17), range(16)):
            if constant < divisor and all(
                (size + constant) // divisor == value for size, value in zip(seen, values, strict=True)
            ):
                whole = base.plus(self.number(constant))
                halves = tuple(value // divisor for value in whole.values)
                return Size(halves, f"{whole._within(_PRODUCT)} / {divisor}", _SUM, f"{whole._word}_by_{divisor}")
        return None

    def _linear(self, base: Size, values: tuple[int, ...]) -> tuple[int, Size] | None:
        """factor * base + constant, where that is what all values are, and how far-fetched that is."""
        seen = base.values[: len(values)]
        if len(set(seen)) < 2:
            return None
        low, high = min(range(len(seen)), key=seen.__getitem__), max(range(len(seen)), key=seen.__getitem__)
        slope = Fraction(values[high] - values[low], seen[high] - seen[low])
        constant = values[low] - slope * seen[low]
        if slope.denominator > 64 or slope == 0 or constant.denominator != 1 or slope * base.own % 1:
            return None
        if any(slope * size + constant != value for size, value in zip(seen, values, strict=True)):
            return None
        part = base.times(self.number(abs(slope.numerator))).over(self.number(slope.denominator))
        part = part.negated() if slope < 0 else part
        strangeness = abs(slope.numerator) + slope.denominator + abs(int(constant)) + base.text.count(" ")
        return strangeness, part.plus(self.number(int(constant)))


def dimension_texts(task: Task) -> dict[str, str]:
    """The plan's text for every dimension: by the first tensor that has it, or by its formula."""
    found: dict[str, str] = {}
    for tensor in task.tensors:
        for place, name in enumerate(tensor.dimensions):
            if not tensor.optional:
                found.setdefault(name, f"{tensor.name}.shape[{place}]")
    for one in task.dimensions:
        if one.formula is not None and one.name not in found and all(name in found for name in one.formula.names):
            found[one.name] = one.formula.text(found)
    return found
