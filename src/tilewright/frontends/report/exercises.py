"""Exercises on a run's best kernel whose answers were obtained by doing them: the edit is made and `check` is run."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilewright.devices.protocol import DeviceError
from tilewright.frontends.api.kernel_arguments import SMALL_SHAPES, complete_arguments
from tilewright.frontends.cli.check import CheckOptions, check_file
from tilewright.frontends.report.checks import CheckOutcome, CheckReport
from tilewright.frontends.report.document import Code, Fold, Glossary, Section, Source
from tilewright.frontends.report.runs import microseconds, number_of
from tilewright.kernel_file import ArgumentValue, KernelFile, KernelFileError, parse
from tilewright.records import LAUNCH_US, PROFILES, Attempt, Emulation, GpuProfile, Passed, Run, Task, TensorSpec
from tilewright.tasks.errors import BadArgument
from tilewright.toolchain import ToolchainError

Say = Callable[[str], None]
_BARRIER = re.compile(r"__syncthreads\(\);")
_GUARD = re.compile(r"(?<![<\w])(\w+) (<|>=) (\w+)(?=\)|;| \|\|| &&)")
_TUNE = re.compile(r"^//!\s*tune\s+(\w+\s*=\s*)([^#;]*[^#;\s])")
_MOST_TRIED = 3  # edits of one kind: each is compiled and run
_MOST_FINDINGS = 3
_MOST_ELEMENTS = 1 << 15  # of all inputs: emulated in a second or two
_SCHEDULES = 3  # as `check` has it when nobody says
_SECONDS = 60.0


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
    gpu: GpuProfile
    command: str
    report: CheckReport

    def is_smaller_than(self, task: Task) -> bool:
        return dict(self.arguments) != dict(task.arguments(task.sizes))


def exercises(run: Run, best: Attempt, name: str, text: str, say: Say) -> tuple[Exercise, ...]:
    """Those that could be made and did show something; `name`: the run as the reader calls it."""
    on_paper = (_elsewhere(run),)
    edits = tuned_first(text, dict(best.tune.choice) if best.tune else {})
    for edit in edits:
        text = edit.of(text)
    try:
        file = parse(text, "kernel.cu")
    except KernelFileError:
        return on_paper
    opening = (f"tilewright show {shlex.quote(name)} --kernel > kernel.cu", *(edit.command for edit in edits))
    alike = _bench(run, file, (_task_made_smaller(run),), say)
    fragile = _bench(run, file, _odd_sizes(run, best, file), say) or alike
    made = [
        _busiest(alike, opening, run.task) if alike else None,
        _broken(fragile, opening, _barriers(text), say) if fragile else None,
        _broken(fragile, opening, _guards(text), say) if fragile else None,
    ]
    return (*on_paper, *(one for one in made if one is not None))


def tuned_first(text: str, choice: Mapping[str, int | bool]) -> tuple[Edit, ...]:
    """What puts the autotuner's values first, because those are what `check` takes."""
    edits = []
    for number, line in enumerate(text.splitlines(), start=1):
        found = _TUNE.match(line)
        chosen = choice.get(found[1].rstrip("= ")) if found else None
        if found is None or chosen is None:
            continue
        values = [value.strip() for value in found[2].split("|")]
        ordered = sorted(values, key=lambda value: value.lower() != str(chosen).lower())
        if ordered != values:
            edits.append(Edit(number, found[1] + found[2], found[1] + " | ".join(ordered)))
    return tuple(edits)


_Arguments = tuple[Mapping[str, ArgumentValue], str]  # and how the command is told of them


def _task_made_smaller(run: Run) -> _Arguments:
    from tilewright.measure.emulated_counts import affordable_sizes

    return _said(run, affordable_sizes(run.task, _MOST_ELEMENTS))


def _odd_sizes(run: Run, best: Attempt, file: KernelFile) -> Iterator[_Arguments]:
    """At which bounds matter: as the command guesses them, and the first that the kernel was judged at."""
    with contextlib.suppress(BadArgument):
        yield complete_arguments(file, {}, run.task.profile, SMALL_SHAPES)[0], ""
    for judged in best.verdict.cases if isinstance(best.verdict, Passed) else ():
        arguments = _said(run, judged.case.sizes)
        if sum(one.numel for one in arguments[0].values() if isinstance(one, TensorSpec)) <= _MOST_ELEMENTS:
            yield arguments
            return


def _said(run: Run, sizes: Mapping[str, int]) -> _Arguments:
    given = run.task.arguments(sizes)
    return given, "".join(f" {_flag(one, value)}" for one, value in given.items() if value is not None)


def _bench(run: Run, file: KernelFile, options: Iterable[_Arguments], say: Say) -> Bench | None:
    """The kernel at the first arguments that it is right at."""
    task = run.task
    gpu = "" if task.gpu == "H200" else f" --gpu {shlex.quote(task.gpu)}"
    for arguments, said in options:
        report = _checked(file, arguments, task.profile, say)
        if report is not None and report.outcome is CheckOutcome.CLEAN:
            return Bench(file, arguments, task.profile, f"tilewright check kernel.cu{said}{gpu}", report)
    return None


def _flag(name: str, value: ArgumentValue) -> str:
    """An argument as the command takes it."""
    if isinstance(value, TensorSpec):
        return f"--shape {name}={'x'.join(map(str, value.shape))}:{value.dtype.value}"
    said = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return f"--set {name}={said.lower()}"


def _checked(file: KernelFile, arguments: Mapping[str, ArgumentValue], gpu: GpuProfile, say: Say) -> CheckReport | None:
    """As the command does it."""
    options = CheckOptions(gpu, Emulation(schedules=_SCHEDULES), seconds=_SECONDS, keep_counts=True)
    try:
        return check_file(file, arguments, False, options, say)
    except (KernelFileError, DeviceError, ToolchainError, BadArgument):
        return None


def _elsewhere(run: Run) -> Exercise:
    """The roofline's arithmetic once more, with another GPU's figure."""
    task = run.task
    other = next(one for one in PROFILES.values() if one.bandwidth_gbs and one.name != task.gpu)
    memory_us = task.moved_bytes / (other.bandwidth_gbs * 1e3)
    return Exercise(
        "On another GPU",
        f"The memory of {other.name} moves {other.bandwidth_gbs:,.0f} GB/s. How long does this operation take there at "
        f"least, by its bytes and the {LAUNCH_US:g} us of one launch? Work it out on paper.",
        (),
        (
            f"{task.moved_bytes / 1e6:,.2f} MB at {other.bandwidth_gbs:,.0f} GB/s take {microseconds(memory_us)} us, "
            f"and {LAUNCH_US:g} us for the launch: {microseconds(memory_us + LAUNCH_US)} us.",
        ),
    )


# -- read the counters --


def _busiest(bench: Bench, opening: tuple[str, ...], task: Task) -> Exercise | None:
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
    return Exercise(
        "Which line does most of the work?",
        "Run the finished kernel in the emulator and have it list what each line did. Which line accounts for the "
        "largest share of the instructions, and is it the one you would have guessed?",
        (*opening, f"{bench.command} --counters"),
        (
            f"Line {most}, with {share:.0%} of the thread instructions{whose}:",
            f"{small if bench.is_smaller_than(task) else ''}Compare the table above.",
        ),
        bench.file.text.splitlines()[most - 1].strip(),
    )


# -- break it --


@dataclass(frozen=True)
class _Breakage:
    title: str
    question: str
    edits: tuple[Edit, ...]
    moral: str


def _barriers(text: str) -> _Breakage:
    edits = tuple(Edit(number, found[0], "") for number, found in _matches(_BARRIER, text))
    return _Breakage(
        "Remove a barrier",
        "A barrier costs time, so take one away and look whether it was needed. What does the check find, and between "
        "which two lines?",
        edits,
        "Without the barrier nothing says that what one thread writes is there when another reads it. On a GPU such a "
        "kernel often gives the right answer all the same, until one day it does not.",
    )


def _guards(text: str) -> _Breakage:
    edits = tuple(
        Edit(number, found[0], f"{found[1]} {'<=' if found[2] == '<' else '>'} {found[3]}")
        for number, found in sorted(_matches(_GUARD, text), key=lambda pair: pair[1][2] == ">=")  # the commoner first
        if re.search(r"\bif\b(?! constexpr)|\breturn\b", text.splitlines()[number - 1]) and not found[3].isdigit()
    )
    return _Breakage(
        "Be off by one",
        "Let a test of a bound pass once too often, and check again. What is touched that should not be?",
        edits,
        "There is no IndexError on a GPU: an access beyond a tensor reads or overwrites whatever lies there.",
    )


def _matches(pattern: re.Pattern[str], text: str) -> Iterator[tuple[int, re.Match[str]]]:
    for number, line in enumerate(text.splitlines(), start=1):
        code = line.split("//")[0]
        found = pattern.search(code)
        if found:
            yield number, found


def _broken(bench: Bench, opening: tuple[str, ...], breakage: _Breakage, say: Say) -> Exercise | None:
    """The first edit of its kind that `check` finds something wrong with."""
    for edit in breakage.edits[:_MOST_TRIED]:
        say(f"trying an exercise: {breakage.title.lower()} in line {edit.line}")
        report = _after(bench, edit, say)
        if report is None or report.outcome not in (CheckOutcome.FINDINGS, CheckOutcome.FAULTED):
            continue
        found = report.findings[:_MOST_FINDINGS]
        said = [" ".join(str(one).split()) for one in found] or [report.reason]
        return Exercise(
            breakage.title,
            breakage.question,
            (*opening, edit.command, bench.command),
            (_count(report), breakage.moral),
            "\n".join(said),
        )
    return None


def _count(report: CheckReport) -> str:
    if not report.findings:
        return "It does not get to its end:"
    many = len(report.findings)
    shown = f", of which these are the first {_MOST_FINDINGS}" if many > _MOST_FINDINGS else ""
    return f"The check fails with {number_of(many, 'finding')}{shown}:"


def _after(bench: Bench, edit: Edit, say: Say) -> CheckReport | None:
    try:
        file = parse(edit.of(bench.file.text), "kernel.cu")
    except KernelFileError:
        return None
    return _checked(file, bench.arguments, bench.gpu, say)


# -- as sections of the lesson --


def exercise_sections(made: Sequence[Exercise], place: str, words: Glossary) -> Iterator[Section]:
    """`place`: where the commands are to be run, "" where that goes without saying."""
    if not made:
        return
    opening = words.say(
        "Each has its commands and an answer that was obtained by running them. ",
        f"Run them {place}. " if place else "",
        "The edit is made in a copy; the run stays as it is. ",
        Code("check"),
        " takes the first value of each ",
        Code("tune"),
        " line, so where the autotuner took another, ",
        Code("sed"),
        " first puts that one there.",
    )
    yield Section("Exercises", (opening,))
    for number, one in enumerate(made, start=1):
        commands = [Source("\n".join(one.commands), "sh")] if one.commands else []
        question = words.say(one.question)
        first, *rest = (words.say(text) for text in one.answer)
        answer = Fold("Answer", (first, *([Source(one.output, "text")] if one.output else []), *rest))
        yield Section(f"{number}. {one.title}", (question, *commands, answer), level=3)
