"""In the reference's process: judging a call that is too large to be held many times over in f64.

It is judged part by part, every element by the same rules as a small one (`tolerance`), in memory that does not grow
with the call. What the rules take from a whole result, the usual movement and the reference's usual error, they take
from the part. A reference that is independent in no dimension is run whole, and its results are compared in pieces.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from tilewright.records import Task, WrongOutput
from tilewright.reference import ReferenceProblem
from tilewright.verify import parts
from tilewright.verify.diagnosis import diagnose
from tilewright.verify.distributions import ValueTraits
from tilewright.verify.expectation import Call, Tensors, expectations, in_f64, unperturbed
from tilewright.verify.parts import Cutting
from tilewright.verify.recheck import Recheck, compare_all
from tilewright.verify.tolerance import Comparison, Expected, compare

_LEAST_PART, _MOST_PART = 1 << 24, 1 << 25  # elements; smaller ones are done sooner than they are asked for
_PARTS = 32  # at least, of a call that is not larger than so many of the largest part
_MOVES = 2  # times that the truth is computed again with roundings put in: the usual ones of a tile bear out the few
_SEEDS = 16  # between the roundings of two parts
_MOST_MISSED = 4  # first looks at parts are taken while no more than one in so many decides nothing

Telling = Callable[[Expected, Comparison], bool]


@dataclass(frozen=True)
class Findings:
    """What became of a large call. Of one that is wrong, the parts behind the first wrong one were not looked at."""

    wrong: tuple[WrongOutput, ...]
    ratio: float
    telling: bool
    elements: int
    parts: int
    note: str = ""


@dataclass(frozen=True)
class LargeCall:
    """One call and what a kernel made of it. `telling` is as the judge has it."""

    task: Task
    sizes: Mapping[str, int]
    call: Call
    tensors: Tensors
    found: Mapping[str, torch.Tensor]  # by the name of the result, in order
    traits: ValueTraits
    telling: Telling

    @property
    def elements(self) -> int:
        return sum(one.numel() for one in (*self.tensors.values(), *self.found.values()))


def check_shape(name: str, found: torch.Tensor, expected: Expected) -> None:
    """Raises `ReferenceProblem` where the reference makes another shape than the task says."""
    if found.shape != expected.truth.shape:
        shapes = f"{list(expected.truth.shape)}, where the task says {list(found.shape)}"
        raise ReferenceProblem(f"the reference returns {name} of shape {shapes}")


def part_size(elements: int) -> int:
    """How many elements a part of a call may have: a small share of it, so that memory is, too."""
    return min(max(elements // _PARTS, _LEAST_PART), _MOST_PART)


@dataclass(frozen=True)
class Cut:
    """The dimensions in which a reference is independent; none where it must be run whole."""

    names: tuple[str, ...]
    note: str = ""


_known: dict[str, Cut] = {}  # by task and sizes


def cut_of(large: LargeCall, most: int) -> Cut:
    """Where a call can be cut into parts; found once for a task and sizes."""
    key = f"{large.task.hash} {dict(large.sizes)}"
    if key not in _known:
        axes = parts.sliceable(large.task)
        known = parts.independent(lambda given: in_f64(large.call, given), large.tensors, axes)
        pieces = parts.parts_of(large.task, large.sizes, known, most)
        note = "" if known else "the reference is independent in no dimension: it was run whole"
        try:
            if known and not parts.agree_whole(large.call, large.tensors, Cutting(known), pieces):
                known, note = {}, "the reference makes other things of parts than of the whole: it was run whole"
        except torch.OutOfMemoryError:
            note = "judged in parts that could not be compared with a whole call of the reference, for want of memory"
        _known[key] = Cut(tuple(known), note)
    return _known[key]


def judge_large(large: LargeCall, most: int | None = None) -> Findings:
    """Every element of every result, part by part. Raises `torch.OutOfMemoryError` where even that takes too much."""
    most = most or part_size(large.elements)
    cut = cut_of(large, most)
    if not cut.names:
        return replace(_judge_whole(large, most), note=cut.note)
    axes = {name: one for name, one in parts.sliceable(large.task).items() if name in cut.names}
    cutting = Cutting(axes)
    pieces = parts.parts_of(large.task, large.sizes, axes, most)
    ratio, telling, elements, looks = 0.0, True, 0, _Looks()
    for number, part in enumerate(pieces):
        given = cutting.inputs(large.tensors, part)
        made = [cutting.result(one, position, part) for position, one in enumerate(large.found.values())]
        expected, comparisons = _compared(large, given, made, 1 + _SEEDS * number, looks)
        wrong = []
        compared = zip(large.found, made, expected, comparisons, strict=True)
        for position, (name, found, wanted, comparison) in enumerate(compared):
            ratio, elements = max(ratio, comparison.ratio), elements + found.numel()
            telling = telling and large.telling(wanted, comparison)
            if not comparison.right:
                told = diagnose(name, found.contiguous(), wanted, comparison, given)
                start = cutting.start(position, found.ndim, part)
                wrong.append(_placed(told, start, large.found[name], parts.part_text(part, large.sizes)))
        if wrong:
            return Findings(tuple(wrong), ratio, telling, elements, number + 1)
    return Findings((), ratio, telling, elements, len(pieces), cut.note)


@dataclass
class _Looks:
    """Whether a first look at a part is worth its time: not where those at the parts before it decided little."""

    parts: int = 0
    missed: int = 0

    def is_worth_it(self) -> bool:
        self.parts += 1
        return _MOST_MISSED * self.missed < self.parts + 1


def _compared(
    large: LargeCall, given: Tensors, made: list[torch.Tensor], seed: int, looks: _Looks
) -> tuple[list[Expected], list[Comparison]]:
    """Every result of a part beside what is expected of it.

    What is right with nothing allowed for roundings on the way is right with it, and is known for a quarter of the
    work.
    """
    known = unperturbed(large.call, given)
    expected = known.expected()
    for name, found, wanted in zip(large.found, made, expected, strict=True):
        check_shape(name, found, wanted)
    if looks.is_worth_it():
        comparisons = [compare(one, wanted, traits=large.traits) for one, wanted in zip(made, expected, strict=True)]
        if all(_is_settled(one, by) for one, by in zip(made, comparisons, strict=True)):
            return expected, comparisons
        looks.missed += 1
        del comparisons
    reference = (large.call, given, large.task.precision)
    expected = expectations(*reference, moves=_MOVES, first_seed=seed, known=known)
    return compare_all(made, expected, large.traits, Recheck(*reference, seed))


def _is_settled(found: torch.Tensor, comparison: Comparison) -> bool:
    """Whether a result is right whatever roundings would move. Of a narrow type whose errors may lean one way, they say
    which elements count for that, so only one without errors is."""
    return comparison.right and (not _is_narrow(found) or comparison.ratio == 0.0)


def _is_narrow(found: torch.Tensor) -> bool:
    return found.is_floating_point() and found.dtype.itemsize <= 2


def _placed(told: WrongOutput, start: tuple[int, ...], whole: torch.Tensor, where: str) -> WrongOutput:
    """A diagnosis of a part as one of the whole result."""
    first = tuple(replace(one, index=tuple(a + b for a, b in zip(one.index, start, strict=True))) for one in told.first)
    text = f"judged in parts, the first wrong one is {where}; in it, {told.description}" if where else told.description
    return replace(told, first=first, elements=whole.numel(), description=text)


def _judge_whole(large: LargeCall, most: int) -> Findings:
    known = unperturbed(large.call, large.tensors)
    first = _judge_pieces(large, known.expected(), most)
    if not first.wrong and not any(map(_is_narrow, large.found.values())):
        return first
    reference = (large.call, large.tensors, large.task.precision)
    return _judge_pieces(large, expectations(*reference, moves=_MOVES, known=known), most)


def _judge_pieces(large: LargeCall, expected: list[Expected], most: int) -> Findings:
    """The results of a whole call, each by pieces; of one that is wrong, none behind the first wrong piece."""
    ratio, telling, elements, wrong, count = 0.0, True, 0, [], 0
    for (name, found), wanted in zip(large.found.items(), expected, strict=True):
        check_shape(name, found, wanted)
        for start, piece, of_piece in _pieces(found, wanted, most):
            comparison = compare(piece, of_piece, traits=large.traits)
            ratio, elements, count = max(ratio, comparison.ratio), elements + piece.numel(), count + 1
            telling = telling and large.telling(of_piece, comparison)
            if not comparison.right:
                told = diagnose(name, piece.contiguous(), of_piece, comparison, large.tensors)
                at = (start, *(0 for _ in piece.shape[1:])) if piece.ndim else ()
                where = f"from place {start} of its first dimension on" if start else ""
                wrong.append(_placed(told, at, found, where))
                break
    return Findings(tuple(wrong), ratio, telling, elements, count)


def _pieces(found: torch.Tensor, expected: Expected, most: int) -> Iterator[tuple[int, torch.Tensor, Expected]]:
    """A result and what is expected of it, by pieces of its first dimension; places in a sorted order stay whole."""
    if not found.ndim or expected.order is not None or found.numel() <= most:
        yield 0, found, expected
        return
    step = max(1, most // max(math.prod(found.shape[1:]), 1))
    for start in range(0, found.shape[0], step):
        rows = slice(start, start + step)
        moved = tuple(one[rows] for one in expected.moved)
        yield start, found[rows], Expected(expected.own[rows], expected.truth[rows], moved)
