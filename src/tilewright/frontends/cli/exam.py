"""`tilewright exam`: students write kernels for held-out tasks, with a skill and without, and a report follows.

Each student has a suite's folder for either way, so that what is stopped goes on where it stopped.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import typer
from rich.text import Text

from tilewright import __version__
from tilewright.frontends.api.choices import ChosenDevice, author_name, check_key, choose_device
from tilewright.frontends.api.judges import settling_on
from tilewright.frontends.api.requests import resolved
from tilewright.frontends.api.running import task_of
from tilewright.frontends.cli.suite import local_pool
from tilewright.frontends.cli.terminal import FAULT, INTERRUPTED, NotDone, print_json, stderr_console, stdout_console
from tilewright.frontends.report import pictures
from tilewright.frontends.report.runs import dollars_words, seconds_words, time_words
from tilewright.frontends.report.suite import SuiteDisplay
from tilewright.models import providers
from tilewright.records import Budget, Settings
from tilewright.store import Store, durable, write_text
from tilewright.suites import (
    NoTasks,
    OtherSuite,
    Status,
    Suite,
    SuiteFolder,
    SuiteTask,
    TaskRecord,
    carry_out,
    folder_tasks,
)
from tilewright.tasks.errors import BadArgument
from tilewright.teaching.cleaning import cleaner
from tilewright.teaching.exam import (
    FEWEST_PAIRS,
    PASS_RATE,
    SPEED,
    TOKENS,
    Arm,
    Exam,
    Figure,
    Sitting,
    figures_of,
    sitting_of,
    skill_text,
    taught_before,
)
from tilewright.teaching.skill import NoSkill, SkillProvenance, read_provenance

# -- an exam as a page of Markdown: --


def report_text(exam: Exam) -> str:
    """The whole report."""
    times = "Times are modelled, not measured." if exam.emulated else "Times are measured."
    held = "They are held out: none is a task, or has the reference, of a run the skill was made of."
    if not exam.held_out:
        held = "Nobody knows whether they are held out: the skill has no record of its runs."
    parts = [
        f"# Exam of the skill {exam.skill}",
        f"{len(exam.tasks)} task{'s' if len(exam.tasks) != 1 else ''} on {exam.device}, each sat with the skill and "
        "without, with the same budget: "
        f"{_budget_words(exam.budget)}. {held} {times} {exam.created}, tilewright {exam.tilewright}.",
        f"A change is by task, with a {exam.confidence:.0%} interval by bootstrap over tasks. From {FEWEST_PAIRS} "
        "tasks on, one whose interval leaves out no change is marked `*`; of many figures some are marked by chance. "
        "A task without a right kernel counts one attempt more than were allowed. Speed is the geometric mean, over "
        "tasks solved both ways, of the time without the skill over the time with it.",
    ]
    for student in exam.students:
        parts += [f"## {student}", _figures(exam.figures[student])]
    head = "| student | task | skill | outcome | right after | attempts | tokens | cost | time | run |\n|" + "---|" * 10
    parts += ["## Sittings", "\n".join([head, *map(_row, exam.sittings)])]
    return "\n\n".join(parts) + "\n"


def _budget_words(budget: Budget) -> str:
    each = f"{budget.attempts} attempts, {budget.tokens:,} tokens, {dollars_words(budget.dollars)}"
    return f"{each} and {seconds_words(budget.seconds)} a task"


def _figures(figures: tuple[Figure, ...]) -> str:
    if not figures:
        return "No task was sat both ways, so there is nothing to compare."
    lines = ["| | tasks | without | with | change | interval |", "|---|---|---|---|---|---|"]
    for one in figures:
        mark = " *" if one.is_clear else ""
        cells = (one.name, str(one.pairs), value_words(one, one.without), value_words(one, one.with_skill))
        lines.append(f"| {' | '.join(cells)} | {change_words(one)}{mark} | {interval_words(one)} |")
    few = f"\n\nFewer than {FEWEST_PAIRS} tasks: the intervals say little." if figures[0].pairs < FEWEST_PAIRS else ""
    return "\n".join(lines) + few


def value_words(figure: Figure, value: float) -> str:
    if figure.name == PASS_RATE:
        return f"{value:.0%}"
    if figure.name == TOKENS:
        return f"{value:,.0f}"
    return f"{value:,.4g} us" if figure.name == SPEED else f"{value:.2f}"


def change_words(figure: Figure) -> str:
    return _change(figure, figure.change)


def interval_words(figure: Figure) -> str:
    if figure.interval is None:
        return "none: one task"
    return f"{_change(figure, figure.interval.low)} to {_change(figure, figure.interval.high)}"


def _change(figure: Figure, value: float) -> str:
    if figure.name == PASS_RATE:
        return f"{100 * value:+.0f} points"
    if figure.name == TOKENS:
        return f"{value:+,.0f}"
    return f"{value:.2f}x" if figure.name == SPEED else f"{value:+.2f}"


def _row(one: Sitting) -> str:
    said = f"not held: {' '.join(one.fault.split())[:160]}".replace("|", "/") if one.fault else one.verdict
    right, time = str(one.right_after or "never"), time_words(one.measurement) if one.measurement else ""
    cost = "" if one.dollars is None else dollars_words(one.dollars)
    cells = (
        one.student,
        one.task,
        one.arm.value,
        said,
        right,
        str(one.attempts),
        f"{one.tokens:,}",
        cost,
        time,
        one.run,
    )
    return f"| {' | '.join(cells)} |"


# -- an exam as a picture: --

WIDTH, LEFT, RIGHT, TOP = 900, 270, 290, 84
_ROW, _HEAD = 26, 30


def exam_picture(exam: Exam) -> str:
    """Every row has a scale of its own, from nothing to the larger of its two values; a pass rate's is the whole."""
    body = [pictures.dot(LEFT, 62, pictures.GREY), pictures.text(LEFT + 10, 66, "without the skill", anchor="start")]
    body += [pictures.dot(LEFT + 140, 62, pictures.GOOD), pictures.text(LEFT + 150, 66, "with it", anchor="start")]
    y: float = TOP
    for student in exam.students:
        body.append(pictures.text(24, y + 16, student[-100:], anchor="start", size=13))
        y += _HEAD
        for figure in exam.figures[student]:
            body += _exam_picture_row(figure, y + _ROW / 2)
            y += _ROW
    title = f"Exam of the skill {exam.skill}: {len(exam.tasks)} tasks on {exam.device}"
    under = f"change by task, with {exam.confidence:.0%} intervals; {'modelled' if exam.emulated else 'measured'} times"
    return pictures.page(WIDTH, y + 24, title, under, 24, body)


def _exam_picture_row(figure: Figure, y: float) -> list[str]:
    most = 1.0 if figure.name == PASS_RATE else max(figure.without, figure.with_skill) or 1.0

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * value / most

    before, after = x(figure.without), x(figure.with_skill)
    said = f"{value_words(figure, figure.without)} without, {value_words(figure, figure.with_skill)} with"
    marks = [
        pictures.line(before, y, after, y, pictures.INK),
        pictures.dot(before, y, pictures.GREY),
        pictures.dot(after, y, pictures.GOOD),
    ]
    change = f"{change_words(figure)} ({interval_words(figure)})"
    return [
        pictures.text(LEFT - 12, y + 4, figure.name, anchor="end"),
        pictures.line(LEFT, y, WIDTH - RIGHT, y, pictures.FAINT),
        pictures.titled(said, *marks),
        pictures.text(WIDTH - RIGHT + 14, y + 4, change, anchor="start", size=11),
    ]


@dataclass(frozen=True)
class Wanted:
    """What the command line says of an exam."""

    skill: Path
    models: tuple[str, ...]
    tasks: Path
    gpu: str | None
    workers: int | None
    output: Path | None
    as_json: bool


def exam_command(wanted: Wanted, settings: Settings) -> None:
    """Hold the exam, from wherever it stands, and write its report."""
    students = _students(wanted.models, settings)
    try:
        text, provenance = skill_text(wanted.skill), read_provenance(wanted.skill)
        tasks = folder_tasks(wanted.tasks)
    except (NoSkill, NoTasks) as error:
        raise BadArgument(str(error)) from None
    device = choose_device(wanted.gpu, settings.spool)
    _check_held_out(tasks, device, provenance)
    name = wanted.skill.resolve().name
    out = wanted.output or Path(f"exam-{name}")
    labels, sittings = _labels(students), list[Sitting]()
    for student, label in zip(students, labels, strict=True):
        place = re.sub(r"[^\w.-]+", "-", label)
        for arm in Arm:
            asked = replace(settings, author=_arm_author(student, arm), skill=text if arm is Arm.WITH else "")
            suite = _suite(f"exam {name}, {arm.value}", tasks, asked, device)
            sittings += _held(SuiteFolder(out / place / arm.value), suite, label, arm, wanted.workers)
    exam = Exam(
        skill=name,
        held_out=provenance is not None,
        students=tuple(labels),
        tasks=tuple(one.name for one in tasks),
        budget=settings.budget,
        device=cleaner()(device.label),
        emulated=device.is_emulated,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        tilewright=__version__,
        sittings=tuple(sittings),
        figures={label: figures_of(label, sittings, settings.budget) for label in labels},
    )
    _close(out, exam, wanted.as_json)


def _students(models: Sequence[str], settings: Settings) -> tuple[str, ...]:
    """Their names as a run has them, and keys that are there; nobody is asked anything."""
    if not models:
        raise BadArgument("name a student with --model PROVIDER:NAME; the playbook reads no skill")
    names = tuple(author_name(one, None, os.environ) for one in models)
    if len(set(names)) < len(names):
        raise BadArgument("a student is named twice with --model; name each once")
    for name in names:
        check_key(name, settings.base_url, os.environ)
    return names


def _labels(students: Sequence[str]) -> list[str]:
    """What the report calls them: of a path its last name alone, numbered where two are alike."""
    short = []
    for one in students:
        provider, _, name = one.partition(":")
        short.append(f"{provider}:{Path(name).name}" if providers()[provider].takes_path else one)
    return [one if short.count(one) == 1 else f"{one}-{number}" for number, one in enumerate(short, start=1)]


def _check_held_out(tasks: Sequence[SuiteTask], device: ChosenDevice, provenance: SkillProvenance | None) -> None:
    """Raises `BadArgument` for a task that the skill was made of, or whose reference nobody has seen yet."""
    if provenance is None:
        stderr_console().print(Text("note: this skill has no record of its runs, so nobody knows what is held out"))
    for one in tasks:
        task = task_of(resolved(replace(one.request, gpu=device.gpu)), resolve_precision=settling_on(device))
        if task is None:
            raise BadArgument(f"{one.name}: a task in words is read by each student in its own way; give its reference")
        run = taught_before(task, provenance) if provenance is not None else ""
        if run:
            raise BadArgument(
                f"{one.name}: the skill was made of this task (run {run}), so it is not held out; take it out of the "
                "exam's tasks"
            )


def _suite(title: str, tasks: tuple[SuiteTask, ...], settings: Settings, device: ChosenDevice) -> Suite:
    created = datetime.now(UTC).isoformat(timespec="seconds")
    return Suite(title, tasks, settings, device.gpu, device.label, device.is_emulated, created, __version__, fresh=True)


# -- sittings --


def _held(folder: SuiteFolder, suite: Suite, label: str, arm: Arm, workers: int | None) -> list[Sitting]:
    """A student's sittings one way, those on record and those that are held now."""
    try:
        suite = folder.begin(suite)
    except OtherSuite as error:
        raise BadArgument(f"{error}".replace("--out", "-o")) from None
    console, waiting = stderr_console(), folder.waiting()
    if waiting:
        console.print(Text(f"{label}, {arm.value} the skill: {len(waiting)} of {len(suite.tasks)} tasks"))
    display = SuiteDisplay(console, len(suite.tasks), len(suite.tasks) - len(waiting))
    with folder.lock(), contextlib.closing(local_pool(folder, workers, display)) as pool:
        try:
            with display.live():
                carry_out(folder, pool, display)
        except KeyboardInterrupt:
            raise NotDone("interrupted; the same command goes on where it stopped", INTERRUPTED) from None
    return [_sitting(one, label, arm) for one in folder.records()]


def _arm_author(student: str, arm: Arm) -> str:
    return f"{student}/{arm.value}" if providers()[student.partition(":")[0]].takes_path else student


def _sitting(record: TaskRecord, student: str, arm: Arm) -> Sitting:
    if record.status in (Status.MADE, Status.NONE_PASSED):
        run = Store().open_run(record.run).load()
        provisional = " provisionally" if record.provisional else ""
        return sitting_of(student, arm, record.name, run, f"{record.status.words}{provisional}")
    fault = record.reason or record.status.words
    return Sitting(student, arm, record.name, False, None, 0, 0, None, None, record.run, record.status.words, fault)


# -- the report --


def _close(out: Path, exam: Exam, as_json: bool) -> None:
    """Write the report; a fault that kept a sitting from being held ends the command with its code."""
    text = report_text(exam)
    write_text(out / "report.md", text)
    durable.write_record(out / "report.json", exam)
    write_text(out / "exam.svg", exam_picture(exam))
    if as_json:
        print_json(exam)
    else:
        console = stdout_console()
        console.print(Text(text.partition("## Sittings")[0].strip()))
        console.print(Text(f"wrote {out / 'report.md'}, report.json and exam.svg"))
    if any(one.fault for one in exam.sittings):
        raise typer.Exit(FAULT)
