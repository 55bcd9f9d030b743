"""Reductions about an earlier one, such as squares of differences from the mean, by a piece of a row about its own.

What a piece sums up about its own mean or greatest element is corrected when pieces are put together: so moments and
softmax need one pass over a row and not two.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tilewright.playbook.cpp_text import Text
from tilewright.playbook.row_kernel import RowKernel
from tilewright.playbook.row_program import COLS, Pointwise, Reduce, Reduction, RowProgram
from tilewright.playbook.templates import sections

_CUDA = sections("structures/about")

COUNT = "count_of(first, vectors)"  # the elements of a piece, by the number of its first vector

HELPERS = _CUDA["helpers"]

CORRECTIONS = {
    "moments": _CUDA["corrections_moments"],
    "exponentials": _CUDA["corrections_exponentials"],
}


class Correction(str, Enum):
    """How pieces that did a reduction about their own earlier one are put together."""

    MOMENTS = "moments"  # squares of differences from the piece's mean
    EXPONENTIALS = "exponentials"  # sums of exponentials less the piece's greatest


@dataclass(frozen=True)
class About:
    """A reduction of differences from an earlier one."""

    second: int
    first: int
    value: int  # what is subtracted: the mean, or the first reduction itself
    correction: Correction


def about(program: RowProgram, index: int) -> About | None:
    """What a reduction is about, where a piece can do it about its own."""
    value = program.values[index]
    if not isinstance(value, Reduce) or value.op is not Reduction.SUM:
        return None
    summed = program.values[value.argument]
    if not isinstance(summed, Pointwise) or summed.op not in ("mul", "exp") or len(set(summed.arguments)) != 1:
        return None
    difference = program.values[summed.arguments[0]]
    if not isinstance(difference, Pointwise) or difference.op != "sub":
        return None
    element, subtracted = difference.arguments
    if summed.op == "exp" and program.values[subtracted] == Reduce(Reduction.GREATEST, element):
        return About(index, subtracted, subtracted, Correction.EXPONENTIALS)
    mean = program.values[subtracted]
    if summed.op == "mul" and isinstance(mean, Pointwise) and mean.op == "div":
        first, count = mean.arguments
        counted = program.values[count]
        whole = isinstance(counted, Pointwise) and program.values[counted.arguments[0]] == COLS
        if whole and program.values[first] == Reduce(Reduction.SUM, element):
            return About(index, first, subtracted, Correction.MOMENTS)
    return None


def own_values(kernel: RowKernel, level: int, whose: str, count: str) -> list[str]:
    """The own mean or greatest element of a piece or block, in place of the row's; `count` is of its elements."""
    lines: list[str] = []
    for one in filter(None, (about(kernel.program, index) for index in kernel.program.reductions_of(level))):
        if one.value in kernel.row_known and one.value != one.first:
            continue
        first, moments = kernel.namer.of(one.first), one.correction is Correction.MOMENTS
        own = kernel.namer.fresh(f"{'mean' if moments else 'greatest'}_of_{whose}")
        if moments:
            lines.append(f"const float {own} = {first} / {count};")
        else:
            lines.append(f"const float {own} = {first} == -INFINITY ? 0.0f : {first};  // inf - inf would be NaN")
        kernel.row_known[one.value] = Text(own)
    return lines


def passes_of(program: RowProgram) -> list[tuple[int, ...]]:
    """The levels of reductions, from 0, that each pass does: one, or two where the second is about the first."""
    levels = max((program.levels[index] for index in program.reductions), default=0)
    found: list[tuple[int, ...]] = []
    level = 0
    while level < levels:
        after = program.reductions_of(level + 1) if level + 1 < levels else ()
        matched = [about(program, index) for index in after]
        joined = bool(matched) and all(one and one.first in program.reductions_of(level) for one in matched)
        found.append((level, level + 1) if joined else (level,))
        level += 1 + joined
    return found
