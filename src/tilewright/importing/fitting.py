"""Recovers the expression behind a number that a launcher computed, from its values in many calls.

Every candidate is checked against all calls, which span small, odd and very large sizes.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

Values = tuple[int, ...]
_MOST_FACTORS = 4
_FEW_SYMBOLS = 7
_SPLIT_SECONDS = 5.0  # for a number that may have no expression
_MOST_STEPS = 6
_WIDTHS = (4, 8, 2, 16, 32)  # of vectors
_TILES = (8, 16, 32, 64, 128, 256)
_LARGEST_WINDOW = 64
_FEWEST_ON_A_SIDE = 6
_NICE = sorted(
    {1 << k for k in range(17)} | {3 << k for k in range(1, 12)} | {5 << k for k in range(5, 9)} | {10, 100, 1000}
)


@dataclass(frozen=True)
class Term:
    """An expression and its value in each call; `is_atom`: it needs no parentheses as a factor."""

    text: str
    values: Values
    is_atom: bool = True

    @property
    def factor(self) -> str:
        return self.text if self.is_atom else f"({self.text})"


class Fitter:
    """Fits expressions of the symbols. `literals` are numbers in the source, `edges` thresholds of its branches."""

    def __init__(self, symbols: Sequence[Term], literals: Sequence[int] = (), edges: Sequence[int] = ()) -> None:
        self.edges = edges
        self._parts: dict[tuple[int, ...], Fitter] = {}
        self.symbols = _distinct(symbols)
        self.literals = sorted({n for n in literals if n > 1})
        self.nice = [*self.literals, *(n for n in _NICE if n > 1 and n not in literals)]
        self.products = _distinct(self._products())

    def _products(self) -> Iterator[Term]:
        yield from self.symbols
        for count in range(2, _MOST_FACTORS + 1):
            few = len(self.symbols) <= _FEW_SYMBOLS  # then squares, too
            choices = itertools.combinations_with_replacement if few else itertools.combinations
            for chosen in choices(self.symbols[:10], count):
                values = tuple(math.prod(column) for column in zip(*(one.values for one in chosen), strict=True))
                yield Term(" * ".join(one.factor for one in chosen), values, False)

    def fit(self, target: Values) -> Term | None:
        """The simplest term that has these values in all calls."""
        if len(set(target)) == 1 and (len(target) > 1 or not self.symbols):
            return Term(str(target[0]), target)
        simple = (self._plain, self._scaled, self._divided, self._by_symbol)
        products = (self._product_of_parts, self._rounded, self._product_of_ceilings)
        return _first(target, *simple, self._linear, self._window, self._bounded, *products, self._stairs, self._split)

    def _plain(self, target: Values) -> Term | None:
        return next((term for term in self.products if term.values == target), None)

    def _scaled(self, target: Values) -> Term | None:
        for term in self.products:
            factor, rest = divmod(target[0], term.values[0]) if term.values[0] else (0, 1)
            if rest == 0 and factor > 1 and all(t == factor * v for t, v in zip(target, term.values, strict=True)):
                return Term(f"{term.factor} * {factor}", target, False)
        return None

    def _divided(self, target: Values) -> Term | None:
        """`ceil_div(n, c)` and `n / c`; the calls bound c from both sides."""
        for term in self.products:
            if (c := self._divisor(term.values, target, up=True)) is not None:
                return Term(f"ceil_div({term.text}, {c})", target)
            if (c := self._divisor(term.values, target, up=False)) is not None:
                return Term(f"{_dividend(term)} / {c}", target, False)
        return None

    def _divisor(self, values: Values, target: Values, up: bool) -> int | None:
        low, high = 1, 1 << 62
        for n, q in zip(values, target, strict=True):
            if n < 1 or q < 0 or (up and q < 1):
                return None
            if up:  # (q - 1) * c < n <= q * c
                low = max(low, -(-n // q))
                high = min(high, (n - 1) // (q - 1)) if q > 1 else high
            else:  # q * c <= n < (q + 1) * c
                low = max(low, n // (q + 1) + 1)
                high = min(high, n // q) if q else high
        if high == 1 << 62 or low > high:
            return None
        if low == high:
            return low if low > 1 else None
        inside = [c for c in self.nice if low <= c <= high]
        return inside[0] if len(inside) == 1 or (inside and high - low < low) else None

    def _by_symbol(self, target: Values) -> Term | None:
        """`ceil_div(n, block)`, `n / block` and `round_up(n, block)`, also with a small multiple of a symbol."""
        for by, factor in itertools.product(self.symbols, (1, 2, 4, 8)):
            if min(by.values) < 1:
                continue
            divisors = [factor * v for v in by.values]
            text = by.text if factor == 1 else f"{by.factor} * {factor}"
            for term in self.products:
                rows = list(zip(term.values, divisors, target, strict=True))
                if all(-(-n // c) == t for n, c, t in rows):
                    return Term(f"ceil_div({term.text}, {text})", target)
                if factor == 1 and all(-(-32 * n // c) == t for n, c, t in rows):  # one warp each
                    return Term(f"ceil_div({term.factor} * 32, {text})", target)
                if all(n // c == t for n, c, t in rows):
                    return Term(f"{_dividend(term)} / {text if factor == 1 else f'({text})'}", target, False)
                if all(-(-n // c) * c == t for n, c, t in rows):
                    return Term(f"round_up({term.text}, {text})", target)
        return None

    def _linear(self, target: Values) -> Term | None:
        for term in self.products:
            pairs = sorted(set(zip(term.values, target, strict=True)))
            if len(pairs) < 3 or pairs[0][0] == pairs[-1][0]:
                continue
            slope, rest = divmod(pairs[-1][1] - pairs[0][1], pairs[-1][0] - pairs[0][0])
            base = pairs[0][1] - slope * pairs[0][0]
            if rest == 0 and slope > 0 and all(y == slope * x + base for x, y in pairs):
                scaled = term.factor if slope == 1 else f"{term.factor} * {slope}"
                return Term(f"{scaled} {'+' if base > 0 else '-'} {abs(base)}", target, False)
        for one, two in itertools.combinations(self.products[:40], 2):
            if all(a + b == t for a, b, t in zip(one.values, two.values, target, strict=True)):
                return Term(f"{one.text} + {two.text}", target, False)
        return None

    def _window(self, target: Values) -> Term | None:
        """`(n + 2 * p - k) / s + 1`, the output size of a convolution, with and without padding and dilation."""
        small = [one for one in self.symbols if max(one.values) <= _LARGEST_WINDOW]
        if not small or min(target) < 1:
            return None
        one_less = [t - 1 for t in target]
        count = range(len(target))
        none, ones = (0,) * len(target), (1,) * len(target)
        for n, k, s in itertools.product(self.symbols, small, [one for one in small if min(one.values) > 0]):
            for p in (None, *small):
                for d in (None, *small):
                    pads = p.values if p else none
                    steps = d.values if d else ones
                    spans = (n.values[i] + 2 * pads[i] - steps[i] * (k.values[i] - 1) - 1 for i in count)
                    if all(span >= 0 and span // s.values[i] == one_less[i] for i, span in enumerate(spans)):
                        width = f"{d.text} * ({k.text} - 1) - 1" if d else k.text
                        padded = f"{n.text} + 2 * {p.text}" if p else n.text
                        return Term(f"({padded} - {width}) / {s.text} + 1", target, False)
        return None

    def _bounded(self, target: Values) -> Term | None:
        """`min(e, c)`, `max(e, c)` or both, if a bound applies in some of the calls."""
        low, high = min(target), max(target)
        free = [i for i, t in enumerate(target) if low < t < high]
        if len(free) < 2:
            return None
        inner = tuple(target[i] for i in free)
        for term in self.products:
            for found in self._forms(term, free, inner):
                if found is None or any(
                    sorted((low, v, high))[1] != t for v, t in zip(found.values, target, strict=True)
                ):
                    continue
                text = found.text
                text = f"max({text}, {low})" if min(found.values) < low else text
                return Term(f"min({text}, {high})" if max(found.values) > high else text, target)
        return None

    def _forms(self, term: Term, free: Sequence[int], inner: Values) -> Iterator[Term | None]:
        """Candidates for the inner expression of `_bounded`, fitted to the calls `free` of the bounds."""
        yield term
        if min(term.values) < 1:
            return
        yield Term(f"next_pow2({term.text})", tuple(1 << (v - 1).bit_length() for v in term.values))
        seen = tuple(term.values[i] for i in free)
        for up in (True, False):
            if (c := self._divisor(seen, inner, up)) is not None:
                text = f"ceil_div({term.text}, {c})" if up else f"{_dividend(term)} / {c}"
                yield Term(text, tuple(-(-v // c) if up else v // c for v in term.values))
        for c in (32, 64, 128, 256):
            yield Term(f"round_up({term.text}, {c})", tuple(-(-v // c) * c for v in term.values))

    def _stairs(self, target: Values) -> Term | None:
        """`a if n <= c else b`: a step function of one size."""
        if len(set(target)) > _MOST_STEPS:
            return None
        for term in self.products:
            pairs = sorted(set(zip(term.values, target, strict=True)))
            if len({n for n, _ in pairs}) != len(pairs):
                continue
            text = ""
            for (n, here), (after, there) in itertools.pairwise(pairs):
                if here != there:
                    inside = [c for c in self.edges if n <= c < after]
                    edge = n if n + 1 == after else inside[0] if len(inside) == 1 else None
                    if edge is None or text.count("if") >= _MOST_STEPS - 1:
                        break
                    text += f"{here} if {term.text} <= {edge} else "
            else:
                return Term(f"{text}{pairs[-1][1]}", target, False)
        return None

    def _split(self, target: Values) -> Term | None:
        """`a if n <= c else b`, each side an expression of its own."""
        started = time.thread_time()
        for condition, holds in self._conditions():
            if time.thread_time() - started > _SPLIT_SECONDS:
                return None
            sides = [[i for i, one in enumerate(holds) if one is side] for side in (True, False)]
            if min(map(len, sides)) < _FEWEST_ON_A_SIDE:
                continue
            texts = []
            for side in sides:
                found = self._part(side)._simple(tuple(target[i] for i in side))
                if found is None:
                    break
                texts.append(found.text)
            else:
                return Term(f"{texts[0]} if {condition} else {texts[1]}", target, False)
        return None

    def _conditions(self) -> Iterator[tuple[str, list[bool]]]:
        """Conditions that launchers branch on: divisibility, as for vector loads, and thresholds."""
        for term, c in itertools.product(self.symbols, _WIDTHS):
            yield f"{term.factor} % {c} == 0", [v % c == 0 for v in term.values]
        for term, edge in itertools.product(self.products[:24], self.edges):
            yield f"{term.text} <= {edge}", [v <= edge for v in term.values]

    def _simple(self, target: Values) -> Term | None:
        if len(set(target)) == 1:
            return Term(str(target[0]), target)
        return _first(target, self._plain, self._scaled, self._divided, self._by_symbol, self._bounded)

    def _part(self, side: list[int]) -> Fitter:
        """A fitter for a subset of the calls."""
        key = tuple(side)
        if key not in self._parts:
            symbols = [Term(s.text, tuple(s.values[i] for i in side), s.is_atom) for s in self.symbols]
            self._parts[key] = Fitter(symbols, self.literals)
        return self._parts[key]

    def _product_of_parts(self, target: Values) -> Term | None:
        """`ceil_div(n, c) * m`."""
        for term in self.symbols:
            if all(v and t % v == 0 for v, t in zip(term.values, target, strict=True)):
                rest = tuple(t // v for v, t in zip(term.values, target, strict=True))
                found = self._divided(rest) or self._linear(rest)
                if found is not None:
                    return Term(f"{found.factor} * {term.factor}", target, False)
        return None

    def _product_of_ceilings(self, target: Values) -> Term | None:
        """`ceil_div(m, 128) * ceil_div(n, 64)`."""
        sizes = [one for one in self.symbols if min(one.values) > 0]
        parts = [(one, c, [-(-v // c) for v in one.values]) for one in sizes for c in _TILES]
        for (one, c, ones), (two, d, twos) in itertools.combinations(parts, 2):
            if one is not two and all(a * b == t for a, b, t in zip(ones, twos, target, strict=True)):
                return Term(f"ceil_div({one.text}, {c}) * ceil_div({two.text}, {d})", target, False)
        return None

    def _rounded(self, target: Values) -> Term | None:
        for term in self.products:
            if min(term.values) < 1:
                continue
            if all(1 << (v - 1).bit_length() == t for v, t in zip(term.values, target, strict=True)):
                return Term(f"next_pow2({term.text})", target)
            for c in self.nice:
                if all(-(-v // c) * c == t for v, t in zip(term.values, target, strict=True)):
                    return Term(f"round_up({term.text}, {c})", target)
        return None


def _first(target: Values, *rules: Callable[[Values], Term | None]) -> Term | None:
    return next((term for rule in rules if (term := rule(target)) is not None), None)


def _dividend(term: Term) -> str:
    return term.text if term.is_atom or " + " not in term.text else f"({term.text})"


def _distinct(terms: Sequence[Term] | Iterator[Term]) -> list[Term]:
    seen: dict[Values, Term] = {}
    for term in terms:
        seen.setdefault(term.values, term)
    return list(seen.values())
