"""What the emulator shows of a run's kernel: counts line by line, and which bytes are touched."""

from __future__ import annotations

import math
import re
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright import records
from tilewright.devices.child_device import EmulatedDevice
from tilewright.devices.emulation.listing import WASTEFUL, LineCounts, costly_lines, listing_text
from tilewright.devices.protocol import DeviceError
from tilewright.frontends.report.pictures import Roofline
from tilewright.frontends.report.runs import named_values, number_of
from tilewright.kernel_file import KernelFileError, parse
from tilewright.measure.emulated_counts import NotCounted, affordable_sizes, count_plan
from tilewright.measure.performance_model import PlanModel, model_plan, tensor_tflops
from tilewright.measure.preparation import NotPrepared, job_inputs, prepare
from tilewright.ptx.classes import FlopKind
from tilewright.store.attempt_folder import KERNEL
from tilewright.tasks.errors import BadArgument
from tilewright.toolchain import BuiltPlan, ToolchainError

_UNFIT = (KernelFileError, NotPrepared, NotCounted, DeviceError, ToolchainError, BadArgument)
_ONE_AT_A_TIME = threading.Lock()  # each wants a core, and memory for the inputs


@dataclass(frozen=True)
class CountedLaunch:
    text: str  # the whole listing
    lines: dict[int, LineCounts]  # by their number in the file
    costs: dict[int, str]  # why a line costs more than it needs
    share: float  # of all launches' thread instructions, 0 to 1


@dataclass(frozen=True)
class Counted:
    launches: tuple[CountedLaunch, ...]
    seen: str  # which blocks, at which sizes
    roofline: Roofline | None  # None where the kernel does no arithmetic that counts
    terms: tuple[records.ModelTerm, ...] = ()  # what each resource alone would need, in the model


class NotCountable(Exception):
    """The kernel cannot be emulated, or not at all; the message says why."""


def count_lines(run: records.Run, attempt: records.Attempt, text: str) -> Counted:
    """Seconds, at most a minute or two. Raises `NotCountable`."""
    task, floor_us = run.task, attempt.measurement.floor_us if attempt.measurement else 0.0
    try:
        with _ONE_AT_A_TIME, EmulatedDevice(task.profile) as emulator:
            model = model_plan(count_plan(parse(text, KERNEL), task, _choice(attempt), emulator), task, floor_us)
    except _UNFIT as problem:
        raise NotCountable(str(problem)) from None
    listings = [launch.facts.listing for launch in model.launches]
    done = [launch.facts.counted.scale * launch.facts.listing.summary.thread_instructions for launch in model.launches]
    launches = tuple(
        CountedLaunch(
            listing_text(one),
            {line.line: line for line in one.lines},
            {line.line: line.message for line in costly_lines(one)},
            instructions / (math.fsum(done) or 1.0),
        )
        for one, instructions in zip(listings, done, strict=True)
    )
    sizes = named_values(model.counted.counted_at)
    seen = f"{model.modelled.sampled_blocks:,} of {model.modelled.grid_blocks:,} blocks, run at {sizes}"
    time_us = attempt.measurement.time_us if attempt.measurement else model.modelled.time_us
    roofline = roofline_of(model, task.profile, time_us, isinstance(attempt.measurement, records.Measured))
    return Counted(launches, seen, roofline, model.modelled.terms)


def _choice(attempt: records.Attempt) -> dict[str, int | bool] | None:
    return dict(attempt.tune.choice) if attempt.tune else None


def roofline_of(model: PlanModel, gpu: records.GpuProfile, time_us: float, measured: bool) -> Roofline | None:
    """Where a counted plan stands under the roofline; None where it does no arithmetic that counts."""
    operations: Counter[str] = Counter()
    for launch in model.launches:
        summary = launch.facts.listing.summary
        for one in (*summary.flops, *summary.tensor_operations):
            operations[one.kind.value] += round(one.count * launch.facts.counted.scale)
    moved = sum(launch.facts.traffic.total_bytes for launch in model.launches)
    total = sum(operations.values())
    floor_us = model.modelled.floor_us
    if not (total and moved and time_us and floor_us and gpu.bandwidth_gbs):
        return None
    peaks = {kind: tensor_tflops(kind, gpu) for kind in operations if FlopKind(kind).is_tensor}
    plain = [kind == FlopKind.FP64.value for kind in operations if kind not in peaks]
    peaks |= {"f64" if is_f64 else "f32": gpu.f64_tflops if is_f64 else gpu.f32_tflops for is_f64 in plain}
    known = tuple((kind, peak) for kind, peak in peaks.items() if peak)
    time_is = "measured" if measured else "modelled"
    return Roofline(gpu.name, gpu.bandwidth_gbs, known, total, moved, time_us, time_is, floor_us) if known else None


# -- the finished kernel, looked at in the emulator --

_MOST_ELEMENTS = 32 << 20  # of all inputs: drawing as many takes a second
_SECONDS = 60.0


@dataclass(frozen=True)
class Look:
    launches: tuple[dict[str, object], ...]  # at the task's sizes, as the lesson tells them
    touches: tuple[records.TouchRecord, ...]
    counted: Counted | None
    problem: str = ""  # why there are no counts, or nothing at all
    sizes: str = ""  # that were run, where they are not the task's


def look_at(run: records.Run, attempt: records.Attempt, text: str) -> Look:
    """Some seconds of emulation; a kernel that cannot be emulated gives a `Look` with a `problem`."""
    counted, problem = None, ""
    try:
        counted = count_lines(run, attempt, text)
    except NotCountable as reason:
        problem = str(reason)
    try:
        file, task = parse(text, KERNEL), run.task
        real = prepare(file, task, _choice(attempt))
        sizes = affordable_sizes(task, _MOST_ELEMENTS)
        built = real if sizes == task.sizes else prepare(file, task, real.evaluation.choice, sizes)
        alone = not any(step.cooperative for step in built.plan.launches)
        emulation = records.Emulation((records.Check.TOUCHES,), sampled_blocks=1 if alone else None)
        job = built.job("look", job_inputs(task, sizes), limits=records.Limits(seconds=_SECONDS), emulation=emulation)
        with EmulatedDevice(task.profile) as emulator:
            emulated = getattr(emulator.execute(job), "emulated", None)
    except _UNFIT as error:
        return Look((), (), counted, problem or str(error))
    launches = tuple(_launch_words(step, real, text.splitlines()) for step in real.plan.launches)
    touches = emulated.touches if emulated else ()
    smaller = "" if sizes == task.sizes else named_values(sizes)
    return Look(launches, touches, counted, problem, smaller)


def _launch_words(step: records.PackedLaunch, real: BuiltPlan, lines: Sequence[str]) -> dict[str, object]:
    evaluation, threads = real.evaluation, math.prod(step.block)
    resources = real.build.kernel(step.kernel).resources if real.build else None
    shared = resources.static_smem_bytes + step.dynamic_smem_bytes if resources else 0
    shown = {  # those tuned, and those in its line
        name: str(value).lower()
        for name, value in evaluation.constants
        if name in evaluation.choice or re.search(rf"\b{name}\b", lines[step.line - 1])
    }
    return {
        "kernel": step.kernel,
        "line": step.line,
        "blocks": number_of(math.prod(step.grid), "block"),
        "threads": number_of(threads, "thread"),
        "warps": number_of(-(-threads // 32), "warp"),
        "registers": resources.registers if resources else 0,
        "shared": f" and each block {shared:,} bytes of shared memory" if shared else "",
        "constants": f", with {named_values(shown)} put in" if shown else "",
    }


# -- which bytes a warp touches --


@dataclass(frozen=True)
class Access:
    """One request of a warp in numbers."""

    touch: records.TouchRecord

    @property
    def sectors(self) -> int:
        return len({place // records.SECTOR_BYTES for place in self._bytes()})

    @property
    def fewest(self) -> int:
        """Sectors that could carry these bytes."""
        return -(-len(self._bytes()) // records.SECTOR_BYTES)

    def _bytes(self) -> set[int]:
        return {place for _, first in self.touch.offsets for place in range(first, first + self.touch.bytes)}

    @property
    def words(self) -> str:
        what = "writes" if self.touch.writes else "reads"
        lanes = len(self.touch.offsets)
        who = "Each lane" if lanes == 32 else "One lane" if lanes == 1 else f"{lanes} of the 32 lanes"
        verb = what if lanes in (1, 32) else what[:-1]
        # By the same measure as listings mark a line that wastes sectors.
        judged = "coalesced" if self.sectors <= WASTEFUL * self.fewest else "not coalesced"
        many = f"{self.sectors} sectors move where {self.fewest} could do: {judged}"
        one = f"one sector of {records.SECTOR_BYTES} bytes moves"
        return f"{who} {verb} {self.touch.bytes} bytes of {self.touch.tensor}; {many if self.sectors > 1 else one}."
