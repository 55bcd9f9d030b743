"""What the emulator shows of a run's kernel: counts line by line, which bytes are touched, and exercises done there."""

from __future__ import annotations

import contextlib
import math
import re
import shlex
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilewright import records
from tilewright.devices.child_device import EmulatedDevice
from tilewright.devices.emulation.listing import LineCounts, costly_lines, render_summary
from tilewright.devices.protocol import DeviceError
from tilewright.frontends.api.kernel_arguments import SMALL_SHAPES, complete_arguments, option_words
from tilewright.frontends.cli.check import CheckOptions, check_file
from tilewright.frontends.report.checks import CheckOutcome, CheckReport
from tilewright.frontends.report.document import EXERCISES, Fold, Glossary, Section, Source
from tilewright.frontends.report.pictures import MOST_WRITTEN, Roofline
from tilewright.frontends.report.runs import microseconds, named_values, number_of
from tilewright.kernel_file import ArgumentValue, KernelFile, KernelFileError, parse
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
            one.summary.kernel,
            render_summary(one.summary),
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
    """`written` is what the first block of each launch wrote; empty where all blocks had to run."""

    launches: tuple[dict[str, object], ...]  # at the task's sizes, as the lesson tells them
    specs: dict[str, records.TensorSpec]  # inputs and outputs, at the sizes that were run
    touches: tuple[records.TouchRecord, ...]
    written: tuple[records.WrittenPart, ...]
    counted: Counted | None
    problem: str = ""  # why there are no counts, or nothing at all
    sizes: str = ""  # that were run, where they are not the task's
    blocks: int = 0  # of the last launch at those sizes


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
        emulation = records.Emulation(
            (records.Check.TOUCHES,), sampled_blocks=1 if alone else None, written_elements=MOST_WRITTEN if alone else 0
        )
        job = built.job("look", job_inputs(task, sizes), limits=records.Limits(seconds=_SECONDS), emulation=emulation)
        with EmulatedDevice(task.profile) as emulator:
            emulated = getattr(emulator.execute(job), "emulated", None)
    except _UNFIT as error:
        return Look((), {}, (), (), counted, problem or str(error))
    launches = tuple(_launch_words(step, real, text.splitlines()) for step in real.plan.launches)
    specs = {**task.specs(sizes), **task.output_specs(sizes)}
    touches, written = (emulated.touches, emulated.written) if emulated else ((), ())
    smaller = "" if sizes == task.sizes else named_values(sizes)
    blocks = math.prod(built.plan.launches[-1].grid) if built.plan.launches else 0
    return Look(launches, specs, touches, written, counted, problem, smaller, blocks)


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


# -- exercises: the edit is made and `check` is run --

Say = Callable[[str], None]
_BARRIER = re.compile(r"__syncthreads\(\);")
_GUARD = re.compile(r"(?<![<\w])(\w+) (<|>=) (\w+)(?=\)|;| \|\|| &&)")
_TUNE = re.compile(r"^//!\s*tune\s+(\w+\s*=\s*)([^#;]*[^#;\s])")
_MOST_TRIED = 3  # edits of one kind: each is compiled and run
_MOST_FINDINGS = 3
_MOST_TRIED_ELEMENTS = 1 << 15  # of all inputs: emulated in a second or two
_SCHEDULES = 3  # as `check` has it when nobody says


@dataclass(frozen=True)
class Edit:
    """One line of a kernel file made into another."""

    line: int
    before: str
    after: str

    @property
    def command(self) -> str:
        """The edit by `sed`, in the file `kernel.cu`."""
        marked = re.sub(r"([\\/&.*\[\]^$])", r"\\\1", self.before), re.sub(r"([\\/&])", r"\\\1", self.after)
        return f"sed -i {shlex.quote(f'{self.line}s/{marked[0]}/{marked[1]}/')} kernel.cu"

    def of(self, text: str) -> str:
        lines = text.splitlines(keepends=True)
        lines[self.line - 1] = lines[self.line - 1].replace(self.before, self.after, 1)
        return "".join(lines)


@dataclass(frozen=True)
class Exercise:
    title: str
    question: str
    commands: tuple[str, ...]
    answer: tuple[str, ...]  # a paragraph each
    output: str = ""  # what was printed, as far as it matters


@dataclass(frozen=True)
class Bench:
    """A kernel with the arguments at which `check` finds nothing wrong with it."""

    file: KernelFile
    arguments: Mapping[str, ArgumentValue]
    gpu: records.GpuProfile
    command: str
    report: CheckReport


def exercises(run: records.Run, best: records.Attempt, name: str, text: str, say: Say) -> tuple[Exercise, ...]:
    """Those that could be made and did show something; `name`: the run as the reader calls it."""
    on_paper = (_elsewhere(run),)
    edits = tuned_first(text, _choice(best) or {})
    for edit in edits:
        text = edit.of(text)
    try:
        file = parse(text, KERNEL)
    except KernelFileError:
        return on_paper
    opening = (f"tilewright show {shlex.quote(name)} --kernel > kernel.cu", *(edit.command for edit in edits))
    alike = _bench(run, file, (_said(run, affordable_sizes(run.task, _MOST_TRIED_ELEMENTS)),), say)
    fragile = _bench(run, file, _odd_sizes(run, best, file), say) or alike
    made = [
        _busiest(alike, opening, run.task) if alike else None,
        _broken(fragile, opening, "barrier", _barriers(text), say) if fragile else None,
        _broken(fragile, opening, "guard", _guards(text), say) if fragile else None,
    ]
    return (*on_paper, *(one for one in made if one is not None))


def tuned_first(text: str, choice: Mapping[str, int | bool]) -> tuple[Edit, ...]:
    """What puts the autotuner's values first, because those are what `check` takes."""
    edits = []
    for number, line in enumerate(text.splitlines(), start=1):
        tuned = _TUNE.match(line)
        chosen = choice.get(tuned[1].rstrip("= ")) if tuned else None
        if tuned is None or chosen is None:
            continue
        values = [value.strip() for value in tuned[2].split("|")]
        ordered = sorted(values, key=lambda value: value.lower() != str(chosen).lower())
        if ordered != values:
            edits.append(Edit(number, tuned[1] + tuned[2], tuned[1] + " | ".join(ordered)))
    return tuple(edits)


_Arguments = tuple[Mapping[str, ArgumentValue], str]  # and how the command is told of them


def _odd_sizes(run: records.Run, best: records.Attempt, file: KernelFile) -> Iterator[_Arguments]:
    """At which bounds matter: as the command guesses them, and the first that the kernel was judged at."""
    with contextlib.suppress(BadArgument):
        yield complete_arguments(file, {}, run.task.profile, SMALL_SHAPES)[0], ""
    for judged in best.verdict.cases if isinstance(best.verdict, records.Passed) else ():
        arguments = _said(run, judged.case.sizes)
        elements = sum(one.numel for one in arguments[0].values() if isinstance(one, records.TensorSpec))
        if elements <= _MOST_TRIED_ELEMENTS:
            yield arguments
            return


def _said(run: records.Run, sizes: Mapping[str, int]) -> _Arguments:
    given = run.task.arguments(sizes)
    return given, "".join(f" {one}" for one in option_words(given))


def _bench(run: records.Run, file: KernelFile, options: Iterable[_Arguments], say: Say) -> Bench | None:
    """The kernel at the first arguments that it is right at."""
    task = run.task
    gpu = "" if task.gpu == "H200" else f" --gpu {shlex.quote(task.gpu)}"
    for arguments, flags in options:
        report = _checked(file.text, arguments, task.profile, say)
        if report is not None and report.outcome is CheckOutcome.CLEAN:
            return Bench(file, arguments, task.profile, f"tilewright check kernel.cu{flags}{gpu}", report)
    return None


def _checked(
    text: str, arguments: Mapping[str, ArgumentValue], gpu: records.GpuProfile, say: Say
) -> CheckReport | None:
    """As the command does it; None for a text that cannot be checked."""
    options = CheckOptions(gpu, records.Emulation(schedules=_SCHEDULES), seconds=_SECONDS, keep_counts=True)
    try:
        return check_file(parse(text, KERNEL), arguments, False, options, say)
    except _UNFIT:
        return None


def _elsewhere(run: records.Run) -> Exercise:
    """The roofline's arithmetic once more, with another GPU's figure."""
    task = run.task
    other = next(one for one in records.PROFILES.values() if one.bandwidth_gbs and one.name != task.gpu)
    memory_us = task.moved_bytes / (other.bandwidth_gbs * 1e3)
    us = records.LAUNCH_US
    given = {"gpu": other, "launch": us, "megabytes": task.moved_bytes / 1e6, "memory": microseconds(memory_us)}
    given["whole"] = microseconds(memory_us + us)
    title, question, answer = (text.format(**given) for text in EXERCISES["elsewhere"])
    return Exercise(title, question, (), (answer,))


# -- read the counters --


def _busiest(bench: Bench, opening: tuple[str, ...], task: records.Task) -> Exercise | None:
    listings = bench.report.listings
    done: Counter[int] = Counter()
    for line in (line for listing in listings for line in listing.lines if line.line):
        done[line.line] += line.thread_instructions
    if not done:
        return None
    most = max(done, key=lambda line: (done[line], -line))
    share = done[most] / sum(listing.summary.thread_instructions for listing in listings)
    whose = " of all launches together; the lists have shares of one launch each" if len(listings) > 1 else ""
    small = "The command's sizes are smaller than the task's, at which shares may differ. "
    title, question, compare = EXERCISES["busiest"]
    answer = f"Line {most}, with {share:.0%} of the thread instructions{whose}:"
    is_smaller = dict(bench.arguments) != dict(task.arguments(task.sizes))
    rest = f"{small if is_smaller else ''}{compare}"
    command, source = f"{bench.command} --counters", bench.file.text.splitlines()[most - 1].strip()
    return Exercise(title, question, (*opening, command), (answer, rest), source)


# -- break it --


def _barriers(text: str) -> tuple[Edit, ...]:
    return tuple(Edit(number, found[0], "") for number, found in _matches(_BARRIER, text))


def _guards(text: str) -> tuple[Edit, ...]:
    return tuple(
        Edit(number, found[0], f"{found[1]} {'<=' if found[2] == '<' else '>'} {found[3]}")
        for number, found in sorted(_matches(_GUARD, text), key=lambda pair: pair[1][2] == ">=")  # the commoner first
        if re.search(r"\bif\b(?! constexpr)|\breturn\b", text.splitlines()[number - 1]) and not found[3].isdigit()
    )


def _matches(pattern: re.Pattern[str], text: str) -> Iterator[tuple[int, re.Match[str]]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if found := pattern.search(line.split("//")[0]):
            yield number, found


def _broken(bench: Bench, opening: tuple[str, ...], name: str, edits: tuple[Edit, ...], say: Say) -> Exercise | None:
    """The first of the edits that `check` finds something wrong with."""
    title, question, moral = EXERCISES[name]
    for edit in edits[:_MOST_TRIED]:
        say(f"trying an exercise: {title.lower()} in line {edit.line}")
        report = _checked(edit.of(bench.file.text), bench.arguments, bench.gpu, say)
        if report is None or report.outcome not in (CheckOutcome.FINDINGS, CheckOutcome.FAULTED):
            continue
        findings = [" ".join(str(one).split()) for one in report.findings[:_MOST_FINDINGS]] or [report.reason]
        commands = (*opening, edit.command, bench.command)
        return Exercise(title, question, commands, (_count(report), moral), "\n".join(findings))
    return None


def _count(report: CheckReport) -> str:
    if not report.findings:
        return "It does not get to its end:"
    many = len(report.findings)
    shown = f", of which these are the first {_MOST_FINDINGS}" if many > _MOST_FINDINGS else ""
    return f"The check fails with {number_of(many, 'finding')}{shown}:"


# -- as sections of the lesson --


def exercise_sections(made: Sequence[Exercise], place: str, words: Glossary) -> Iterator[Section]:
    """`place`: where the commands are to be run, "" where that goes without saying."""
    if not made:
        return
    opening = words.text("exercises", place=f"Run them {place}. " if place else "")
    yield Section("Exercises", (opening,))
    for number, one in enumerate(made, start=1):
        commands = [Source("\n".join(one.commands), "sh")] if one.commands else []
        question = words.say(one.question)
        first, *rest = (words.say(text) for text in one.answer)
        answer = Fold("Answer", (first, *([Source(one.output, "text")] if one.output else []), *rest))
        yield Section(f"{number}. {one.title}", (question, *commands, answer), level=3)
