"""The minimum work of a task, and whether a candidate did that much at the task's own sizes.

No values are compared: a kernel that reads fewer bytes than must be read, or writes fewer than must be written, is
wrong whatever it returned in smaller cases. Only certain requirements count: inputs of which every tested element
changes a result, at small sizes and with each dimension at full size, and outputs that the kernel does not get cleared.
A candidate's traffic is overestimated: all bytes that sampled blocks request, repeated and scratch accesses included.
It is rejected below half of the minimum in two samples.
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
from tilewright.verify.case_work import Sizes, bytes_of, elements_of, work_of
from tilewright.verify.distributions import TASK, draw_inputs, seeded

FIND_NEEDED = "tilewright.verify.minimum_work:find_needed"
BELOW = 0.5  # of the minimum: sampled blocks may differ from the others
_LEAST_BYTES = 1 << 20  # smaller requirements are not checked: chance dominates
_NEGLIGIBLE = 0.05  # of the task's bytes: smaller inputs are not checked
_TRIED = 8  # elements of an input, at each of the sizes
_TRIED_ELEMENTS = 2 << 20  # of a call of the reference that is repeated so often
_TRIED_WORK = 32_000_000
_FEW_TRIED, _MORE = 3, 16  # elements of longer inputs, and how much longer those may be
_NEEDED_SECONDS = 20.0
_SAMPLES = ((8, 24_000_000), (64, 400_000_000))  # blocks of a launch, thread instructions; the second to confirm
_SECONDS = 30.0
_MOST_BYTES = 64 << 20  # of the tensors that a sample is given; larger ones are halved along outer dimensions
_DRAWN = 1 << 20  # elements; a larger tensor of floats is filled with one number
_READS = ("global load", "generic load", "asynchronous copy", "global atomic", "generic atomic")
_WRITES = ("global store", "generic store", "global atomic", "generic atomic")
_OUTWARD = ".bulk_group"  # marks bulk copies from shared to global memory


# -- inputs that must be read --


@dataclass(frozen=True)
class NeededRequest:
    task: Task
    names: tuple[str, ...]  # of the inputs in question
    sizes: tuple[dict[str, int], ...]


@dataclass(frozen=True)
class NeededAnswer:
    names: tuple[str, ...]  # of which every tested element changes a result


def needed_inputs(task: Task, reference: AnyReference) -> tuple[str, ...]:
    """The inputs that every kernel must read, except small ones; none where that is unknown."""
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
    """Small sizes, and each varying dimension at full size, or as long as is affordable, with the others small; None
    where one is too expensive."""
    small = sizes_of(task, SMALLEST)
    own = task.sizes
    if small is None:
        return (own,) if task.is_sound(own) and _affordable(task, own, 1) else None
    found = [small]
    for one in task.free:
        if one.varies:
            size = own[one.name]
            while not _affordable(task, task.complete({**small, one.name: size}), _MORE):
                less = one.permitted(size // 2)
                if less >= size:
                    return None
                size = less
            found.append(task.complete({**small, one.name: size}))
    return tuple(found) if all(task.is_sound(one) and _affordable(task, one, _MORE) for one in found) else None


def _affordable(task: Task, sizes: Sizes, times: int) -> bool:
    return elements_of(task, sizes) <= times * _TRIED_ELEMENTS and work_of(task, sizes) <= times * _TRIED_WORK


def find_needed(function: Callable[..., Any], request: NeededRequest) -> NeededAnswer:
    """In the reference's process: make one element after another far larger, then far smaller."""
    import numpy as np
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
            return NeededAnswer(())  # it uses random numbers
        for name in tuple(needed):
            tensor = tensors[name]
            count, drawing = tensor.numel(), np.random.Generator(np.random.PCG64(11 + number))
            tried = _TRIED if count <= _TRIED_ELEMENTS else _FEW_TRIED
            drawn = drawing.integers(0, max(count, 1), tried - 2)
            for place in sorted({0, count - 1, *map(int, drawn)}) if count else ():  # the first, the last, some between
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


# -- a candidate's traffic --


def too_little_work(candidate: Candidate, device: Device, needed: tuple[str, ...]) -> Impossible | None:
    """Why the candidate cannot have done the work at the task's own sizes; None where it may have."""
    task = candidate.task
    own = _job(candidate, device, task.sizes)
    if own is None:
        return None
    given = set[str]().union(*(own.plan.tensors_of(step) for step in own.plan.steps))
    unwritten = [name for name in _to_write(own.plan) if name not in given]
    if unwritten:
        size = sum(task.output_specs()[name].storage_bytes for name in unwritten)
        left = f"no step of the plan is given {' and '.join(unwritten)}"
        return Impossible(f"{left} at the task's own sizes, which must be written there", 0.0, float(size), "bytes")
    if any(isinstance(step, PackedLaunch) and step.cooperative for step in own.plan.steps):
        return None  # its blocks wait for each other
    sizes, job = _affordable_job(candidate, device, own)
    found: Impossible | None = None
    for blocks, budget in _SAMPLES:
        found = _shortfall(candidate, device, needed, sizes, job, blocks, budget)
        if found is None:
            return None
    return found


def _job(candidate: Candidate, device: Device, sizes: Sizes) -> records.Job | None:
    return candidate.emulated_job(Case(sizes, 1), device.profile, _contents(candidate.task, sizes))


def _affordable_job(candidate: Candidate, device: Device, own: records.Job) -> tuple[Sizes, records.Job]:
    """The job at the task's own sizes or, where those are large, at smaller ones with the same launches."""
    task, sizes = candidate.task, dict(candidate.task.sizes)
    shared = {name for one in task.outputs for name in one.shape if isinstance(name, str)}
    outer = [one for tensor in task.tensors for one in tensor.dimensions[:1] if one in shared]
    halved = next((one for one in task.free if one.name in outer and one.varies), None)
    while (
        halved is not None
        and bytes_of(task, sizes) > _MOST_BYTES
        and sizes[halved.name] % (2 * halved.multiple_of) == 0
    ):
        sizes = task.complete({**sizes, halved.name: sizes[halved.name] // 2})
    smaller = _job(candidate, device, sizes) if sizes != task.sizes and task.is_sound(sizes) else None
    kernels = [one.kernel for one in own.plan.launches]
    alike = smaller is not None and [one.kernel for one in smaller.plan.launches] == kernels
    return (sizes, smaller) if smaller is not None and alike else (task.sizes, own)


def _contents(task: Task, sizes: Mapping[str, int]) -> tuple[InputTensor, ...]:
    """The task's inputs. Large float tensors hold one number, since traffic seldom depends on values."""
    inputs = {one.name: one for one in task.tensors}
    made = []
    for number, (name, spec) in enumerate(task.specs(sizes).items()):
        content: records.Content = seeded(inputs[name], sizes, 1 + number)
        if spec.numel > _DRAWN and isinstance(content, (records.Normal, records.Uniform)):
            content = records.Uniform(1, 1.0, 1.0)
        made.append(InputTensor(name, spec, content))
    return tuple(made)


def _to_write(plan: records.BoundPlan) -> list[str]:
    return [
        one.name
        for one in plan.buffers
        if one.role is not BufferRole.SCRATCH and one.clearing is Clearing.UNDEFINED and one.spec.numel
    ]


def _shortfall(
    candidate: Candidate,
    device: Device,
    needed: tuple[str, ...],
    sizes: Sizes,
    job: records.Job,
    blocks: int,
    budget: int,
) -> Impossible | None:
    plan = job.plan
    elsewhere = {name for step in plan.steps if isinstance(step, LibraryCall) for name in plan.tensors_of(step)}
    specs = {**candidate.task.specs(sizes), **{one.name: one.spec for one in plan.buffers}}
    reads = [name for name in needed if name not in elsewhere]
    writes = [name for name in _to_write(plan) if name not in elsewhere]
    how = records.Emulation(
        (records.Check.COUNTERS,), instruction_budget=budget, sampled_blocks=blocks, sample_edges=False
    )
    launched = replace(job, plan=replace(plan, steps=tuple(plan.launches)), emulation=how, returns=())
    execution = candidate.execute(device, launched)
    if not isinstance(execution, records.Completed) or execution.emulated is None:
        return None
    file = candidate.file
    traffic = [
        (counts.grid_blocks / counts.blocks, make_listing(counts, file.name, file.text).summary.traffic)
        for counts in execution.emulated.counts
    ]

    def moved(kinds: tuple[str, ...]) -> float:
        """Every byte requested; a sector that many lanes request counts once."""
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
            at = ", ".join(f"{name}={size}" for name, size in sizes.items())
            what = f"{' and '.join(names)} must be {verb} whole, {least / 1e6:,.3g} MB at {at}"
            return Impossible(
                f"{what}, and all its blocks together have {found / 1e6:,.3g} MB {verb}", found, least, "bytes"
            )
    return None
