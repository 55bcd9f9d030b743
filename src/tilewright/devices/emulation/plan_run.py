"""Runs the steps of a bound plan in the emulator and collects findings and counts."""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tilewright.devices.emulation.plan_memory import Perturbation, PlanMemory, storage_bytes, tensor_copy
from tilewright.ptx.global_memory import GlobalMemory
from tilewright.ptx.launching import MAP_BYTES, LaunchOptions, LaunchRequest, LaunchResult, encoded_map
from tilewright.ptx.syntax import Instruction, PtxError, UnsupportedPtx
from tilewright.records import (
    BoundPlan,
    Buffer,
    BufferRole,
    Check,
    Clearing,
    CountsRecord,
    CoverageRecord,
    EmulatedRun,
    Emulation,
    FindingKind,
    FindingRecord,
    LibraryCall,
    PackedLaunch,
    TensorArgument,
    TensorMap,
    TouchRecord,
)
from tilewright.records.emulation import kernel_line
from tilewright.records.steps import Dim3

if TYPE_CHECKING:
    from tilewright.ptx.program import Program

# The kinds that end a launch, the most telling first.
_ENDINGS = (
    FindingKind.ASSERTION,
    FindingKind.TRAP,
    FindingKind.BAD_CALL,
    FindingKind.STACK,
    FindingKind.DEADLOCK,
    FindingKind.BUDGET,
)

Announce = Callable[[int, PackedLaunch | LibraryCall], None]

_GOLDEN = 0.6180339887498949


class StepRefused(Exception):
    """A step that could not run; the message has the cause."""

    def __init__(self, message: str, step: PackedLaunch | LibraryCall) -> None:
        super().__init__(message)
        self.step = step


class LaunchNotEmulable(StepRefused):
    """A launch the emulator cannot run; the message names the instruction or the feature."""

    step: PackedLaunch


class LaunchRefused(StepRefused):
    """A launch that any GPU would refuse: too many threads, too much shared memory."""


class LibraryRefused(StepRefused):
    """A library step that raised, or whose result is not what the plan declares."""


@dataclass(frozen=True)
class PlanOutcome:
    """The outcome of one run of a plan, or of several schedules up to the first failure."""

    emulated: EmulatedRun
    memory: PlanMemory  # as the first run left it
    others: tuple[PlanMemory, ...]  # of further runs, one per distinct result
    stopped_by: FindingRecord | None  # None: all steps completed
    stopped_at: PackedLaunch | None
    counter_left: FindingRecord | None  # one of the findings

    @property
    def succeeded(self) -> bool:
        return self.stopped_by is None and self.counter_left is None


def announce_nothing(number: int, step: PackedLaunch | LibraryCall) -> None:
    pass


def run_plan(
    program: Program | None,
    plan: BoundPlan,
    memory: PlanMemory,
    emulation: Emulation,
    circumstances: Perturbation,
    announce: Announce = announce_nothing,
) -> PlanOutcome:
    """Run every step; `program` is None only where nothing is launched. Raises `LaunchNotEmulable`, `LaunchRefused`,
    `LibraryRefused`."""
    run = _Run(program, plan, memory, emulation, circumstances)
    if any(launch.pdl for launch in plan.launches):
        memory.memory.remember_touches()
    for number, step in enumerate(plan.steps):
        announce(number, step)
        run.step(step)
        if run.stopped_by is not None:
            break
    return run.outcome()


def sampled_blocks(total: int, wanted: int | None, edges: bool = True) -> tuple[int, ...] | None:
    """`wanted` of `total` blocks, or None for all.

    With `edges`, evenly spread with the first and the last, where faults are likely. Without, one from each of `wanted`
    equal parts at uneven distances, which is a fair sample also for periodic grids; a single one is from the middle.
    """
    if wanted is None or wanted >= total:
        return None
    if not edges:
        if wanted == 1:
            return (total // 2,)
        return tuple(int((part + part * _GOLDEN % 1.0) * total / wanted) for part in range(wanted))
    if wanted == 1:
        return (0,)
    return tuple(sorted({number * (total - 1) // (wanted - 1) for number in range(wanted)}))


def edge_blocks(grid: Dim3, wanted: int | None) -> tuple[int, ...] | None:
    """`wanted` blocks of a grid, or None for all: corners, the first and last before others, and some between."""
    spread = sampled_blocks(math.prod(grid), wanted)
    if spread is None or wanted is None:
        return None
    x, y, z = (range(0, extent, max(extent - 1, 1)) for extent in grid)
    corners = [i + grid[0] * (j + grid[1] * k) for k in z for j in y for i in x]
    chosen = dict.fromkeys((corners[0], corners[-1], *corners[1:-1]))
    chosen = dict.fromkeys([*chosen][: max(wanted // 2, min(wanted, 2))]) | dict.fromkeys(spread[1:-1])
    return tuple(sorted([*chosen][:wanted]))


def launch_request(
    launch: PackedLaunch, maps: Sequence[TensorMap], memory: PlanMemory | GlobalMemory, options: LaunchOptions
) -> LaunchRequest:
    """The launch for the emulator, with addresses and TMA descriptors filled in."""
    block = bytearray(launch.block_template)
    for pointer in launch.pointers:
        struct.pack_into("<Q", block, pointer.offset, memory.address(pointer.tensor))
    for place in launch.maps:
        record = next(one for one in maps if one.name == place.map)
        block[place.offset : place.offset + MAP_BYTES] = encoded_map(record, memory.address(record.tensor))
    return LaunchRequest(
        kernel=launch.symbol,
        grid=launch.grid,
        block=launch.block,
        dynamic_smem_bytes=launch.dynamic_smem_bytes,
        parameters=bytes(block),
        cluster=launch.cluster,
        cooperative=launch.cooperative,
        overlaps=launch.pdl,
        options=options,
        shown_as=launch.kernel,
        launch_line=launch.line,
    )


def run_library_step(call: LibraryCall, target: Buffer, memory: PlanMemory) -> None:
    """Call the operator and put its result into `target`; raises `LibraryRefused`."""
    import torch  # a plan without library steps needs none of it

    from tilewright.devices.cuda.library_steps import LibraryStep, LibraryStepError

    names = {value.name for value in call.arguments if isinstance(value, TensorArgument)}
    try:
        with torch.autocast("cpu", enabled=False):
            result = LibraryStep(call, target).run({name: tensor_copy(memory, name) for name in names})
    except LibraryStepError as error:
        raise LibraryRefused(str(error), call) from error
    storage = torch.empty_strided(target.spec.shape, target.spec.stride, dtype=result.dtype)
    storage.copy_(result)
    memory.write(target.name, storage_bytes(storage, target.spec.storage_bytes))


@dataclass
class _Run:
    program: Program | None
    plan: BoundPlan
    memory: PlanMemory
    emulation: Emulation
    circumstances: Perturbation
    stopped_by: FindingRecord | None = None
    _stopped_at: PackedLaunch | None = None
    _used: int = 0  # of the budget of instructions
    _findings: list[FindingRecord] = field(default_factory=list)
    _counts: list[CountsRecord] = field(default_factory=list)
    _coverage: list[CoverageRecord] = field(default_factory=list)
    _touches: list[TouchRecord] = field(default_factory=list)
    _printed: list[str] = field(default_factory=list)
    _incomplete: dict[str, None] = field(default_factory=dict)
    _started: float = field(default_factory=time.perf_counter)
    _sampled: bool = False
    _launches: int = 0

    def step(self, step: PackedLaunch | LibraryCall) -> None:
        if isinstance(step, LibraryCall):
            target = next(buffer for buffer in self.plan.buffers if buffer.name == step.target)
            run_library_step(step, target, self.memory)
            self.memory.memory.begin_launch()  # the next launch follows no other
            self.memory.memory.end_launch(awaited=False, awaited_first=False)
            return
        result = self._launch(step)
        self._used += result.thread_instructions
        self._findings += result.findings
        if Check.UNINITIALISED in self.emulation.checks and self.program is not None:
            self._findings += [_undefined(one, step) for one in self.program.undefined_reads(step.symbol)]
        self._printed.append(result.printed)
        self._touches += result.touches
        self._incomplete.update(dict.fromkeys(f"{step.kernel}: {sentence}" for sentence in result.incomplete))
        if result.counts is not None:
            self._counts.append(result.counts)
        if result.coverage is not None:
            self._coverage.append(result.coverage)
        if not result.completed:
            ending = {finding.kind: finding for finding in reversed(result.findings)}
            causes = (ending[kind] for kind in _ENDINGS if kind in ending)
            self.stopped_by, self._stopped_at = next(causes, result.findings[-1]), step

    def _launch(self, launch: PackedLaunch) -> LaunchResult:
        if self.program is None:
            raise ValueError("the plan launches kernels and no program was given")
        total = math.prod(launch.grid)
        wanted = self.emulation.sampled_blocks
        by_edges = self.emulation.sample_edges
        blocks = edge_blocks(launch.grid, wanted) if by_edges else sampled_blocks(total, wanted, edges=False)
        if self.emulation.chosen_blocks:
            blocks = self.emulation.chosen_blocks[self._launches] or None
        self._launches += 1
        if blocks is not None and launch.cooperative:
            raise LaunchNotEmulable(
                f"its {total} blocks wait for each other, so {len(blocks)} of them cannot run alone", launch
            )
        self._sampled = self._sampled or blocks is not None
        left = max(self.emulation.instruction_budget - self._used, 1)
        given = self.circumstances
        options = LaunchOptions(
            self.emulation.checks,
            given.seed,
            left,
            self.emulation.workers,
            blocks,
            fill=given.fill or bytes((given.poison,)),
            inherits=given.inherits,
            many=given.many,
        )
        try:
            request = launch_request(launch, self.plan.maps, self.memory, options)
            if not self.program.overlaps_launches:
                request = replace(request, overlaps=False)
            return self.program.launch(self.memory.memory, request)
        except UnsupportedPtx as error:
            raise _not_emulable(self.program, error, launch) from error
        except PtxError as error:
            raise LaunchRefused(str(error), launch) from error

    def outcome(self) -> PlanOutcome:
        complete = self.stopped_by is None and not self._sampled
        counter_left = self._counter_left() if complete else None
        if complete and Check.UNINITIALISED in self.emulation.checks:
            self._findings += self._unwritten_outputs()
        if counter_left is not None:
            self._findings.append(counter_left)
        emulated = EmulatedRun(
            findings=tuple(self._findings),
            counts=tuple(self._counts),
            thread_instructions=min(self._used, self.emulation.instruction_budget - 1),
            schedules=1,
            varying=(),
            printed="".join(self._printed),
            seconds=time.perf_counter() - self._started,
            incomplete=tuple(self._incomplete),
            coverage=tuple(self._coverage),
            touches=tuple(self._touches),
        )
        return PlanOutcome(emulated, self.memory, (), self.stopped_by, self._stopped_at, counter_left)

    def _unwritten_outputs(self) -> list[FindingRecord]:
        found = []
        for buffer in self.plan.buffers:
            if buffer.role is BufferRole.SCRATCH or buffer.clearing is not Clearing.UNDEFINED:
                continue
            missing = self.memory.unwritten(buffer.name)
            last = self.plan.last_user(buffer.name)
            if missing is None or last is None:
                continue
            count, index = missing
            where = f"{buffer.name}[{', '.join(map(str, index))}]" if index else buffer.name
            detail = f"{count} of {buffer.spec.numel} elements of {buffer.name} keep what was in memory before the call"
            found.append(launch_finding(FindingKind.OUTPUT_NOT_WRITTEN, last, where, detail, count))
        return found

    def _counter_left(self) -> FindingRecord | None:
        for buffer in self.plan.buffers:
            last = self.plan.last_user(buffer.name)
            if buffer.clearing is not Clearing.COUNTER or last is None:
                continue
            size = buffer.spec.dtype.itemsize
            content = bytes(self.memory.content(buffer.name))
            values = [
                int.from_bytes(content[at : at + size], "little", signed=True) for at in range(0, len(content), size)
            ]
            left = [index for index, value in enumerate(values) if value]
            if left:
                where = f"{buffer.name}[{left[0]}] is {values[left[0]]}"
                detail = "the last block that uses a counter must set it back to 0"
                return launch_finding(FindingKind.COUNTER_LEFT, last, where, detail, len(left))
        return None


def _undefined(one: Instruction, launch: PackedLaunch) -> FindingRecord:
    line = kernel_line(one.places)
    found = launch_finding(FindingKind.UNINITIALISED_REGISTER, launch, one.text, "nothing can have written it", 1)
    return replace(found, line=line, ptx_line=one.ptx_line, ptx_text=one.text, places=one.places)


def launch_finding(kind: FindingKind, last: PackedLaunch, where: str, detail: str, count: int) -> FindingRecord:
    """A finding about memory, reported at a launch as a whole."""
    return FindingRecord(
        kind=kind,
        kernel=last.kernel,
        launch_line=last.line,
        line=last.line,
        column=0,
        thread=None,
        where=where,
        detail=detail,
        count=count,
    )


def refuse_unsupported(program: Program, plan: BoundPlan) -> None:
    """Raises `LaunchNotEmulable` for the first launch that cannot be emulated; runs nothing."""
    for launch in plan.launches:
        try:
            program.prepare(launch.symbol)
        except PtxError as error:
            raise _not_emulable(program, error, launch) from error


def _not_emulable(program: Program, error: PtxError, launch: PackedLaunch) -> LaunchNotEmulable:
    """The error with the instruction's line in the kernel file."""
    instructions = (one for function in program.module.functions.values() for one in function.body)
    found = next((one for one in instructions if one.ptx_line == error.ptx_line), None)
    line = kernel_line(found.places) if found is not None else None
    return LaunchNotEmulable(f"line {line}: {error}" if line is not None else str(error), launch)
