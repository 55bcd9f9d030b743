"""Formulas of sizes over other sizes: `cols / 2`, `2 * cols`, `(height - kernel + 4) / 2`.

`/` rounds down. A formula has at most one division, which comes last.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_STRANGE = re.compile(r"[^\w\s+*/()-]|\*\*")
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
        return _read(text)

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


# -- parsing: sums of products, as a dictionary of coefficients by names with () for the constant, over a divisor --

_Part = tuple[dict[tuple[str, ...], int], int]


def _read(text: str) -> SizeFormula:
    """The formula of a text that Python can read as an expression of names, numbers, + - * / and brackets."""
    strange = _STRANGE.search(text)
    if strange is not None:
        raise ValueError(f"{text!r} has {strange[0]!r}; a formula has names, numbers, + - * / ( )")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        raise ValueError(f"{text!r} is no formula; write names, numbers, + - * / and brackets in pairs") from None
    products, divisor = _part(tree, text)
    terms = [SizeTerm(count, names) for names, count in products.items() if names and count]
    if not terms:
        raise ValueError(f"{text!r} names no dimension; write a number for a constant size")
    return SizeFormula.of(terms, products.get((), 0), divisor)


def _part(node: ast.expr, text: str) -> _Part:
    match node:
        case ast.Name(id=name):
            return {(name,): 1}, 1
        case ast.Constant(value=int() as number):
            if number > _LARGEST_NUMBER:
                raise ValueError(f"{text!r} has {number}, which is too large for a size")
            return {(): number}, 1
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _added(({}, 1), _part(operand, text), -1, text)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as sign, right=right):
            return _added(_part(left, text), _part(right, text), 1 if isinstance(sign, ast.Add) else -1, text)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _multiplied(_part(left, text), _part(right, text), text)
        case ast.BinOp(left=left, op=ast.Div() | ast.FloorDiv(), right=right):
            (products, divisor), (others, more) = _part(left, text), _part(right, text)
            by = others.get((), 0)
            if more > 1 or by < 1 or any(names and count for names, count in others.items()):
                raise ValueError(f"{text!r} divides by something other than a whole number above 0")
            return products, divisor * by
    raise ValueError(f"{text!r} is no formula; write names, numbers, + - * / and brackets in pairs")


def _added(one: _Part, other: _Part, sign: int, text: str) -> _Part:
    if other[1] > 1 and (one[1] > 1 or sign < 0):
        raise _too_rich(text)
    products = {names: other[1] * count for names, count in one[0].items()}
    for names, count in other[0].items():
        products[names] = products.get(names, 0) + sign * one[1] * count
    return _bounded(products, text), one[1] * other[1]


def _multiplied(one: _Part, other: _Part, text: str) -> _Part:
    if one[1] > 1 or other[1] > 1:
        raise _too_rich(text)
    products: dict[tuple[str, ...], int] = {}
    alike: dict[tuple[str, ...], tuple[str, ...]] = {}  # a * b and b * a are the same
    for names, count in one[0].items():
        for more, times in other[0].items():
            key = alike.setdefault(tuple(sorted(names + more)), names + more)
            products[key] = products.get(key, 0) + count * times
    return _bounded(products, text), 1


def _bounded(products: dict[tuple[str, ...], int], text: str) -> dict[tuple[str, ...], int]:
    if len(products) > _MOST_TERMS:
        raise ValueError(f"{text!r} has more than {_MOST_TERMS} terms")
    return products


def _too_rich(text: str) -> ValueError:
    return ValueError(f"{text!r} uses the result of a division; divide once, last: (a - b + 4) / 2")
