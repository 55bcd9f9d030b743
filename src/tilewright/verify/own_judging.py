"""In the reference's process: what sampled blocks wrote at the task's own sizes, beside the reference there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from tilewright.records import Case, WrittenPart, WrongOutput
from tilewright.reference.torch_calls import TORCH_DTYPE, call_reference, to_torch
from tilewright.verify.case_work import work_of
from tilewright.verify.diagnosis import diagnose
from tilewright.verify.distributions import case_task, draw_inputs, traits_of
from tilewright.verify.expectation import Tensors, expectations
from tilewright.verify.further_looks import FurtherLooks, compare_all
from tilewright.verify.independence import independent_of, taken
from tilewright.verify.judging import AGAIN_SEED, is_telling
from tilewright.verify.judging_records import Judgement, WrittenRequest
from tilewright.verify.tolerance import Expected

_MOST_ELEMENTS = 3 << 20  # of the tensors at the places that are judged
_MOST_WHOLE = 20 << 20  # where none of them can be left out
_MOST_WORK = 48_000_000  # of the reference there: a fraction of a second, several times over

_Places = dict[str, tuple[int, ...]]


def judge_written(function: Callable[..., Any], request: WrittenRequest) -> Judgement:
    """Not telling where the reference is too much work at the places that were written, or not independent there."""
    case = Case(request.drawn, request.seed, request.values)
    task = case_task(request.task, case)
    places = _judged_places(request)
    if places is None:
        return Judgement((), 0.0, False, 0.0)
    contents = draw_inputs(task, case)
    specs = task.specs(request.drawn)
    drawn = {name: to_torch(spec, contents[name]) for name, spec in specs.items()}
    among = {name: tuple(place % request.drawn[name] for place in found) for name, found in places.items()}
    tensors = taken(task, drawn, among)

    def call(given: Tensors) -> tuple[torch.Tensor, ...]:
        return call_reference(function, task, given)

    expected = expectations(call, tensors, task.precision)
    parts = {part.name: part for part in request.parts}
    judged = [number for number, output in enumerate(task.outputs[: len(expected)]) if output.name in parts]
    outputs = [task.outputs[number] for number in judged]
    made = [
        _found(parts[output.name], output.shape, TORCH_DTYPE[output.dtype], expected[number], places)
        for number, output in zip(judged, outputs, strict=True)
    ]

    def of_judged(given: Tensors) -> tuple[torch.Tensor, ...]:
        return tuple(one for at, one in enumerate(call(given)) if at in judged)

    wanted, comparisons = compare_all(
        [found for found, _ in made],
        [expected[number] for number in judged],
        traits_of(task, case),
        FurtherLooks(of_judged, tensors, task.precision, AGAIN_SEED),
    )
    telling = all(is_telling(task, case, one, other) for one, other in zip(wanted, comparisons, strict=True))
    wrong = [
        _at_own_places(diagnose(output.name, found, one, comparison, tensors), output.shape, places, count)
        for output, (found, count), one, comparison in zip(outputs, made, wanted, comparisons, strict=True)
        if not comparison.right
    ]
    if wrong and not set(places) <= {*independent_of(function, task, tensors), *_single(places)}:
        telling = False  # it is not independent at these sizes
    worst = max((one.ratio for one in comparisons), default=0.0)
    compared = sum(count for _, count in made)
    return Judgement(tuple(wrong) if telling else (), worst, telling and compared > 0, 0.0)


def _judged_places(request: WrittenRequest) -> _Places | None:
    """The places of each independent dimension, as many of those written as the reference can be asked about."""
    task = request.task
    shapes = {one.name: one.shape for one in task.outputs}
    found: dict[str, set[int]] = {name: set() for name in request.independent}
    odd: dict[str, set[int]] = {name: set() for name in request.independent}
    for part in request.parts:
        for axis, name in enumerate(shapes[part.name]):
            if name in found:
                found[str(name)] |= set(part.indices[axis])
                odd[str(name)] |= set(part.odd[axis]) if part.odd else set()
    places = {name: sorted(among) for name, among in found.items()}
    while True:
        sizes = task.complete({**request.sizes, **{name: len(among) for name, among in places.items()}})
        elements = sum(spec.numel for spec in (*task.specs(sizes).values(), *task.output_specs(sizes).values()))
        work = work_of(task, sizes)
        if elements <= _MOST_ELEMENTS and work <= _MOST_WORK:
            return {name: tuple(among) for name, among in places.items()}
        longest = max(places, key=lambda name: len(places[name]), default=None)
        if longest is None or len(places[longest]) < 2:
            # No fewer can be asked about. A call of one step for each element is still affordable.
            alone = elements <= _MOST_WHOLE and work <= elements
            return {name: tuple(among) for name, among in places.items()} if alone else None
        fewer = sorted({*_thinned(places[longest]), *odd[longest]})
        places[longest] = fewer if len(fewer) < len(places[longest]) else _thinned(fewer)


def _thinned(places: list[int]) -> list[int]:
    """Half of them, the first and the last among them, at uneven distances."""
    count = len(places)
    wanted = count // 2
    if wanted < 2:
        return places[-1:]
    kept = {number * (count - 1) // (wanted - 1) for number in range(wanted)}
    return [places[number] for number in sorted(kept)]


def _found(
    part: WrittenPart, shape: tuple[str | int, ...], dtype: torch.dtype, wanted: Expected, places: _Places
) -> tuple[torch.Tensor, int]:
    """The output at the judged places: what was written, and what is right where nothing was; how much was written."""
    counts = [len(indices) for indices in part.indices]
    content = torch.frombuffer(bytearray(part.content), dtype=torch.uint8).view(dtype).view(counts)
    written = torch.frombuffer(bytearray(part.written), dtype=torch.uint8).view(counts).bool()
    right = wanted.truth if dtype.is_floating_point else wanted.own
    found = right.to(dtype).clone()
    if dtype.is_floating_point:
        found = torch.where(wanted.truth.isfinite(), found, wanted.own.to(dtype))
    target: list[torch.Tensor] = []
    for axis, name in enumerate(shape):
        among = {place: number for number, place in enumerate(places[str(name)])} if name in places else None
        known = part.indices[axis]
        kept = [number for number, place in enumerate(known) if among is None or place in among]
        content, written = (one.index_select(axis, torch.tensor(kept)) for one in (content, written))
        target.append(torch.tensor([known[n] if among is None else among[known[n]] for n in kept]))
    at = torch.meshgrid(*target, indexing="ij") if target else ()
    found[at] = torch.where(written, content, found[at])
    return found, int(written.sum())


def _single(places: _Places) -> set[str]:
    """Dimensions of which one place is judged: there is nothing it could depend on."""
    return {name for name, found in places.items() if len(found) == 1}


def _at_own_places(one: WrongOutput, shape: tuple[str | int, ...], places: _Places, judged: int) -> WrongOutput:
    """The diagnosis with the indices of the task's own call; patterns among places far apart would mislead."""
    first = tuple(
        replace(
            element,
            index=tuple(
                places[str(name)][place] if name in places else place
                for name, place in zip(shape, element.index, strict=True)
            ),
        )
        for element in one.first
    )
    description = (
        f"in a few blocks run at the task's own sizes, {one.wrong} of the {judged} elements looked at; "
        "smaller cases were right"
    )
    return replace(one, elements=judged, description=description, first=first)
