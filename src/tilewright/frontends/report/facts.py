"""What is known of a kernel beside its record: an attempt's texts and lines, and what the emulator counts and sees."""

from __future__ import annotations

import contextlib
import math
import re
import threading
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewright import records
from tilewright.devices.emulation.listing import LineCounts, costly_lines, render_summary
from tilewright.frontends.report.pictures import MOST_WRITTEN, Roofline
from tilewright.frontends.report.run_report import prompts_of
from tilewright.records import Attempt, GpuProfile, Measured, ModelTerm, Run, TensorSpec, TouchRecord, WrittenPart
from tilewright.store import RunFolder, StoreError, line_authors
from tilewright.store.attempt_folder import KERNEL

if TYPE_CHECKING:
    from tilewright.measure.performance_model import PlanModel

_MOST_PARTIAL = 9  # questions of one attempt


@dataclass(frozen=True)
class SourceLine:
    number: int
    text: str
    author: int | None = None  # the attempt that wrote it; 0 for the file given to start from
    notes: tuple[str, ...] = ()  # what was found there


@dataclass(frozen=True)
class AttemptFacts:
    """`attempt` is None while it is unfinished; what has come in so far is there all the same."""

    number: int
    attempt: Attempt | None
    kernel: str
    prompts: tuple[str, ...]
    replies: tuple[str, ...]
    partial: str  # of a reply that is coming in
    problem: str  # why some text is missing
    cases: tuple[records.CaseResult, ...]
    findings: tuple[records.FindingRecord, ...]
    source: tuple[SourceLine, ...]

    @property
    def is_empty(self) -> bool:
        return not (self.attempt or self.kernel or self.prompts or self.replies or self.partial or self.problem)


def attempt_facts(folder: RunFolder, run: Run, number: int) -> AttemptFacts:
    attempt = next((one for one in run.attempts if one.number == number), None)
    verdict, place = attempt.verdict if attempt else None, folder.attempt(number)
    kernel, partial, problem = "", "", ""
    prompts: tuple[str, ...] = ()
    replies: tuple[str, ...] = ()
    authors: list[int] = []
    try:
        kernel, prompts = place.find_text(KERNEL) or "", prompts_of(folder, number)
        replies = tuple(reply.text for reply in place.replies())
        coming = (place.find_text(f"reply-{k}.partial.md") for k in range(1, _MOST_PARTIAL + 1))
        partial = next((text for text in coming if text), "")
    except (StoreError, OSError) as error:
        problem = str(error)
    with contextlib.suppress(StoreError, OSError):
        authors = line_authors(folder, run, attempt) if attempt else []
    cases = () if verdict is None or isinstance(verdict, records.Unsupported) else verdict.cases
    source = source_lines(kernel, authors, verdict)
    return AttemptFacts(number, attempt, kernel, prompts, replies, partial, problem, cases, _findings(verdict), source)


def _findings(verdict: records.Verdict | None) -> tuple[records.FindingRecord, ...]:
    evidence = verdict.evidence if isinstance(verdict, records.Rejected) else None
    return evidence.findings if isinstance(evidence, records.Crashed) else ()


def source_lines(text: str, authors: list[int], verdict: records.Verdict | None) -> tuple[SourceLine, ...]:
    """Every line of a kernel file with who wrote it and what the verdict says of it."""
    notes: dict[int, list[str]] = {}
    lines = text.splitlines()
    for line, said in _said_of_lines(verdict, lines):
        notes.setdefault(line, []).append(said)
    known = authors if len(authors) == len(lines) else [None] * len(lines)
    return tuple(
        SourceLine(number, line, author, tuple(dict.fromkeys(notes.get(number, ()))))
        for number, (line, author) in enumerate(zip(lines, known, strict=True), start=1)
    )


def _said_of_lines(verdict: records.Verdict | None, lines: list[str]) -> list[tuple[int, str]]:
    said = [(one.line, one.kind.value) for one in _findings(verdict) if one.line is not None]
    said += [(one.other_line, f"other side of: {one.kind.value}") for one in _findings(verdict) if one.other_line]
    if isinstance(verdict, records.Passed):
        said += [(one.line, f"{one.why} in a judged case") for one in verdict.uncovered]
    evidence = verdict.evidence if isinstance(verdict, records.Rejected) else None
    match evidence:
        case records.NotBuilt(diagnostics=diagnostics):
            here = dict(enumerate(map(str.strip, lines), start=1))  # a message may be about a header's line
            said += [(one.line, one.message) for one in diagnostics if here.get(one.line) == one.source_line.strip()]
        case records.BadPlan(problems=problems):
            said += [(one.line, one.message) for one in problems if one.line]
        case records.Crashed(line=int(line), message=message, findings=()):
            said.append((line, message))
    return said


_ONE_AT_A_TIME = threading.Lock()  # each wants a core, and memory for the inputs


@dataclass(frozen=True)
class CountedLaunch:
    kernel: str
    summary: str
    lines: dict[int, LineCounts]  # by their number in the file
    costs: dict[int, str]  # why a line costs more than it needs
    share: float  # of all launches' thread instructions, 0 to 1


@dataclass(frozen=True)
class Counted:
    launches: tuple[CountedLaunch, ...]
    seen: str  # which blocks, at which sizes
    roofline: Roofline | None  # None where the kernel does no arithmetic that counts
    terms: tuple[ModelTerm, ...] = ()  # what each resource alone would need, in the model


class NotCountable(Exception):
    """The kernel cannot be emulated, or not at all; the message says why."""


def count_lines(run: Run, attempt: Attempt, text: str) -> Counted:
    """Seconds, at most a minute or two. Raises `NotCountable`."""
    # Looked up late: these import torch, and most pages need none of them.
    from tilewright.devices.child_device import EmulatedDevice
    from tilewright.devices.protocol import DeviceError
    from tilewright.kernel_file import KernelFileError, parse
    from tilewright.measure.emulated_counts import NotCounted, count_plan
    from tilewright.measure.performance_model import model_plan
    from tilewright.measure.preparation import NotPrepared
    from tilewright.toolchain import ToolchainError

    choice = dict(attempt.tune.choice) if attempt.tune else None
    floor_us = attempt.measurement.floor_us if attempt.measurement else 0.0
    try:
        with _ONE_AT_A_TIME, EmulatedDevice(run.task.profile) as emulator:
            model = model_plan(count_plan(parse(text, "kernel.cu"), run.task, choice, emulator), run.task, floor_us)
    except (KernelFileError, NotPrepared, NotCounted, DeviceError, ToolchainError) as problem:
        raise NotCountable(str(problem)) from None
    listings = [launch.facts.listing for launch in model.launches]
    done = [launch.facts.counted.scale * launch.facts.listing.summary.thread_instructions for launch in model.launches]
    launches = tuple(
        CountedLaunch(
            one.summary.kernel,
            render_summary(one.summary),
            {line.line: line for line in one.lines},
            {line.line: line.message for line in costly_lines(one)},
            instructions / (math.fsum(done) or 1.0),
        )
        for one, instructions in zip(listings, done, strict=True)
    )
    sizes = ", ".join(f"{name} = {size}" for name, size in model.counted.counted_at.items())
    seen = f"{model.modelled.sampled_blocks:,} of {model.modelled.grid_blocks:,} blocks, run at {sizes}"
    time_us = attempt.measurement.time_us if attempt.measurement else model.modelled.time_us
    measured = isinstance(attempt.measurement, Measured)
    roofline = roofline_of(model, run.task.profile, time_us, measured)
    return Counted(launches, seen, roofline, model.modelled.terms)


def roofline_of(model: PlanModel, gpu: GpuProfile, time_us: float, measured: bool) -> Roofline | None:
    """Where a counted plan stands under the roofline; None where it does no arithmetic that counts."""
    from tilewright.measure.performance_model import tensor_tflops
    from tilewright.ptx.classes import FlopKind

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
    peaks = {}
    for kind in operations:
        if FlopKind(kind).is_tensor:
            peaks[kind] = tensor_tflops(kind, gpu)
        elif kind == FlopKind.FP64.value:
            peaks["f64"] = gpu.f64_tflops
        else:
            peaks["f32"] = gpu.f32_tflops
    known = tuple((kind, peak) for kind, peak in peaks.items() if peak)
    time_is = "measured" if measured else "modelled"
    return Roofline(gpu.name, gpu.bandwidth_gbs, known, total, moved, time_us, time_is, floor_us) if known else None


# -- the finished kernel, looked at in the emulator --

_MOST_ELEMENTS = 32 << 20  # of all inputs: drawing as many takes a second
_SECONDS = 60.0


@dataclass(frozen=True)
class LaunchShape:
    """One launch of a plan at the task's sizes."""

    kernel: str
    line: int
    blocks: int
    threads: int  # of a block
    shared_bytes: int  # of a block
    registers: int  # of a thread
    constants: tuple[tuple[str, str], ...] = ()  # those tuned, and those in its line


@dataclass(frozen=True)
class Look:
    """`written` is what the first block of each launch wrote; empty where all blocks had to run."""

    launches: tuple[LaunchShape, ...]
    specs: dict[str, TensorSpec]  # inputs and outputs, at the sizes that were run
    touches: tuple[TouchRecord, ...]
    written: tuple[WrittenPart, ...]
    counted: Counted | None
    problem: str = ""  # why there are no counts, or nothing at all
    sizes: str = ""  # that were run, where they are not the task's
    blocks: int = 0  # of the last launch at those sizes


def look_at(run: Run, attempt: Attempt, text: str) -> Look:
    """Some seconds of emulation; a kernel that cannot be emulated gives a `Look` with a `problem`."""
    from tilewright.devices.child_device import EmulatedDevice
    from tilewright.devices.protocol import DeviceError
    from tilewright.kernel_file import KernelFileError, parse
    from tilewright.measure.emulated_counts import affordable_sizes
    from tilewright.measure.preparation import NotPrepared, job_inputs, prepare
    from tilewright.records import Check, Emulation, Limits
    from tilewright.toolchain import ToolchainError

    counted, problem = None, ""
    try:
        counted = count_lines(run, attempt, text)
    except NotCountable as reason:
        problem = str(reason)
    choice = dict(attempt.tune.choice) if attempt.tune else None
    try:
        file, task = parse(text, "kernel.cu"), run.task
        real = prepare(file, task, choice)
        sizes = affordable_sizes(task, _MOST_ELEMENTS)
        built = real if sizes == task.sizes else prepare(file, task, real.evaluation.choice, sizes)
        alone = not any(step.cooperative for step in built.plan.launches)
        emulation = Emulation(
            (Check.TOUCHES,), sampled_blocks=1 if alone else None, written_elements=MOST_WRITTEN if alone else 0
        )
        job = built.job("look", job_inputs(task, sizes), limits=Limits(seconds=_SECONDS), emulation=emulation)
        with EmulatedDevice(task.profile) as emulator:
            emulated = getattr(emulator.execute(job), "emulated", None)
    except (KernelFileError, NotPrepared, DeviceError, ToolchainError) as error:
        return Look((), {}, (), (), counted, problem or str(error))
    launches = tuple(
        LaunchShape(
            step.kernel,
            step.line,
            math.prod(step.grid),
            math.prod(step.block),
            real.build.kernel(step.kernel).resources.static_smem_bytes + step.dynamic_smem_bytes if real.build else 0,
            real.build.kernel(step.kernel).resources.registers if real.build else 0,
            tuple(
                (name, str(value).lower())
                for name, value in real.evaluation.constants
                if name in real.evaluation.choice or re.search(rf"\b{name}\b", text.splitlines()[step.line - 1])
            ),
        )
        for step in real.plan.launches
    )
    specs = {**task.specs(sizes), **task.output_specs(sizes)}
    touches, written = (emulated.touches, emulated.written) if emulated else ((), ())
    smaller = "" if sizes == task.sizes else ", ".join(f"{name} = {size}" for name, size in sizes.items())
    blocks = math.prod(built.plan.launches[-1].grid) if built.plan.launches else 0
    return Look(launches, specs, touches, written, counted, problem, smaller, blocks)
