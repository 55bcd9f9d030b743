"""Vectors of placed elements: what may be one, those that a thread holds in registers, and loops over them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from tilewright.playbook.cpp_text import Text, indented
from tilewright.playbook.places.indices import Variable
from tilewright.playbook.places.reader import Leaf, Read
from tilewright.playbook.places.sizes import Size

Known = dict[int, Text]
Element = Callable[[str, Leaf, Known], str]  # the text of a leaf, by its name; places are looked up by what is known


class Mode(Enum):
    """How the elements of a vector get their values of a read."""

    SAME = "one for all"
    VECTOR = "a vector"
    REVERSED = "a vector from its end"
    EACH = "one by one"


@dataclass(frozen=True)
class Alignment:
    """Numbers that must be multiples of the vector's width."""

    sizes: tuple[Size, ...]

    def holds(self, width: int) -> bool:
        return all(size.own % width == 0 for size in self.sizes)


def alignment(read: Read, vector: Variable) -> Alignment | None:
    """What must be multiples of the width for the read to be of vectors; None where it cannot be."""
    place, factor = read.place, read.place.factor(vector)
    if factor is None or not (factor.is_always(1) or factor.is_always(-1)) or not place.is_linear_in(vector):
        return None
    one = Size((1,) * len(factor.values), "1")
    others = [part for atom, part in place.terms if atom != vector]
    first = place.constant if factor.is_always(1) else place.constant.plus(one)
    sizes = [*others, first]
    for condition in read.conditions:
        index = condition.index
        if not index.mentions(vector):
            continue
        along = index.factor(vector)
        if along is None or not index.is_linear_in(vector) or not (along.is_always(1) or along.is_always(-1)):
            return None
        sizes += [part for atom, part in index.terms if atom != vector]
        for bound in (condition.low, condition.high):
            if bound is not None:
                edge = bound.minus(index.constant)
                sizes.append(edge if along.is_always(1) else edge.minus(one))
    return Alignment(tuple(size.negated() if size.own < 0 else size for size in sizes))


def each_element(lines: list[str]) -> list[str]:
    return ["#pragma unroll", "for (int i = 0; i < WIDTH; ++i) {", *indented(lines), "}"]


def over_vectors(lines: list[str], count: str = "VECTORS") -> list[str]:
    """For every vector k of a thread."""
    return ["#pragma unroll", f"for (int k = 0; k < {count}; ++k) {{", *indented(lines), "}"]


def guarded(place: str, test: str, lines: list[str]) -> list[str]:
    """A place, and what is done where it lies inside."""
    return [place, f"if ({test}) {{", *indented(lines), "}"]


def across_warp(combined: str) -> list[str]:
    """A statement for every distance between lanes, `offset`, from 16 down to 1."""
    return ["#pragma unroll", "for (int offset = 16; offset > 0; offset /= 2) {", f"  {combined}", "}"]


def zero_of(cpp: str) -> str:
    return f"static_cast<{cpp}>({'0.0f' if 'float' in cpp or 'half' in cpp else '0'})"
