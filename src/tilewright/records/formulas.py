"""Formulas of sizes over other sizes: `cols / 2`, `2 * cols`, `(height - kernel + 4) / 2`.

`/` rounds down. A formula has at most one division, which comes last.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_TOKEN = re.compile(r"\s*(?:(?P<number>\d+)|(?P<name>[A-Za-z_]\w*)|(?P<sign>//|[-+*/()]))")
_LONGEST_TEXT = 200
_MOST_TERMS = 16
_LARGEST_NUMBER = 1 << 31


@dataclass(frozen=True)
class SizeTerm:
    """A number times the sizes of dimensions."""

    coefficient: int
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.coefficient or not self.names:
            raise ValueError("a term of a formula is a number that is not 0 times at least one dimension")


@dataclass(frozen=True)
class SizeFormula:
    """The sum of the terms and the constant, divided by `divisor` and rounded down."""

    terms: tuple[SizeTerm, ...]
    constant: int = 0
    divisor: int = 1

    def __post_init__(self) -> None:
        if not self.terms or self.divisor < 1:
            raise ValueError("a formula has at least one term, and divides by a whole number above 0")
        if (self.terms, self.constant, self.divisor) != _simplest(self.terms, self.constant, self.divisor):
            raise ValueError(f"the formula {self} is not in its simplest form")

    @classmethod
    def of(cls, terms: Iterable[SizeTerm], constant: int = 0, divisor: int = 1) -> SizeFormula:
        """The formula in its simplest form."""
        return cls(*_simplest(terms, constant, divisor))

    @classmethod
    def parse(cls, text: str) -> SizeFormula:
        """Parse a formula. Raises `ValueError` with one sentence."""
        if len(text) > _LONGEST_TEXT:
            raise ValueError(f"a formula has at most {_LONGEST_TEXT} characters")
        return _Parser(text).formula()

    def __str__(self) -> str:
        return self.text({})

    def text(self, instead: Mapping[str, str]) -> str:
        """The formula with replaced names, such as `x.shape[1]` for `cols`."""
        parts: list[tuple[int, str]] = []
        for one in self.terms:
            number = [str(abs(one.coefficient))] if abs(one.coefficient) != 1 else []
            parts.append((one.coefficient, " * ".join([*number, *(instead.get(name, name) for name in one.names)])))
        parts += [(self.constant, str(abs(self.constant)))] if self.constant else []
        if parts[0][0] < 0 < parts[-1][0]:
            parts.insert(0, parts.pop())  # 5 - cols
        whole = ("-" if parts[0][0] < 0 else "") + parts[0][1]
        whole += "".join(f" {'-' if sign < 0 else '+'} {part}" for sign, part in parts[1:])
        if self.divisor == 1:
            return whole
        return f"({whole}) / {self.divisor}" if len(parts) > 1 or parts[0][0] < 0 else f"{whole} / {self.divisor}"

    @property
    def names(self) -> tuple[str, ...]:
        """The dimensions in the formula, each once."""
        return tuple(dict.fromkeys(name for one in self.terms for name in one.names))

    def at(self, sizes: Mapping[str, int]) -> int:
        """The size; below 1 if the dimensions are too small."""
        return self._undivided(sizes) // self.divisor

    def renamed(self, names: Mapping[str, str]) -> SizeFormula:
        """The formula with renamed dimensions."""
        terms = (SizeTerm(one.coefficient, tuple(names[name] for name in one.names)) for one in self.terms)
        return SizeFormula.of(terms, self.constant, self.divisor)

    def solved(self, name: str, size: int, others: Mapping[str, int]) -> int | None:
        """The only size of a dimension for which the formula gives `size`; None if there is none or several."""
        at_zero = self._undivided({**others, name: 0})
        step = self._undivided({**others, name: 1}) - at_zero
        if step <= 0 or self._undivided({**others, name: 2}) - at_zero != 2 * step:
            return None
        least = -(-(size * self.divisor - at_zero) // step)
        largest = (size * self.divisor + self.divisor - 1 - at_zero) // step
        return least if least == largest >= 0 else None

    def _undivided(self, sizes: Mapping[str, int]) -> int:
        return sum(one.coefficient * math.prod(sizes[name] for name in one.names) for one in self.terms) + self.constant


def _simplest(terms: Iterable[SizeTerm], constant: int, divisor: int) -> tuple[tuple[SizeTerm, ...], int, int]:
    """Combine equal products, put a positive one first, divide by common factors."""
    summed: dict[tuple[str, ...], tuple[int, tuple[str, ...]]] = {}
    for one in terms:
        key = tuple(sorted(one.names))
        before, names = summed.get(key, (0, one.names))
        summed[key] = (before + one.coefficient, names)
    kept = [one for one in summed.values() if one[0]]
    first = next((index for index, (count, _) in enumerate(kept) if count > 0), 0)
    kept[:1], kept[first : first + 1] = kept[first : first + 1], kept[:1]
    common = math.gcd(divisor, *(count for count, _ in kept))
    return tuple(SizeTerm(count // common, names) for count, names in kept), constant // common, divisor // common


# -- parsing --


@dataclass(frozen=True)
class _Part:
    """A sum of products, keyed by their names, over a divisor; the key of the constant is ()."""

    products: dict[tuple[str, ...], int]
    divisor: int = 1

    def times(self, factor: int) -> dict[tuple[str, ...], int]:
        return {names: factor * count for names, count in self.products.items()}


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, str]] = []
        place = 0
        while text[place:].strip():
            found = _TOKEN.match(text, place)
            if found is None:
                raise ValueError(f"{text!r} has {text[place:].strip()[0]!r}; a formula has names, numbers, + - * / ( )")
            assert found.lastgroup is not None
            self._tokens.append((found.lastgroup, found[found.lastgroup]))
            place = found.end()
        self._next = 0

    def formula(self) -> SizeFormula:
        part = self._sum()
        if self._next < len(self._tokens):
            raise ValueError(f"{self._text!r} goes on with {self._tokens[self._next][1]!r} where a formula could end")
        terms = [SizeTerm(count, names) for names, count in part.products.items() if names and count]
        if not terms:
            raise ValueError(f"{self._text!r} names no dimension; write a number for a constant size")
        return SizeFormula.of(terms, part.products.get((), 0), part.divisor)

    def _peek(self) -> str:
        return self._tokens[self._next][1] if self._next < len(self._tokens) else ""

    def _take(self) -> tuple[str, str]:
        if self._next >= len(self._tokens):
            raise ValueError(f"{self._text!r} ends where a name or a number should follow")
        self._next += 1
        return self._tokens[self._next - 1]

    def _sum(self) -> _Part:
        part = self._product()
        while self._peek() in ("+", "-"):
            sign = 1 if self._take()[1] == "+" else -1
            part = self._added(part, self._product(), sign)
        return part

    def _product(self) -> _Part:
        part = self._factor()
        while self._peek() in ("*", "/", "//"):
            if self._take()[1] == "*":
                part = self._multiplied(part, self._factor())
            else:
                part = self._divided(part, self._factor())
        return part

    def _factor(self) -> _Part:
        kind, word = self._take()
        if kind == "name":
            return _Part({(word,): 1})
        if kind == "number":
            if int(word) > _LARGEST_NUMBER:
                raise ValueError(f"{self._text!r} has {word}, which is too large for a size")
            return _Part({(): int(word)})
        if word == "-":
            return self._added(_Part({}), self._factor(), -1)
        if word == "(":
            part = self._sum()
            if self._peek() != ")":
                raise ValueError(f"{self._text!r} opens a bracket that it does not close")
            self._take()
            return part
        raise ValueError(f"{self._text!r} has {word!r} where a name or a number should be")

    def _added(self, one: _Part, other: _Part, sign: int) -> _Part:
        if other.divisor > 1 and (one.divisor > 1 or sign < 0):
            raise self._too_rich()
        products = one.times(other.divisor)
        for names, count in other.times(sign * one.divisor).items():
            products[names] = products.get(names, 0) + count
        return self._bounded(_Part(products, one.divisor * other.divisor))

    def _multiplied(self, one: _Part, other: _Part) -> _Part:
        if one.divisor > 1 or other.divisor > 1:
            raise self._too_rich()
        products: dict[tuple[str, ...], int] = {}
        alike: dict[tuple[str, ...], tuple[str, ...]] = {}  # a * b and b * a are the same
        for names, count in one.products.items():
            for more, times in other.products.items():
                key = alike.setdefault(tuple(sorted(names + more)), names + more)
                products[key] = products.get(key, 0) + count * times
        return self._bounded(_Part(products))

    def _divided(self, one: _Part, other: _Part) -> _Part:
        divisor = other.products.get((), 0)
        if other.divisor > 1 or divisor < 1 or any(names and count for names, count in other.products.items()):
            raise ValueError(f"{self._text!r} divides by something other than a whole number above 0")
        return _Part(one.products, one.divisor * divisor)

    def _bounded(self, part: _Part) -> _Part:
        if len(part.products) > _MOST_TERMS:
            raise ValueError(f"{self._text!r} has more than {_MOST_TERMS} terms")
        return part

    def _too_rich(self) -> ValueError:
        return ValueError(f"{self._text!r} uses the result of a division; divide once, last: (a - b + 4) / 2")
