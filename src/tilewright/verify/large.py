"""In the reference's process: judge a call that is too large to be held several times in f64.

It is judged part by part, by the rules of `tolerance`, in memory that does not grow with the call. Statistics that the
rules take from a whole result are taken from the part. A reference that is independent in no dimension is run whole,
and its results are compared in pieces.
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

_LEAST_PART, _MOST_PART = 1 << 24, 1 << 25  # elements of a part
_PARTS = 32  # parts of a call, within these limits
_MOVES = 2  # perturbed runs: tile statistics make up for the small number
_SEEDS = 16  # between the perturbations of two parts
_MOST_MISSED = 4  # unperturbed comparisons go on while no more than one in so many is undecided

Telling = Callable[[Expected, Comparison], bool]


@dataclass(frozen=True)
class Findings:
    """The outcome of a large call. Parts behind the first wrong one are not judged."""

    wrong: tuple[WrongOutput, ...]
    ratio: float
    telling: bool
    elements: int
    parts: int
    note: str = ""


@dataclass(frozen=True)
class LargeCall:
    """One call and a kernel's results. `telling` is `is_telling` of the case."""

    task: Task
    sizes: Mapping[str, int]
    call: Call
    tensors: Tensors
    found: Mapping[str, torch.Tensor]  # by the name of the result, in order
    traits: ValueTraits
    telling: Telling


def check_shape(name: str, found: torch.Tensor, expected: Expected) -> None:
    """Raises `ReferenceProblem` where the reference returns another shape than the task says."""
    if found.shape != expected.truth.shape:
        shapes = f"{list(expected.truth.shape)}, where the task says {list(found.shape)}"
        raise ReferenceProblem(f"the reference returns {name} of shape {shapes}")


_known: dict[str, tuple[dict[str, parts.Axes], str]] = {}  # by task and sizes


def independent_axes(large: LargeCall, most: int) -> tuple[dict[str, parts.Axes], str]:
    """The dimensions to cut along, none where the reference must be run whole, with a note; cached."""
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
        _known[key] = known, note
    return _known[key]


def judge_large(large: LargeCall, most: int | None = None) -> Findings:
    """Judge every element, part by part. Raises `torch.OutOfMemoryError` where even a part is too large."""
    elements = sum(one.numel() for one in (*large.tensors.values(), *large.found.values()))
    most = most or min(max(elements // _PARTS, _LEAST_PART), _MOST_PART)
    axes, note = independent_axes(large, most)
    if not axes:
        return replace(_judge_whole(large, most), note=note)
    cutting = Cutting(axes)
    pieces = parts.parts_of(large.task, large.sizes, axes, most)
    ratio, telling, elements, missed = 0.0, True, 0, 0
    for number, part in enumerate(pieces):
        given = cutting.inputs(large.tensors, part)
        made = [cutting.result(one, position, part) for position, one in enumerate(large.found.values())]
        first = _MOST_MISSED * missed < number + 2
        expected, comparisons, decided = _compared(large, given, made, 1 + _SEEDS * number, first)
        missed += first and not decided
        wrong = []
        compared = zip(large.found, made, expected, comparisons, strict=True)
        for position, (name, found, wanted, comparison) in enumerate(compared):
            ratio, elements = max(ratio, comparison.ratio), elements + found.numel()
            telling = telling and large.telling(wanted, comparison)
            if not comparison.right:
                diagnosis = diagnose(name, found.contiguous(), wanted, comparison, given)
                start = cutting.start(position, found.ndim, part)
                wrong.append(_placed(diagnosis, start, large.found[name], parts.part_text(part, large.sizes)))
        if wrong:
            return Findings(tuple(wrong), ratio, telling, elements, number + 1)
    return Findings((), ratio, telling, elements, len(pieces), note)


def _compared(
    large: LargeCall, given: Tensors, made: list[torch.Tensor], seed: int, first: bool
) -> tuple[list[Expected], list[Comparison], bool]:
    """Compare the results of a part with what is expected, `first` without perturbations; whether that decided it. A
    result that is right without an allowance for perturbations is right with it, at a quarter of the work."""
    known = unperturbed(large.call, given)
    expected = known.expected()
    for name, found, wanted in zip(large.found, made, expected, strict=True):
        check_shape(name, found, wanted)
    if first:
        comparisons = [compare(one, wanted, traits=large.traits) for one, wanted in zip(made, expected, strict=True)]
        if all(_is_settled(one, by) for one, by in zip(made, comparisons, strict=True)):
            return expected, comparisons, True
        del comparisons
    reference = (large.call, given, large.task.precision)
    expected = expectations(*reference, moves=_MOVES, first_seed=seed, known=known)
    return *compare_all(made, expected, large.traits, Recheck(*reference, seed)), False


def _is_settled(found: torch.Tensor, comparison: Comparison) -> bool:
    """Whether perturbations cannot change the outcome. In narrow types they decide which errors count as bias."""
    return comparison.right and (not _is_narrow(found) or comparison.ratio == 0.0)


def _is_narrow(found: torch.Tensor) -> bool:
    return found.is_floating_point() and found.dtype.itemsize <= 2


def _placed(diagnosis: WrongOutput, start: tuple[int, ...], whole: torch.Tensor, where: str) -> WrongOutput:
    first = tuple(
        replace(one, index=tuple(a + b for a, b in zip(one.index, start, strict=True))) for one in diagnosis.first
    )
    text = diagnosis.description
    text = f"judged in parts, the first wrong one is {where}; in it, {text}" if where else text
    return replace(diagnosis, first=first, elements=whole.numel(), description=text)


def _judge_whole(large: LargeCall, most: int) -> Findings:
    known = unperturbed(large.call, large.tensors)
    first = _judge_pieces(large, known.expected(), most)
    if not first.wrong and not any(map(_is_narrow, large.found.values())):
        return first
    reference = (large.call, large.tensors, large.task.precision)
    return _judge_pieces(large, expectations(*reference, moves=_MOVES, known=known), most)


def _judge_pieces(large: LargeCall, expected: list[Expected], most: int) -> Findings:
    """Compare the results of a whole call in pieces; pieces behind the first wrong one are skipped."""
    ratio, telling, elements, wrong, count = 0.0, True, 0, [], 0
    for (name, found), wanted in zip(large.found.items(), expected, strict=True):
        check_shape(name, found, wanted)
        for start, piece, of_piece in _pieces(found, wanted, most):
            comparison = compare(piece, of_piece, traits=large.traits)
            ratio, elements, count = max(ratio, comparison.ratio), elements + piece.numel(), count + 1
            telling = telling and large.telling(of_piece, comparison)
            if not comparison.right:
                diagnosis = diagnose(name, piece.contiguous(), of_piece, comparison, large.tensors)
                at = (start, *(0 for _ in piece.shape[1:])) if piece.ndim else ()
                where = f"from index {start} of its first dimension on" if start else ""
                wrong.append(_placed(diagnosis, at, found, where))
                break
    return Findings(tuple(wrong), ratio, telling, elements, count)


def _pieces(found: torch.Tensor, expected: Expected, most: int) -> Iterator[tuple[int, torch.Tensor, Expected]]:
    """A result and its expectation by pieces of the first dimension; sorted indices stay whole."""
    if not found.ndim or expected.order is not None or found.numel() <= most:
        yield 0, found, expected
        return
    step = max(1, most // max(math.prod(found.shape[1:]), 1))
    for start in range(0, found.shape[0], step):
        rows = slice(start, start + step)
        moved = tuple(one[rows] for one in expected.moved)
        open = None if expected.open is None else expected.open[rows]
        yield start, found[rows], Expected(expected.own[rows], expected.truth[rows], moved, open=open)
