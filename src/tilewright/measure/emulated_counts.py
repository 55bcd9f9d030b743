"""Counts of a candidate at the task's sizes, from a few emulated blocks of each launch.

Large inputs take longer to draw than blocks take to run, so beyond a limit the dimensions that rows are made of are
halved until the inputs are small enough, and the counts are multiplied by what was taken away. That is exact for work
that grows in proportion to the dimension; the plan, its grids and its buffers are always those of the task's sizes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilewright import records
from tilewright.devices.protocol import Device
from tilewright.kernel_file import Choice, KernelFile
from tilewright.measure.preparation import NotPrepared, job_inputs, prepare
from tilewright.records import FaultKind, PackedLaunch, Task
from tilewright.toolchain import BuiltPlan

SAMPLED_BLOCKS = 8
DRAWN_ELEMENTS = 16 << 20  # of all inputs together: about half a second
FEW_ELEMENTS = 4 << 20  # where all blocks must run, because they wait for each other
_BUDGET = 600_000_000  # thread instructions: ten to twenty seconds
_SECONDS = 90.0
_KEPT_RESIDUE = 16  # a halved size keeps its remainder, so that the same vector width applies


class NotCounted(Exception):
    """The candidate cannot be emulated; the message says why."""


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


@dataclass(frozen=True)
class _Way:
    elements: int  # most that inputs may have
    blocks: int | None


_SAMPLED_SMALL = _Way(FEW_ELEMENTS // 4, 2)
_ALL_BLOCKS = _Way(FEW_ELEMENTS, None)


def count_plan(
    file: KernelFile, task: Task, choice: Choice | None, emulator: Device, most_elements: int = DRAWN_ELEMENTS
) -> CountedPlan:
    """Emulate sampled blocks, on inputs of at most so many elements. Raises `NotPrepared` and `NotCounted`."""
    real = prepare(file, task, choice)
    if real.build is None:
        return CountedPlan(real, (), task.sizes)
    waits = any(isinstance(step, PackedLaunch) and step.cooperative for step in real.plan.steps)
    ways = (_ALL_BLOCKS,) if waits else (_Way(most_elements, SAMPLED_BLOCKS), _SAMPLED_SMALL, _ALL_BLOCKS)
    problem = ""
    for way in ways:
        outcome = _counted(file, task, real, way, emulator)
        if isinstance(outcome, CountedPlan):
            return outcome
        problem = outcome.message
        if outcome.kind not in (FaultKind.STOPPED, FaultKind.TIME, FaultKind.MEMORY):
            break  # fewer blocks or smaller inputs change nothing
    raise NotCounted(problem)


def _counted(
    file: KernelFile, task: Task, real: BuiltPlan, way: _Way, emulator: Device
) -> CountedPlan | records.Faulted:
    sizes = affordable_sizes(task, way.elements)
    seen = real
    if sizes != task.sizes:
        try:
            seen = prepare(file, task, real.evaluation.choice, sizes)
        except NotPrepared:
            sizes, seen = task.sizes, real  # it takes no other sizes
        if not _same_launches(seen, real):
            sizes, seen = task.sizes, real
    assert real.build is not None
    how = records.Emulation(
        (records.Check.COUNTERS,), 1, instruction_budget=_BUDGET, sampled_blocks=way.blocks, sample_edges=False
    )
    launched = replace(seen, plan=replace(seen.plan, steps=_launches(seen)))
    job = launched.job("count", job_inputs(task, sizes), limits=records.Limits(seconds=_SECONDS), emulation=how)
    execution = emulator.execute(job)
    if not isinstance(execution, records.Completed):
        return execution
    assert execution.emulated is not None
    ratio = math.prod(one.size / sizes[one.name] for one in task.free if sizes[one.name])
    counted = tuple(
        CountedLaunch(launch, real.build.kernel(launch.kernel), counts, ratio * counts.grid_blocks / counts.blocks)
        for launch, counts in zip(_launches(real), execution.emulated.counts, strict=True)
    )
    return CountedPlan(real, counted, dict(sizes))


def _launches(prepared: BuiltPlan) -> tuple[PackedLaunch, ...]:
    return tuple(step for step in prepared.plan.steps if isinstance(step, PackedLaunch))


def _same_launches(one: BuiltPlan, other: BuiltPlan) -> bool:
    return [step.kernel for step in _launches(one)] == [step.kernel for step in _launches(other)]


# -- smaller sizes --


def affordable_sizes(task: Task, most_elements: int) -> dict[str, int]:
    """The task's sizes, with those of outer dimensions halved until all inputs together have at most so many elements.

    The largest tensor gives way first, in a dimension that results have too; a size keeps its remainder by 16. A
    dimension that a tensor has twice stays as it is: work does not grow in proportion to it.
    """
    sizes = task.sizes
    kept = {name for one in task.outputs for name in one.shape if isinstance(name, str)}
    while sum(spec.numel for spec in task.specs(sizes).values()) > most_elements:
        smaller = _halved(task, sizes, kept)
        if smaller is None:
            break
        sizes = smaller
    return sizes


def _halved(task: Task, sizes: Mapping[str, int], kept: set[str]) -> dict[str, int] | None:
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
            if 0 < half < size and half % multiples[name] == 0 and task.is_sound(smaller):
                return smaller
    return None
