"""What a task needs at the least, and whether a candidate did that much at the task's own sizes.

Nothing is compared here: a kernel that reads less than must be read, or writes less than must be written, cannot have
done the work, whatever it answered in smaller cases. Only what is sure counts. Of the inputs these are the ones of
which every element tried changes a result, at small sizes and with each dimension at its own size; of the results,
those that the kernel is not given cleared. What a kernel moves is counted from above: every byte that the sampled
blocks ask for, scratch and repetitions among them. Rejected is what stays below half of the least, in two samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tilewright import records
from tilewright.devices.emulation.listing import make_listing
from tilewright.devices.protocol import Device
from tilewright.records import (
    SECTOR_BYTES,
    BufferRole,
    Case,
    Clearing,
    Impossible,
    InputTensor,
    LibraryCall,
    PackedLaunch,
    Task,
)
from tilewright.reference import AnyReference, ReferenceProblem
from tilewright.verify.candidate import Candidate
from tilewright.verify.case_sizes import SMALLEST, sizes_of
from tilewright.verify.case_work import Sizes, bytes_of, work_of
from tilewright.verify.distributions import TASK, draw_inputs, seeded

FIND_NEEDED = "tilewright.verify.least_work:find_needed"
BELOW = 0.5  # of the least: blocks differ, and a few stand for all
_LEAST_BYTES = 1 << 20  # a kernel that moves less than this has no room to cheat, and more room for chance
_NEGLIGIBLE = 0.05  # of the task's bytes: an input that small decides nothing
_TRIED = 8  # elements of an input at each sizes
_TRIED_ELEMENTS = 2 << 20  # of a call of the reference that is made so often
_TRIED_WORK = 32_000_000
_NEEDED_SECONDS = 20.0
_SAMPLES = ((8, 24_000_000), (64, 400_000_000))  # blocks of a launch, thread instructions; the second to confirm
_SECONDS = 30.0
_MOST_BYTES = 64 << 20  # of the tensors that a sample is given; larger ones are halved along outer dimensions
_DRAWN = 1 << 20  # elements; a larger tensor of floats is filled with one number
_READS = ("global load", "generic load", "asynchronous copy", "global atomic", "generic atomic")
_WRITES = ("global store", "generic store", "global atomic", "generic atomic")
_OUTWARD = ".bulk_group"  # of the copies that a listing counts together, those out of shared memory


# -- which inputs must be read: in the reference's process --


@dataclass(frozen=True)
class NeededRequest:
    task: Task
    names: tuple[str, ...]  # of the inputs in question
    sizes: tuple[dict[str, int], ...]


@dataclass(frozen=True)
class NeededAnswer:
    names: tuple[str, ...]  # of which every element tried changes a result


def needed_inputs(task: Task, reference: AnyReference) -> tuple[str, ...]:
    """The inputs that no kernel can leave unread, but for the small ones. None of them where that cannot be told."""
    specs = task.specs()
    floats = [one.name for one in task.tensors if one.name in specs and one.dtype.is_float]
    names = tuple(name for name in floats if specs[name].storage_bytes >= _NEGLIGIBLE * task.moved_bytes)
    sizes = _telling_sizes(task)
    if not names or sizes is None:
        return ()
    try:
        request = NeededRequest(task, names, sizes)
        return reference.call(FIND_NEEDED, request, NeededAnswer, _NEEDED_SECONDS).names
    except ReferenceProblem:
        return ()


def _telling_sizes(task: Task) -> tuple[Sizes, ...] | None:
    """Small sizes, and each varying dimension at its own with the others small; None where one is not affordable."""
    small = sizes_of(task, SMALLEST)
    own = task.sizes
    found = [small if small is not None else own]
    for one in task.free if small is not None else ():
        if one.varies:
            found.append(task.complete({**found[0], one.name: own[one.name]}))
    sound = all(task.is_sound(sizes) and _affordable(task, sizes) for sizes in found)
    return tuple(found) if sound else None


def _affordable(task: Task, sizes: Mapping[str, int]) -> bool:
    specs = (*task.specs(sizes).values(), *task.output_specs(sizes).values())
    return sum(spec.numel for spec in specs) <= _TRIED_ELEMENTS and work_of(task, sizes) <= _TRIED_WORK


def find_needed(function: Callable[..., Any], request: NeededRequest) -> NeededAnswer:
    """In the reference's process: one element after another made far larger, then far smaller."""
    import torch

    from tilewright.reference.torch_calls import call_reference, to_torch

    task, needed = request.task, dict.fromkeys(request.names)

    def differs(mine: tuple[torch.Tensor, ...], other: tuple[torch.Tensor, ...]) -> bool:
        return any(not torch.allclose(a, b, 0.0, 0.0, equal_nan=True) for a, b in zip(mine, other, strict=True))

    for number, sizes in enumerate(request.sizes):
        contents = draw_inputs(task, Case(sizes, 7 + number, TASK))
        tensors = {name: to_torch(spec, contents[name]) for name, spec in task.specs(sizes).items()}
        plain = call_reference(function, task, tensors)
        if differs(plain, call_reference(function, task, tensors)):
            return NeededAnswer(())  # it draws numbers of its own
        for name in tuple(needed):
            tensor = tensors[name]
            for place in _places(tensor.numel(), 11 + number):
                index = tuple(int(one) for one in torch.unravel_index(torch.tensor(place), tensor.shape))
                before = tensor[index].clone()
                for far in (64.0, -64.0, 3e4):
                    tensor[index] = before + far
                    changes = differs(plain, call_reference(function, task, tensors))
                    if changes:
                        break
                tensor[index] = before
                if not changes:
                    del needed[name]
                    break
    return NeededAnswer(tuple(needed))


def _places(count: int, seed: int) -> list[int]:
    """The first, the last, and some between."""
    import numpy as np

    drawn = np.random.Generator(np.random.PCG64(seed)).integers(0, max(count, 1), _TRIED - 2)
    return sorted({0, count - 1, *(int(one) for one in drawn)}) if count else []


# -- what a candidate moves --


def impossible(candidate: Candidate, device: Device, needed: tuple[str, ...]) -> Impossible | None:
    """Why the candidate cannot have done the work at the task's own sizes; None where it may have."""
    task = candidate.task
    own = _plan(candidate, device, task.sizes)
    if own is None:
        return None
    given = set[str]().union(*(own.plan.tensors_of(step) for step in own.plan.steps))
    unwritten = [name for name in _to_write(own) if name not in given]
    if unwritten:
        size = sum(task.output_specs()[name].storage_bytes for name in unwritten)
        left = f"no step of the plan is given {' and '.join(unwritten)}"
        return Impossible(f"{left} at the task's own sizes, which must be written there", 0.0, float(size), "bytes")
    if any(isinstance(step, PackedLaunch) and step.cooperative for step in own.plan.steps):
        return None  # its blocks wait for each other
    found: Impossible | None = None
    for blocks, budget in _SAMPLES:
        found = _short(candidate, device, needed, _seen(candidate, device, own), blocks, budget)
        if found is None:
            return None
    return found


@dataclass(frozen=True)
class _Seen:
    """A plan, and the sizes it is for."""

    sizes: Mapping[str, int]
    job: records.Job

    @property
    def plan(self) -> records.BoundPlan:
        return self.job.plan


def _plan(candidate: Candidate, device: Device, sizes: Mapping[str, int]) -> _Seen | None:
    job = candidate.emulated_job(Case(dict(sizes), 1), device.profile, _contents(candidate.task, sizes))
    return None if job is None else _Seen(sizes, job)


def _seen(candidate: Candidate, device: Device, own: _Seen) -> _Seen:
    """The plan at the task's own sizes, or, where those are large, at smaller ones with the same launches."""
    task, sizes = candidate.task, dict(own.sizes)
    shared = {name for one in task.outputs for name in one.shape if isinstance(name, str)}
    outer = [one for tensor in task.tensors for one in tensor.dimensions[:1] if one in shared]
    halved = next((one for one in task.free if one.name in outer and one.varies), None)
    while (
        halved is not None
        and bytes_of(task, sizes) > _MOST_BYTES
        and sizes[halved.name] % (2 * halved.multiple_of) == 0
    ):
        sizes = task.complete({**sizes, halved.name: sizes[halved.name] // 2})
    if sizes == own.sizes or not task.is_sound(sizes):
        return own
    smaller = _plan(candidate, device, sizes)
    return smaller if smaller is not None and _kernels(smaller) == _kernels(own) else own


def _kernels(seen: _Seen) -> list[str]:
    return [step.kernel for step in seen.plan.steps if isinstance(step, PackedLaunch)]


def _contents(task: Task, sizes: Mapping[str, int]) -> tuple[InputTensor, ...]:
    """The task's inputs; large ones of floats hold one number, for how much is read seldom depends on them."""
    inputs = {one.name: one for one in task.tensors}
    made = []
    for number, (name, spec) in enumerate(task.specs(sizes).items()):
        content: records.Content = seeded(inputs[name], sizes, 1 + number)
        if spec.numel > _DRAWN and isinstance(content, (records.Normal, records.Uniform)):
            content = records.Uniform(1, 1.0, 1.0)
        made.append(InputTensor(name, spec, content))
    return tuple(made)


def _to_write(seen: _Seen) -> list[str]:
    return [
        one.name
        for one in seen.plan.buffers
        if one.role is not BufferRole.SCRATCH and one.clearing is Clearing.UNDEFINED and one.spec.numel
    ]


def _short(
    candidate: Candidate, device: Device, needed: tuple[str, ...], seen: _Seen, blocks: int, budget: int
) -> Impossible | None:
    """What a sample of the plan's blocks falls short of; None where nothing, or where it cannot be told."""
    elsewhere = {
        name for step in seen.plan.steps if isinstance(step, LibraryCall) for name in seen.plan.tensors_of(step)
    }
    specs = {**candidate.task.specs(seen.sizes), **{one.name: one.spec for one in seen.plan.buffers}}
    reads = [name for name in needed if name not in elsewhere]
    writes = [name for name in _to_write(seen) if name not in elsewhere]
    how = records.Emulation(
        (records.Check.COUNTERS,), instruction_budget=budget, sampled_blocks=blocks, sample_edges=False
    )
    launches = tuple(step for step in seen.plan.steps if isinstance(step, PackedLaunch))
    job = replace(seen.job, plan=replace(seen.plan, steps=launches), emulation=how, returns=())
    execution = candidate.execute(device, job)
    if not isinstance(execution, records.Completed) or execution.emulated is None:
        return None
    file = candidate.file
    traffic = [
        (counts.grid_blocks / counts.blocks, make_listing(counts, file.name, file.text).summary.traffic)
        for counts in execution.emulated.counts
    ]

    def moved(kinds: tuple[str, ...]) -> float:
        """Every byte asked for; a sector that many lanes ask for counts once."""
        return sum(
            scale * min(one.bytes, SECTOR_BYTES * one.sectors)
            for scale, ones in traffic
            for one in ones
            if one.kind.value in kinds
        )

    copied_out = sum(
        counts.grid_blocks / counts.blocks * min(one.bytes, SECTOR_BYTES * one.sectors)
        for counts in execution.emulated.counts
        for one in counts.instructions
        if _OUTWARD in one.ptx_text
    )
    for verb, names, found in (
        ("read", reads, moved(_READS)),
        ("written", writes, moved(_WRITES) + copied_out),
    ):
        least = float(sum(specs[name].storage_bytes for name in names))
        if least >= _LEAST_BYTES and found < BELOW * least:
            sizes = ", ".join(f"{name}={size}" for name, size in seen.sizes.items())
            what = f"{' and '.join(names)} must be {verb} whole, {least / 1e6:,.3g} MB at {sizes}"
            return Impossible(
                f"{what}, and all its blocks together have {found / 1e6:,.3g} MB {verb}", found, least, "bytes"
            )
    return None
