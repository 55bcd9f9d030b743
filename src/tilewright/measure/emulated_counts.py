"""Instruction and traffic counts of a candidate at the task's sizes, from a few emulated blocks of each launch.

Blocks use the task's own addresses; large inputs repeat a small generated tile to save time. Where blocks wait for each
other, all of them run at two smaller sizes, and every count is extrapolated linearly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tilewright import records
from tilewright.devices.emulation.input_content import Seeded, drawn
from tilewright.devices.emulation.listing import class_of
from tilewright.devices.protocol import Device
from tilewright.kernel_file import Choice, DoesNotApply, KernelFile, KernelFileError, evaluate
from tilewright.measure.preparation import NotPrepared, job_inputs, prepare
from tilewright.records import FaultKind, PackedLaunch, Task
from tilewright.toolchain import BuiltPlan

DRAWN_ELEMENTS = 1 << 19  # generated of an input; the rest repeats them
FEW_ELEMENTS = 2 << 20  # of all inputs, where all blocks must run
MORE_ELEMENTS = 32 << 20  # likewise, where fewer would take another code path
_SECONDS = 90.0
_COUNTED = (
    *("warp_instructions", "thread_instructions", "executions", "active_lanes", "requests"),
    *("sectors", "ideal_sectors", "passes", "ideal_passes", "bytes", "lines", "new_sectors"),
)
OUTWARD = ".bulk_group"  # marks bulk copies from shared to global memory
_MOST_AMISS = 1.4  # factor between bytes stored and bytes of results; beyond, something else is stored
_KEPT_RESIDUE = 16  # a halved size keeps its remainder by this, so that the vector width stays


class NotCounted(Exception):
    """The candidate cannot be emulated. `short` is the message without source locations."""

    def __init__(self, fault: records.Faulted) -> None:
        self.short = _RAN_OUT_WORDS.get(fault.kind, fault.message)
        if fault.kind is FaultKind.STOPPED and records.FindingKind.BUDGET.value not in fault.message:
            self.short = fault.message
        super().__init__(fault.message)


@dataclass(frozen=True)
class CountedLaunch:
    """One launch; `scale` times its counts is the whole launch at the task's sizes."""

    launch: PackedLaunch
    kernel: records.CompiledKernel
    counts: records.CountsRecord
    scale: float

    @property
    def grid_blocks(self) -> int:
        return math.prod(self.launch.grid)

    @property
    def block_warps(self) -> int:
        return -(-math.prod(self.launch.block) // 32)


@dataclass(frozen=True)
class CountedPlan:
    """A candidate with the counts of its launches, taken at the sizes `counted_at`."""

    prepared: BuiltPlan
    launches: tuple[CountedLaunch, ...]
    counted_at: dict[str, int]

    @property
    def library_calls(self) -> tuple[records.LibraryCall, ...]:
        return tuple(step for step in self.prepared.plan.steps if isinstance(step, records.LibraryCall))

    @property
    def sampled_blocks(self) -> int:
        return sum(one.counts.blocks for one in self.launches)

    @property
    def grid_blocks(self) -> int:
        return sum(one.grid_blocks for one in self.launches)


_Sample = tuple[int | None, int]  # (blocks of a launch or None for all, budget of thread instructions)
# Many blocks where they are cheap: among eight, too many may be atypical, such as tiles at the end of a row.
_SAMPLES: tuple[_Sample, ...] = ((64, 16_000_000), (8, 16_000_000), (1, 400_000_000))
_WHOLE: _Sample = (None, 600_000_000)
_RAN_OUT_WORDS = {  # fewer blocks or smaller inputs may still work
    FaultKind.STOPPED: "at these sizes it runs more instructions than the emulator does for a model",
    FaultKind.TIME: "at these sizes it takes longer in the emulator than a model may",
    FaultKind.MEMORY: "at these sizes it takes more memory in the emulator than a model may",
}


def count_plan(file: KernelFile, task: Task, choice: Choice | None, emulator: Device) -> CountedPlan:
    """Emulate sampled blocks at the task's sizes. Raises `NotPrepared` and `NotCounted`."""
    real = prepare(file, task, choice)
    if real.build is None:
        return CountedPlan(real, (), task.sizes)
    waits = any(launch.cooperative for launch in real.plan.launches)
    inputs = _repeated_inputs(task)
    for sample in () if waits else _SAMPLES:
        outcome = _run(real, inputs, sample, emulator)
        if not isinstance(outcome, records.Faulted):
            return CountedPlan(real, _counted(real, outcome), task.sizes)
        if outcome.kind not in _RAN_OUT_WORDS:
            raise NotCounted(outcome)
    return _extrapolated(file, task, real, emulator)


def _run(
    prepared: BuiltPlan, inputs: tuple[records.InputTensor, ...], sample: _Sample, emulator: Device
) -> tuple[records.CountsRecord, ...] | records.Faulted:
    blocks, budget = sample
    how = records.Emulation(
        (records.Check.COUNTERS,), 1, instruction_budget=budget, sampled_blocks=blocks, sample_edges=False
    )
    launched = replace(prepared, plan=replace(prepared.plan, steps=tuple(prepared.plan.launches)))
    memory = records.Limits(_SECONDS, prepared.evaluation.gpu.memory_bytes)
    execution = emulator.execute(launched.job("count", inputs, limits=memory, emulation=how))
    if not isinstance(execution, records.Completed):
        return execution
    assert execution.emulated is not None
    return execution.emulated.counts


def _counted(real: BuiltPlan, counts: Iterable[records.CountsRecord], ratio: float = 1.0) -> tuple[CountedLaunch, ...]:
    assert real.build is not None
    return tuple(
        CountedLaunch(launch, real.build.kernel(launch.kernel), one, ratio * _scale(real, launch, one))
        for launch, one in zip(real.plan.launches, counts, strict=True)
    )


def _scale(real: BuiltPlan, launch: PackedLaunch, one: records.CountsRecord) -> float:
    """The number of blocks of the launch per counted block. If the launch stores nothing but its results and the sample
    would scale to slightly more or fewer bytes than these, the sampled blocks are atypical, and the scale follows from
    the results."""
    blocks = one.grid_blocks / one.blocks
    results = _results(real, launch)
    stored = blocks * sum(each.bytes for each in one.instructions if each.sectors and is_store(each.ptx_text))
    if one.blocks == one.grid_blocks or not results or any("atom" in each.ptx_text for each in one.instructions):
        return blocks
    return blocks * results / stored if 1.0 / _MOST_AMISS < results / max(stored, 1.0) < _MOST_AMISS else blocks


def _results(real: BuiltPlan, launch: PackedLaunch) -> int:
    """Bytes of the results that this launch alone writes; 0 if it writes anything else."""
    given = {one.name for one in real.evaluation.file.plan.op.parameters if one.in_place}
    made = {one.name: one for one in real.plan.buffers}
    users = [real.plan.tensors_of(step) for step in real.plan.launches]
    mine = real.plan.tensors_of(launch)
    written = [made[name] for name in mine if name in made]
    if mine & given or any(one.role is records.BufferRole.SCRATCH for one in written):
        return 0
    alone = all(sum(one.name in names for names in users) == 1 for one in written)
    return sum(one.spec.storage_bytes for one in written) if alone else 0


def is_store(ptx_text: str) -> bool:
    return class_of(ptx_text).value in ("global store", "generic store") or OUTWARD in ptx_text


def _repeated_inputs(task: Task) -> tuple[records.InputTensor, ...]:
    """The task's inputs at its sizes, large ones as repetitions of a small generated tile."""
    made = []
    for one in job_inputs(task):
        few, rest = [], one.spec.numel
        for size in one.spec.shape:
            rest //= max(size, 1)
            most = min(size, max(1, DRAWN_ELEMENTS // max(rest, 1)))
            few.append(next((part for part in range(most, most // 2, -1) if size % part == 0), most))
        if math.prod(few) < one.spec.numel and isinstance(one.content, Seeded):
            content = drawn(records.TensorSpec.contiguous(one.spec.dtype, tuple(few)), one.content)
            one = replace(one, content=records.Repeated(content.tobytes(), tuple(few)))
        made.append(one)
    return tuple(made)


# -- extrapolation, where all blocks must run --


def _extrapolated(file: KernelFile, task: Task, real: BuiltPlan, emulator: Device) -> CountedPlan:
    """Run the whole grid at two affordable sizes and extrapolate the counts to the task's sizes."""
    found: list[tuple[float, tuple[records.CountsRecord, ...]]] = []
    counted_at: dict[str, int] = {}
    for most in (FEW_ELEMENTS, FEW_ELEMENTS // 2):
        sizes = _smaller_sizes(file, task, real, most)
        try:
            seen = real if sizes == task.sizes else prepare(file, task, real.evaluation.choice, sizes)
        except NotPrepared:
            sizes, seen = task.sizes, real  # it takes no other sizes
        if [one.kernel for one in seen.plan.launches] != [one.kernel for one in real.plan.launches]:
            sizes, seen = task.sizes, real
        outcome = _run(seen, job_inputs(task, sizes), _WHOLE, emulator)
        if isinstance(outcome, records.Faulted):
            raise NotCounted(outcome)
        counted_at = counted_at or dict(sizes)
        found.append((math.prod(sizes[one.name] / one.size for one in task.free if one.size), outcome))
        if sizes == task.sizes:
            break
    (part, counts), (less, fewer) = found[0], found[-1]
    texts = [[[each.ptx_text for each in one.instructions] for one in them] for them in (counts, fewer)]
    if less == part or texts[0] != texts[1]:
        return CountedPlan(real, _counted(real, counts, 1.0 / part), counted_at)
    step = (1.0 - part) / (part - less)
    grids = [math.prod(launch.grid) for launch in real.plan.launches]
    straight = [
        replace(_beyond(one, other, step), blocks=grid, grid_blocks=grid)
        for one, other, grid in zip(counts, fewer, grids, strict=True)
    ]
    return CountedPlan(real, _counted(real, straight), counted_at)


def _smaller_sizes(file: KernelFile, task: Task, real: BuiltPlan, most_elements: int) -> dict[str, int]:
    """Affordable sizes at which the same code path runs, if there are any."""

    def runs_alike(sizes: Mapping[str, int]) -> bool:
        try:
            there = evaluate(file, task.arguments(sizes), real.evaluation.gpu, real.evaluation.choice)
        except (DoesNotApply, KernelFileError):
            return False
        return there.way == real.evaluation.way

    sizes = affordable_sizes(task, most_elements, runs_alike)
    elements = sum(spec.numel for spec in task.specs(sizes).values())
    return sizes if elements <= MORE_ELEMENTS else affordable_sizes(task, most_elements)


def _beyond(one: records.CountsRecord, fewer: records.CountsRecord, step: float) -> records.CountsRecord:
    """Extrapolate every count by `step` times its difference from `fewer`."""

    def further(now: Any, before: Any) -> dict[str, Any]:
        pairs = ((name, getattr(now, name), getattr(before, name)) for name in _COUNTED if hasattr(now, name))
        return {name: max(0, round(value + step * (value - earlier))) for name, value, earlier in pairs}

    each = zip(one.instructions, fewer.instructions, strict=True)
    return replace(one, **further(one, fewer), instructions=tuple(replace(a, **further(a, b)) for a, b in each))


# -- smaller sizes --


_Allows = Callable[[Mapping[str, int]], bool]


def affordable_sizes(task: Task, most_elements: int, allows: _Allows = lambda sizes: True) -> dict[str, int]:
    """Halve sizes of the task's outer dimensions until all inputs have at most `most_elements` together.

    The largest tensor is cut first, along a dimension of the results. Sizes keep their remainder by 16. A dimension
    that a tensor has twice is kept, since work is not proportional to it.
    """
    sizes = task.sizes
    kept = {name for one in task.outputs for name in one.shape if isinstance(name, str)}
    while sum(spec.numel for spec in task.specs(sizes).values()) > most_elements:
        smaller = _halved(task, sizes, kept, allows)
        if smaller is None:
            break
        sizes = smaller
    return sizes


def _halved(task: Task, sizes: Mapping[str, int], kept: set[str], allows: _Allows) -> dict[str, int] | None:
    specs = task.specs(sizes)
    tensors = sorted((one for one in task.tensors if one.name in specs), key=lambda one: -specs[one.name].numel)
    multiples = {dimension.name: dimension.multiple_of for dimension in task.free}
    shapes = [*(one.dimensions for one in task.tensors), *(one.shape for one in task.outputs)]
    square = {name for shape in shapes for name in shape if shape.count(name) > 1}
    for tensor in tensors:
        free = [name for name in tensor.dimensions if name not in square and name in multiples]
        for name in sorted(free, key=lambda name: name not in kept):  # outer ones first
            size = sizes[name]
            half = size // 2 - (size // 2 - size) % _KEPT_RESIDUE if size >= 4 * _KEPT_RESIDUE else size // 2
            smaller = task.complete({**sizes, name: half})
            if 0 < half < size and half % multiples[name] == 0 and task.is_sound(smaller) and allows(smaller):
                return smaller
    return None
