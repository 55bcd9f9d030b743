"""`tilewright exam`: students write kernels for held-out tasks, with a skill and without, and a report follows.

Each student has a suite's folder for either way, so that what is stopped goes on where it stopped.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from tilewright import __version__
from tilewright.frontends.api.choices import ChosenDevice, author_name, check_key, choose_device
from tilewright.frontends.api.judges import precision_settler
from tilewright.frontends.api.requests import resolved, task_of
from tilewright.frontends.cli import program
from tilewright.frontends.cli.program import settings_of
from tilewright.frontends.cli.suite import carry_out_shown, local_pool, new_suite
from tilewright.frontends.cli.terminal import FAULT, deliver, exit_with, stderr_console
from tilewright.frontends.report.rendering import markdown
from tilewright.frontends.report.suite import SuiteDisplay, exam_picture, exam_report
from tilewright.frontends.report.terminal import show as print_document
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
    folder_tasks,
)
from tilewright.tasks.errors import BadArgument
from tilewright.teaching.exam import (
    Arm,
    Exam,
    Sitting,
    figures_of,
    sitting_of,
    skill_text,
    taught_before,
)
from tilewright.teaching.lessons import cleaner
from tilewright.teaching.skill import NoSkill, SkillProvenance, read_provenance


def exam(
    skill: Annotated[Path, typer.Argument(help="A skill's folder.", metavar="SKILL", show_default=False)],
    tasks: Annotated[
        Path,
        typer.Option(metavar="DIR", help="A folder of tasks, as `suite folder` takes it.", show_default=False),
    ],
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="PROVIDER:NAME", help="A model to examine; may be repeated.", show_default=False),
    ] = None,
    base_url: program.BaseUrlOption = None,
    gpu: program.GpuOption = None,
    attempts: program.AttemptsOption = program.SUITE_BUDGET.attempts,
    tokens: program.TokensOption = program.SUITE_BUDGET.tokens,
    dollars: program.DollarsOption = program.SUITE_BUDGET.dollars,
    seconds: program.SecondsOption = program.SUITE_BUDGET.seconds,
    workers: program.WorkersOption = None,
    spool: program.SpoolOption = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="Folder of the exam and its report.")
    ] = None,
    as_json: program.JsonOption = False,
) -> None:
    """Measure what a skill changes: students write kernels for held-out tasks, with it and without.

    Budgets are of each task, the same both ways. The same command goes on where it was stopped.
    """
    settings = settings_of("", Budget(attempts, tokens, dollars, seconds), base_url, spool)
    students = _students(model or (), settings)
    try:
        text, provenance = skill_text(skill), read_provenance(skill)
        listed = folder_tasks(tasks)
    except (NoSkill, NoTasks) as error:
        raise BadArgument(str(error)) from None
    device = choose_device(gpu, settings.spool)
    _check_held_out(listed, device, provenance)
    name = skill.resolve().name
    out = output or Path(f"exam-{name}")
    labels, sittings = _labels(students), list[Sitting]()
    for student, label in zip(students, labels, strict=True):
        place = re.sub(r"[^\w.-]+", "-", label)
        for arm in Arm:
            asked = replace(settings, author=_arm_author(student, arm), skill=text if arm is Arm.WITH else "")
            suite = replace(new_suite(f"exam {name}, {arm.value}", listed, asked, device), fresh=True)
            sittings += _held(SuiteFolder(out / place / arm.value), suite, label, arm, workers)
    held = Exam(
        skill=name,
        held_out=provenance is not None,
        students=tuple(labels),
        tasks=tuple(one.name for one in listed),
        budget=settings.budget,
        device=cleaner()(device.label),
        emulated=device.is_emulated,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        tilewright=__version__,
        sittings=tuple(sittings),
        figures={label: figures_of(label, sittings, settings.budget) for label in labels},
    )
    _close(out, held, as_json)


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
        task = task_of(resolved(replace(one.request, gpu=device.gpu)), settle=precision_settler(device))
        if task is None:
            raise BadArgument(f"{one.name}: a task in words is read by each student in its own way; give its reference")
        run = taught_before(task, provenance) if provenance is not None else ""
        if run:
            raise BadArgument(
                f"{one.name}: the skill was made of this task (run {run}), so it is not held out; take it out of the "
                "exam's tasks"
            )


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
    with folder.lock():
        carry_out_shown(folder, local_pool(folder, workers, display), display)
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


def _close(out: Path, exam: Exam, as_json: bool) -> None:
    """Write the report; a fault that kept a sitting from being held ends the command with its code."""
    report = exam_report(exam)
    write_text(out / "report.md", markdown(report, None))
    durable.write_record(out / "report.json", exam)
    write_text(out / "exam.svg", exam_picture(exam))

    def show(console: Console) -> None:
        print_document(console, replace(report, sections=report.sections[:-1]))
        console.print(Text(f"wrote {out / 'report.md'}, report.json and exam.svg"))

    deliver(exam, as_json, show)
    exit_with(FAULT if any(one.fault for one in exam.sittings) else 0)
