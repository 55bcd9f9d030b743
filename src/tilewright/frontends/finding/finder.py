"""`tilewright.find`: run a model once, and list the regions worth a kernel, the most to be gained first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from tilewright.frontends.api.choices import choose_device
from tilewright.frontends.finding.costs import expected_us, measured_us, modelled_us
from tilewright.frontends.finding.operations import computing, is_product
from tilewright.frontends.finding.opinions import playbook_refusal
from tilewright.frontends.finding.recording import Operation, Recording, record
from tilewright.frontends.finding.regions import Region, find_regions
from tilewright.frontends.finding.report import FoundModel, FoundRegion
from tilewright.records import PROFILES, GpuProfile
from tilewright.tasks.errors import BadArgument

_LEAST_GAIN = 1.02  # of a region's own time


@dataclass(frozen=True)
class Searched:
    """What was found, and what it was found in."""

    model: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    found: FoundModel
    regions: tuple[Region, ...]  # in the order of `found.regions`


def search(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    gpu: str | None = None,
    say: Callable[[str], object] = str,
) -> Searched:
    """Raises `BadArgument` where the model cannot be run as it is called."""
    device = choose_device(gpu, "")
    profile = PROFILES[device.gpu]
    say("running the model once")
    recording = _recorded(model, args, kwargs)
    times, measured = _times(model, args, kwargs, recording, profile)
    say("looking for regions")
    regions = find_regions(recording)
    listed = []
    for region in regions:
        say(f"asking the playbook about {region.title}")
        listed.append(_entry(region, recording, times, profile))
    order = sorted(range(len(listed)), key=lambda place: listed[place].time_us - listed[place].expected_us)[::-1]
    kept = [place for place in order if listed[place].time_us > _LEAST_GAIN * listed[place].expected_us]
    total = sum(times)
    shown = tuple(_numbered(listed[place], number, total) for number, place in enumerate(kept, start=1))
    products = sum(time for time, one in zip(times, recording.operations, strict=True) if is_product(one))
    found = FoundModel(
        type(model).__name__,
        profile.name,
        measured,
        total,
        len(computing(recording.operations)),
        products / total if total else 0.0,
        shown,
        _amdahl(total, shown),
        _notes(measured, model),
    )
    return Searched(model, args, kwargs, found, tuple(regions[place] for place in kept))


def _recorded(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recording:
    try:
        recording = record(model, args, kwargs)
    except Exception as error:  # whatever somebody's model raises
        said = " ".join(str(error).split())
        raise BadArgument(
            f"{type(model).__name__} cannot be run with these inputs: {type(error).__name__}: {said}"
        ) from error
    if not computing(recording.operations):
        raise BadArgument(f"{type(model).__name__} computes nothing with these inputs")
    return recording


def _times(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], recording: Recording, gpu: GpuProfile
) -> tuple[list[float], bool]:
    """The time of each operation, and whether it was measured."""
    where = {one.device.type for one in (*model.parameters(), *model.buffers())}
    if where == {"cuda"}:

        def call() -> Any:
            with torch.no_grad():
                return model(*args, **kwargs)

        times = measured_us(call, recording.operations)
        if times is not None:
            return times, True
    return [modelled_us(one, gpu) for one in recording.operations], False


def _entry(region: Region, recording: Recording, times: list[float], gpu: GpuProfile) -> FoundRegion:
    refusal = playbook_refusal(region, gpu.name)
    whole = _time_of(region, recording, times, gpu)
    best = min(expected_us(region.moved, region.operations, gpu) * len(region.calls), whole)
    paths = tuple(dict.fromkeys(one.path for one in region.calls if one.path))
    return FoundRegion(
        0,
        region.name,
        region.title,
        region.kind,
        paths,
        len(region.calls),
        {name: str(one) for name, one in region.inputs.items()},
        tuple(map(str, region.outputs)),
        len(computing(region.operations)),
        whole,
        0.0,
        best,
        1.0,
        "model" if refusal else "playbook",
        refusal,
        region.chain.text.source if region.chain else "",
    )


def _time_of(region: Region, recording: Recording, times: list[float], gpu: GpuProfile) -> float:
    if region.chain is None:
        return sum(sum(times[call.first : call.last]) for call in region.calls)
    # A chain's operations are not one piece of the run: those of the same names and layouts within each call are its.
    return sum(_matched(region.operations, recording, times, call.first, call.last) for call in region.calls) or sum(
        modelled_us(one, gpu) for one in region.operations
    ) * len(region.calls)


def _matched(wanted: list[Operation], recording: Recording, times: list[float], first: int, last: int) -> float:
    left = computing(wanted)
    spent = 0.0
    for place in range(first, last):
        operation = recording.operations[place]
        match = next((one for one in left if _alike(one, operation)), None)
        if match is not None:
            left.remove(match)
            spent += times[place]
    return spent


def _alike(one: Operation, other: Operation) -> bool:
    return (one.name, one.reads, one.writes) == (other.name, other.reads, other.writes)


def _numbered(entry: FoundRegion, number: int, total: float) -> FoundRegion:
    saved = entry.time_us - entry.expected_us
    return replace(entry, number=number, share=entry.time_us / total, speedup=total / (total - saved))


def _amdahl(total: float, regions: tuple[FoundRegion, ...]) -> float:
    left = total - sum(one.time_us - one.expected_us for one in regions)
    return total / left if left > 0 else 1.0


def _notes(measured: bool, model: torch.nn.Module) -> tuple[str, ...]:
    notes = []
    if not measured:
        notes.append("times are modelled: bytes and products at the GPU's full speed, at least 2 us for each kernel")
    if model.training:
        notes.append("the model is in training mode; a kernel is made for evaluation mode")
    return tuple(notes)
