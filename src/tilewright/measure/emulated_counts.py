"""Counts of a candidate at the task's sizes, from a few emulated blocks of each launch.

Blocks run at the task's own addresses: inputs hold a few drawn rows over and over, so that nobody waits for gigabytes
to be drawn. Only where blocks wait for each other do all of them run, on smaller inputs, at two sizes: what every
instruction then did is continued on the straight line through both, so what a launch does once is not scaled up.
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

DRAWN_ELEMENTS = 1 << 19  # of an input; the rest repeats them
FEW_ELEMENTS = 2 << 20  # of all inputs, where all blocks must run because they wait for each other
MORE_ELEMENTS = 32 << 20  # likewise, where with fewer another code would run: what it does once a row is not scaled up
_SECONDS = 90.0
_COUNTED = (
    *("warp_instructions", "thread_instructions", "executions", "active_lanes", "requests"),
    *("sectors", "ideal_sectors", "passes", "ideal_passes", "bytes", "lines", "new_sectors"),
)
OUTWARD = ".bulk_group"  # of copies, those out of shared memory
_MOST_AMISS = 1.4  # a factor; beyond, what is stored is something else
_KEPT_RESIDUE = 16  # a halved size keeps its remainder, so that the same vector width applies


class NotCounted(Exception):
    """The candidate cannot be emulated; the message says why, and `short` says it without places in the code."""

    def __init__(self, fault: records.Faulted) -> None:
        self.short = _RAN_OUT_WORDS.get(fault.kind, fault.message)
        if fault.kind is FaultKind.STOPPED and records.FindingKind.BUDGET.value not in fault.message:
            self.short = fault.message
        super().__init__(fault.message)


@dataclass(frozen=True)
class CountedLaunch:
    """One launch of the plan; `scale` times the counts is the whole launch at the task's sizes."""

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
    """A candidate with the counts of its launches. `counted_at` are the sizes the emulator saw."""

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


_Way = tuple[int | None, int]  # blocks of a launch, None: all; thread instructions of all launches
# Many blocks where they cost little: of eight, too many may be of another kind, tiles at the end of a row, say.
_SAMPLES: tuple[_Way, ...] = ((64, 16_000_000), (8, 16_000_000), (1, 400_000_000))
_WHOLE: _Way = (None, 600_000_000)
# Then fewer blocks or smaller inputs may do.
_RAN_OUT_WORDS = {
    FaultKind.STOPPED: "at these sizes it runs more instructions than the emulator does for a model",
    FaultKind.TIME: "at these sizes it takes longer in the emulator than a model may",
    FaultKind.MEMORY: "at these sizes it takes more memory in the emulator than a model may",
}


def count_plan(file: KernelFile, task: Task, choice: Choice | None, emulator: Device) -> CountedPlan:
    """Emulate sampled blocks at the task's sizes. Raises `NotPrepared` and `NotCounted`."""
    real = prepare(file, task, choice)
    if real.build is None:
        return CountedPlan(real, (), task.sizes)
    waits = any(launch.cooperative for launch in _launches(real))
    inputs = _repeated_inputs(task)
    for way in () if waits else _SAMPLES:
        outcome = _run(real, inputs, way, emulator)
        if not isinstance(outcome, records.Faulted):
            return CountedPlan(real, _counted(real, outcome), task.sizes)
        if outcome.kind not in _RAN_OUT_WORDS:
            raise NotCounted(outcome)
    return _continued(file, task, real, emulator)


def _run(
    prepared: BuiltPlan, inputs: tuple[records.InputTensor, ...], way: _Way, emulator: Device
) -> tuple[records.CountsRecord, ...] | records.Faulted:
    blocks, budget = way
    how = records.Emulation(
        (records.Check.COUNTERS,), 1, instruction_budget=budget, sampled_blocks=blocks, sample_edges=False
    )
    launched = replace(prepared, plan=replace(prepared.plan, steps=_launches(prepared)))
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
        for launch, one in zip(_launches(real), counts, strict=True)
    )


def _scale(real: BuiltPlan, launch: PackedLaunch, one: records.CountsRecord) -> float:
    """Blocks of the launch for each that was counted. Where all that it stores are whole results, and the sampled ones
    would store a little more or less than these, they are not of the mean kind: then as many as make the results."""
    blocks = one.grid_blocks / one.blocks
    results = _results(real, launch)
    stored = blocks * sum(each.bytes for each in one.instructions if each.sectors and is_store(each.ptx_text))
    if one.blocks == one.grid_blocks or not results or any("atom" in each.ptx_text for each in one.instructions):
        return blocks
    return blocks * results / stored if 1.0 / _MOST_AMISS < results / max(stored, 1.0) < _MOST_AMISS else blocks


def _results(real: BuiltPlan, launch: PackedLaunch) -> int:
    """Bytes of what this launch alone makes; none where it also writes anything else."""
    given = {one.name for one in real.evaluation.file.plan.op.parameters if one.in_place}
    made = {one.name: one for one in real.plan.buffers}
    users = [names for step in _launches(real) if (names := real.plan.tensors_of(step))]
    mine = real.plan.tensors_of(launch)
    written = [made[name] for name in mine if name in made]
    if mine & given or any(one.role is records.BufferRole.SCRATCH for one in written):
        return 0
    alone = all(sum(one.name in names for names in users) == 1 for one in written)
    return sum(one.spec.storage_bytes for one in written) if alone else 0


def is_store(ptx_text: str) -> bool:
    return class_of(ptx_text).value in ("global store", "generic store") or OUTWARD in ptx_text


def _repeated_inputs(task: Task) -> tuple[records.InputTensor, ...]:
    """The task's inputs at its own sizes, each as few drawn places over and over."""
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


# -- where all blocks must run: at two smaller sizes --


def _continued(file: KernelFile, task: Task, real: BuiltPlan, emulator: Device) -> CountedPlan:
    """The whole grid at two affordable sizes, and from them at the task's."""
    found: list[tuple[float, tuple[records.CountsRecord, ...]]] = []
    counted_at: dict[str, int] = {}
    for most in (FEW_ELEMENTS, FEW_ELEMENTS // 2):
        sizes = _smaller_sizes(file, task, real, most)
        try:
            seen = real if sizes == task.sizes else prepare(file, task, real.evaluation.choice, sizes)
        except NotPrepared:
            sizes, seen = task.sizes, real  # it takes no other sizes
        if [one.kernel for one in _launches(seen)] != [one.kernel for one in _launches(real)]:
            sizes, seen = task.sizes, real
        outcome = _run(seen, job_inputs(task, sizes), _WHOLE, emulator)
        if isinstance(outcome, records.Faulted):
            raise NotCounted(outcome)
        counted_at = counted_at or dict(sizes)
        found.append((math.prod(sizes[one.name] / one.size for one in task.free if one.size), outcome))
        if sizes == task.sizes:
            break
    (part, counts), (less, fewer) = found[0], found[-1]
    if less == part or any(not _alike(*pair) for pair in zip(counts, fewer, strict=True)):
        return CountedPlan(real, _counted(real, counts, 1.0 / part), counted_at)
    step = (1.0 - part) / (part - less)
    grids = [math.prod(launch.grid) for launch in _launches(real)]
    straight = [
        replace(_beyond(one, other, step), blocks=grid, grid_blocks=grid)
        for one, other, grid in zip(counts, fewer, grids, strict=True)
    ]
    return CountedPlan(real, _counted(real, straight), counted_at)


def _smaller_sizes(file: KernelFile, task: Task, real: BuiltPlan, most_elements: int) -> dict[str, int]:
    """Such that the same code runs, if that is affordable at all."""

    def runs_alike(sizes: Mapping[str, int]) -> bool:
        try:
            there = evaluate(file, task.arguments(sizes), real.evaluation.gpu, real.evaluation.choice)
        except (DoesNotApply, KernelFileError):
            return False
        return there.way == real.evaluation.way

    sizes = affordable_sizes(task, most_elements, runs_alike)
    elements = sum(spec.numel for spec in task.specs(sizes).values())
    return sizes if elements <= MORE_ELEMENTS else affordable_sizes(task, most_elements)


def _alike(one: records.CountsRecord, other: records.CountsRecord) -> bool:
    return [each.ptx_text for each in one.instructions] == [each.ptx_text for each in other.instructions]


def _beyond(one: records.CountsRecord, fewer: records.CountsRecord, step: float) -> records.CountsRecord:
    """Every number so many times as far beyond `one` as that is beyond `fewer`."""

    def further(now: Any, before: Any) -> dict[str, Any]:
        pairs = ((name, getattr(now, name), getattr(before, name)) for name in _COUNTED if hasattr(now, name))
        return {name: max(0, round(value + step * (value - earlier))) for name, value, earlier in pairs}

    each = zip(one.instructions, fewer.instructions, strict=True)
    return replace(one, **further(one, fewer), instructions=tuple(replace(a, **further(a, b)) for a, b in each))


def _launches(prepared: BuiltPlan) -> tuple[PackedLaunch, ...]:
    return tuple(step for step in prepared.plan.steps if isinstance(step, PackedLaunch))


# -- smaller sizes --


_Allows = Callable[[Mapping[str, int]], bool]


def affordable_sizes(task: Task, most_elements: int, allows: _Allows = lambda sizes: True) -> dict[str, int]:
    """The task's sizes, with those of outer dimensions halved until all inputs together have at most so many elements,
    or nothing more is allowed.

    The largest tensor gives way first, in a dimension that results have too; a size keeps its remainder by 16. A
    dimension that a tensor has twice stays as it is: work does not grow in proportion to it.
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
