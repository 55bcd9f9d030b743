"""Places as sums: numbers of the plan times loop variables, quotients, remainders and looked-up numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.playbook.places.sizes import Size


@dataclass(frozen=True)
class Variable:
    """A number that a kernel's thread knows, from 0 up to its size."""

    name: str
    size: Size


@dataclass(frozen=True)
class Quotient:
    index: Index
    divisor: Size


@dataclass(frozen=True)
class Remainder:
    index: Index
    divisor: Size


@dataclass(frozen=True)
class Lookup:
    """A whole number computed from tensors: the value of that number; below 0 it counts from the end of `size`."""

    value: int
    size: Size | None = None


Atom = Variable | Quotient | Remainder | Lookup


@dataclass(frozen=True)
class Index:
    terms: tuple[tuple[Atom, Size], ...]
    constant: Size

    def plus(self, other: Index) -> Index:
        found = dict(self.terms)
        for atom, factor in other.terms:
            found[atom] = found[atom].plus(factor) if atom in found else factor
        kept = tuple((atom, factor) for atom, factor in found.items() if not factor.is_always(0))
        return Index(kept, self.constant.plus(other.constant))

    def times(self, factor: Size) -> Index:
        return Index(tuple((atom, one.times(factor)) for atom, one in self.terms), self.constant.times(factor))

    def shifted(self, by: Size) -> Index:
        return Index(self.terms, self.constant.plus(by))

    def factor(self, atom: Atom) -> Size | None:
        return dict(self.terms).get(atom)

    @property
    def atoms(self) -> tuple[Atom, ...]:
        return tuple(atom for atom, _ in self.terms)

    def mentions(self, variable: Variable) -> bool:
        """Whether the variable is in it, however deep; not inside looked-up values."""
        return any(
            atom == variable or (isinstance(atom, (Quotient, Remainder)) and atom.index.mentions(variable))
            for atom in self.atoms
        )

    def is_linear_in(self, variable: Variable) -> bool:
        return not any(isinstance(atom, (Quotient, Remainder)) and atom.index.mentions(variable) for atom in self.atoms)

    @property
    def lookups(self) -> tuple[Lookup, ...]:
        found: list[Lookup] = []
        for atom in self.atoms:
            found += [atom] if isinstance(atom, Lookup) else []
            found += atom.index.lookups if isinstance(atom, (Quotient, Remainder)) else []
        return tuple(dict.fromkeys(found))

    def bounds(self) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """The least and the greatest number it can be, at every probe; None where data decide."""
        low = high = self.constant.values
        for atom, factor in self.terms:
            top = _greatest(atom)
            if top is None:
                return None
            ends = tuple(one * most for one, most in zip(factor.values, top, strict=True))
            low = tuple(a + min(b, 0) for a, b in zip(low, ends, strict=True))
            high = tuple(a + max(b, 0) for a, b in zip(high, ends, strict=True))
        return low, high

    def lies_in(self, size: Size) -> bool:
        """Whether it is surely from 0 up to the size."""
        found = self.bounds()
        if found is None:
            return False
        return all(low >= 0 for low in found[0]) and _is_below(found[1], size)

    def replaced(self, change: Callable[[Variable], Index | None]) -> Index:
        """With an index in the place of every variable for which there is one."""
        made = Index((), self.constant)
        for atom, factor in self.terms:
            one = Index(((atom, _one(factor)),), _zero(factor))
            if isinstance(atom, Variable):
                one = change(atom) or one
            elif isinstance(atom, Quotient):
                one = divided(atom.index.replaced(change), atom.divisor)[0]
            elif isinstance(atom, Remainder):
                one = divided(atom.index.replaced(change), atom.divisor)[1]
            made = made.plus(one.times(factor))
        return made


def of_variable(variable: Variable) -> Index:
    return Index(((variable, _one(variable.size)),), _zero(variable.size))


def of_atom(atom: Atom, like: Size) -> Index:
    return Index(((atom, _one(like)),), _zero(like))


def constant(size: Size) -> Index:
    return Index((), size)


def flat_place(places: tuple[Index, ...], sizes: tuple[Size, ...], one: Size) -> Index:
    """The place of an element in a dense tensor."""
    flat, stride = constant(one.minus(one)), one
    for place, size in zip(reversed(places), reversed(sizes), strict=True):
        flat = flat.plus(place.times(stride))
        stride = stride.times(size)
    return flat


def divided(index: Index, divisor: Size) -> tuple[Index, Index]:
    """Quotient and remainder; plain sums where the terms show what they are."""
    if divisor.is_always(1):
        return index, constant(_zero(divisor))
    whole = tuple((atom, factor) for atom, factor in index.terms if divisor.divides(factor))
    rest = tuple((atom, factor) for atom, factor in index.terms if not divisor.divides(factor))
    exact = divisor.divides(index.constant)
    quotient = Index(
        tuple((atom, factor.over(divisor)) for atom, factor in whole),
        index.constant.over(divisor) if exact else _zero(divisor),
    )
    left = Index(rest, _zero(divisor) if exact else index.constant)
    if left.lies_in(divisor):
        return quotient, left
    over, under = Quotient(left, divisor), Remainder(left, divisor)
    return quotient.plus(of_atom(over, divisor)), of_atom(under, divisor)


def _greatest(atom: Atom) -> tuple[int, ...] | None:
    if isinstance(atom, Variable):
        return tuple(value - 1 for value in atom.size.values)
    if isinstance(atom, Remainder):
        return tuple(value - 1 for value in atom.divisor.values)
    if isinstance(atom, Quotient):
        found = atom.index.bounds()
        return None if found is None else tuple(a // b for a, b in zip(found[1], atom.divisor.values, strict=True))
    return None


def _is_below(greatest: tuple[int, ...], size: Size) -> bool:
    """Whether a number is below the size wherever it was seen; one that grows is not below one that does not."""
    if size.literal is not None and len(set(greatest)) > 1:
        return False
    return all(one < top for one, top in zip(greatest, size.values, strict=True))


def _one(like: Size) -> Size:
    return Size((1,) * len(like.values), "1")


def _zero(like: Size) -> Size:
    return Size((0,) * len(like.values), "0")


@dataclass(frozen=True)
class Condition:
    """low <= index < high, where each is given."""

    index: Index
    low: Size | None = None
    high: Size | None = None

    @property
    def holds_always(self) -> bool:
        found = self.index.bounds()
        if found is None:
            return False
        low, high = self.low, self.high
        above = low is None or all(least >= bound for least, bound in zip(found[0], low.values, strict=True))
        return above and (high is None or _is_below(found[1], high))
