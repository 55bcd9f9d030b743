"""Index expressions: sums of loop variables, quotients, remainders and looked-up numbers.

Every view of a tensor is a rewrite of these; `div` and `mod` simplify by bounds, so that a reshape and its inverse
cancel. A simplification is made only where it holds in every call of the size table. All terms are made once per table,
so that equal ones are the same object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import gcd
from typing import TYPE_CHECKING

from tilewright.playbook.loops.sizes import Size, SizeTable

if TYPE_CHECKING:
    from tilewright.playbook.loops.ir import Expr

Bounds = tuple[tuple[int, ...], tuple[int, ...]]  # least and most, in every call


class Atom:
    """A loop variable (0 <= it < size), a quotient, a remainder, or a number looked up in a tensor.

    A looked-up number below zero counts from the end of `size`.
    """

    __slots__ = ("bounds", "index", "key", "kind", "name", "size", "value", "variables")

    def __init__(self, kind: str, size: Size, name: str = "", index: Index | None = None, value: Expr | None = None):
        self.kind, self.size, self.name, self.index, self.value = kind, size, name, index, value
        most = tuple(one - 1 for one in size.values)
        zero = (0,) * len(most)
        if kind == "var":
            self.variables: frozenset[Atom] = frozenset((self,))
            self.key: tuple[object, ...] = (0, len(name), name)
        elif kind == "lookup":
            assert value is not None
            self.variables, self.key = value.variables, (3, value.serial, "")
        else:
            assert index is not None
            self.variables = index.variables
            self.key = (1 if kind == "div" else 2, min((one.key for one, _ in index.terms), default=()), "")
        self.bounds: Bounds = zero, most
        if kind == "div":
            assert index is not None
            low, high = index.bounds
            self.bounds = (
                tuple(a // (b or 1) for a, b in zip(low, size.values, strict=True)),
                tuple(a // (b or 1) for a, b in zip(high, size.values, strict=True)),
            )

    @property
    def inner(self) -> Index:
        assert self.index is not None
        return self.index

    @property
    def looked_up(self) -> Expr:
        assert self.value is not None
        return self.value


class Index:
    """A sum: constant + factor * atom + ..."""

    __slots__ = ("_bounds", "constant", "terms", "variables", "world")

    def __init__(self, world: Indices, terms: tuple[tuple[Atom, Size], ...], constant: Size):
        self.world, self.terms, self.constant = world, terms, constant
        self.variables: frozenset[Atom] = frozenset[Atom]().union(*(atom.variables for atom, _ in terms))
        self._bounds: Bounds | None = None

    @property
    def is_constant(self) -> bool:
        return not self.terms

    @property
    def bounds(self) -> Bounds:
        if self._bounds is None:
            low, high = list(self.constant.values), list(self.constant.values)
            for atom, factor in self.terms:
                least, most = atom.bounds
                for call, by in enumerate(factor.values):
                    ends = (by * least[call], by * most[call])
                    low[call] += min(ends)
                    high[call] += max(ends)
            self._bounds = tuple(low), tuple(high)
        return self._bounds

    def __add__(self, other: Index | Size | int) -> Index:
        if not isinstance(other, Index):
            return self.world.index(self.terms, self.constant + other)
        found = dict(self.terms)
        for atom, factor in other.terms:
            found[atom] = found[atom] + factor if atom in found else factor
        return self.world.normal(found, self.constant + other.constant)

    def __mul__(self, factor: Size | int) -> Index:
        if not isinstance(factor, Size):
            factor = self.world.sizes.size(factor)
        if factor.is_always(1):
            return self
        return self.world.normal({atom: one * factor for atom, one in self.terms}, self.constant * factor)

    def __sub__(self, other: Index | Size | int) -> Index:
        return self + (other * -1 if not isinstance(other, int) else -other)

    def rewritten(self, variables: Mapping[Atom, Index], value: Callable[[Expr], Expr] = lambda one: one) -> Index:
        """With indices in the place of variables, and looked-up values passed through `value`."""
        if not any(one.kind == "lookup" for one in self._below) and not any(one in variables for one in self.variables):
            return self
        made = self.world.index((), self.constant)
        for atom, factor in self.terms:
            if atom.kind == "var":
                one = variables.get(atom) or self.world.of(atom)
            elif atom.kind == "div":
                one = self.world.div(atom.inner.rewritten(variables, value), atom.size)
            elif atom.kind == "mod":
                one = self.world.mod(atom.inner.rewritten(variables, value), atom.size)
            else:
                one = self.world.lookup(value(atom.looked_up), atom.size)
            made = made + one * factor
        return made

    @property
    def _below(self) -> Iterable[Atom]:
        for atom, _ in self.terms:
            yield atom
            if atom.index is not None:
                yield from atom.index._below

    @property
    def lookups(self) -> list[Expr]:
        return [one.looked_up for one in self._below if one.kind == "lookup"]

    @property
    def single(self) -> Atom | None:
        """The atom that an index is, or None."""
        plain = len(self.terms) == 1 and self.constant.is_always(0) and self.terms[0][1].is_always(1)
        return self.terms[0][0] if plain else None

    def evaluated(self, values: Mapping[str, int]) -> int:
        """At the task's own sizes, when variables have these values; looked-up numbers count as 0."""
        total = self.constant.own
        for atom, factor in self.terms:
            if atom.kind == "var":
                total += factor.own * values.get(atom.name, 0)
            elif atom.kind == "div":
                total += factor.own * (atom.inner.evaluated(values) // atom.size.own)
            elif atom.kind == "mod":
                total += factor.own * (atom.inner.evaluated(values) % atom.size.own)
        return total


class Indices:
    """Makes index expressions, each once."""

    def __init__(self, sizes: SizeTable) -> None:
        self.sizes = sizes
        self._atoms: dict[tuple[object, ...], Atom] = {}
        self._indices: dict[tuple[object, ...], Index] = {}
        self.zero = self.index((), sizes.zero)

    def index(self, terms: tuple[tuple[Atom, Size], ...], constant: Size) -> Index:
        key = (terms, constant)
        if key not in self._indices:
            self._indices[key] = Index(self, terms, constant)
        return self._indices[key]

    def _atom(self, kind: str, size: Size, *rest: object, **named: object) -> Atom:
        key = (kind, size, *rest, *named.values())
        if key not in self._atoms:
            self._atoms[key] = Atom(kind, size, *rest, **named)  # type: ignore[arg-type]
        return self._atoms[key]

    def var(self, name: str, size: Size) -> Atom:
        return self._atom("var", size, name)

    def lookup(self, value: Expr, size: Size) -> Index:
        return self.of(self._atom("lookup", size, value=value))

    def number(self, value: Size | int) -> Index:
        return self.index((), self.sizes.size(value))

    def of(self, atom: Atom) -> Index:
        if atom.kind == "var" and atom.size.is_always(1):
            return self.zero
        return self.index(((atom, self.sizes.one),), self.sizes.zero)

    def normal(self, terms: dict[Atom, Size], constant: Size) -> Index:
        """Without zeros, in an order that sizes do not change, and with d * (x / d) + x % d written as x."""
        terms = {atom: factor for atom, factor in terms.items() if not factor.is_always(0)}
        for atom, factor in list(terms.items()):
            if atom.kind == "mod":
                other = self.div(atom.inner, atom.size).single
                if other is not None and terms.get(other) is factor * atom.size:
                    rest = {one: many for one, many in terms.items() if one is not atom and one is not other}
                    return self.index(_sorted(rest), constant) + atom.inner * factor
        return self.index(_sorted(terms), constant)

    # -- quotients and remainders --

    def _split(self, index: Index, unit: Size) -> tuple[Index, Index]:
        """A part that the unit divides, and the rest."""
        whole = {atom: factor for atom, factor in index.terms if unit.divides(factor)}
        rest = {atom: factor for atom, factor in index.terms if atom not in whole}
        constant, zero = index.constant, self.sizes.zero
        if unit.divides(constant):
            own, left = constant, zero
        elif constant.literal is not None and unit.literal is not None:
            left = constant.remainder(unit)
            own = constant - left
        else:
            own, left = zero, constant
        return self.normal(whole, own), self.normal(rest, left)

    def _over(self, index: Index, unit: Size) -> Index:
        return self.normal({atom: factor.over(unit) for atom, factor in index.terms}, index.constant.over(unit))

    def _units(self, index: Index, divisor: Size) -> list[Size]:
        """Common divisors of factors and the divisor that came up as sizes, greatest first."""
        found: dict[Size, None] = {}
        for _, factor in index.terms:
            known = self.sizes.known(tuple(map(gcd, factor.values, divisor.values)))
            if known is not None and not known.is_always(1) and known is not divisor:
                found[known] = None
        return sorted(found, key=lambda one: one.values, reverse=True)

    def div(self, index: Index, divisor: Size) -> Index:
        if divisor.is_always(1):
            return index
        whole, rest = self._split(index, divisor)
        if _is_within(rest, divisor):
            return self._over(whole, divisor)
        for unit in self._units(rest, divisor):
            high, low = self._split(rest, unit)
            if _is_within(low, unit):
                return self._over(whole, divisor) + self.div(self._over(high, unit), divisor.over(unit))
        inner = rest.single
        if inner is not None and inner.kind == "div":
            return self._over(whole, divisor) + self.div(inner.inner, inner.size * divisor)
        return self._over(whole, divisor) + self.of(self._atom("div", divisor, index=rest))

    def mod(self, index: Index, divisor: Size) -> Index:
        if divisor.is_always(1):
            return self.zero
        _, rest = self._split(index, divisor)
        if _is_within(rest, divisor):
            return rest
        for unit in self._units(rest, divisor):
            high, low = self._split(rest, unit)
            if _is_within(low, unit):
                return self.mod(self._over(high, unit), divisor.over(unit)) * unit + low
        inner = rest.single
        if inner is not None and inner.kind == "mod" and divisor.divides(inner.size):
            return self.mod(inner.inner, divisor)
        return self.of(self._atom("mod", divisor, index=rest))

    # -- shapes --

    def strides(self, shape: Sequence[Size]) -> tuple[Size, ...]:
        made, step = [], self.sizes.one
        for size in reversed(shape):
            made.append(step)
            step = step * size
        return tuple(reversed(made))

    def ravel(self, indices: Sequence[Index], strides: Sequence[Size]) -> Index:
        made = self.zero
        for index, stride in zip(indices, strides, strict=True):
            made = made + index * stride
        return made

    def unravel(self, flat: Index, shape: Sequence[Size]) -> tuple[Index, ...]:
        made, strides = [], self.strides(shape)
        for place, (size, stride) in enumerate(zip(shape, strides, strict=True)):
            one = self.div(flat, stride)
            made.append(self.mod(one, size) if place else one)
        return tuple(made)

    def refine(self, variables: Sequence[Atom], indices: Sequence[Index]) -> dict[Atom, Index]:
        """Variables split where quotients and remainders of them are taken, so that the indices become sums.

        For `c / 4` and `c % 4` with c < 32 it answers {c: 4 * c_hi + c_lo}.
        """
        split = {one: self.of(one) for one in variables}
        for _ in range(8):
            found = None
            for index in indices:
                for atom, _ in index.rewritten(split).terms:
                    inner = atom.inner.single if atom.index is not None else None
                    if inner is not None and inner.kind == "var" and atom.size.divides(inner.size):
                        found = inner, atom.size
            if found is None:
                break
            one, divisor = found
            high, low = self.var(f"{one.name}h", one.size.over(divisor)), self.var(f"{one.name}l", divisor)
            parts = {one: self.of(high) * divisor + self.of(low)}
            split = {variable: index.rewritten(parts) for variable, index in split.items()}
        return split


def _sorted(terms: dict[Atom, Size]) -> tuple[tuple[Atom, Size], ...]:
    return tuple(sorted(terms.items(), key=lambda term: term[0].key))


def _is_within(index: Index, size: Size) -> bool:
    low, high = index.bounds
    return size.table.always(lambda least, most, end: least >= 0 and most < end, low, high, size.values)
