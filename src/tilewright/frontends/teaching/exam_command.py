"""`tilewright exam`: students write kernels for held-out tasks, with a skill and without, and a report follows.

Each student has a suite's folder for either way, so that what is stopped goes on where it stopped. A relay and a replay
have a folder of their own for every sitting, below the one that is named: their files are called alike in every run.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import typer
from rich.text import Text

from tilewright import __version__
from tilewright.frontends.choices import ChosenDevice, author_name, check_key, choose_device
from tilewright.frontends.conduct import task_of
from tilewright.frontends.kernel_arguments import BadArgument
from tilewright.frontends.named_objects import resolved
from tilewright.frontends.suite.task_program import outcome
from tilewright.frontends.teaching.exam_picture import exam_picture
from tilewright.frontends.teaching.exam_report import report_text
from tilewright.frontends.terminal import (
    FAULT,
    INTERRUPTED,
    NotDone,
    print_json,
    progress,
    stderr_console,
    stdout_console,
)
from tilewright.models import providers
from tilewright.records import Settings
from tilewright.store import Store, durable, write_text
from tilewright.suites import NoTasks, OtherSuite, Status, Suite, SuiteFolder, SuiteTask, TaskRecord, folder_tasks
from tilewright.teaching.cleaning import cleaner
from tilewright.teaching.exam import Arm, Exam, Sitting, figures_of, sitting_of, skill_text, taught_before
from tilewright.teaching.skill import NoSkill, SkillProvenance, read_provenance


@dataclass(frozen=True)
class Wanted:
    """What the command line says of an exam."""

    skill: Path
    models: tuple[str, ...]
    tasks: Path
    gpu: str | None
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
            asked = replace(settings, author=student, skill=text if arm is Arm.WITH else "")
            suite = _suite(f"exam {name}, {arm.value}", tasks, asked, device)
            sittings += _held(SuiteFolder(out / place / arm.value), suite, label, arm)
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
        task = task_of(resolved(replace(one.request, gpu=device.gpu)))
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


def _held(folder: SuiteFolder, suite: Suite, label: str, arm: Arm) -> list[Sitting]:
    """A student's sittings one way, those on record and those that are held now."""
    try:
        suite = folder.begin(suite)
    except OtherSuite as error:
        raise BadArgument(f"{error}".replace("--out", "-o")) from None
    console = stderr_console()
    with folder.lock():
        for task in folder.waiting():
            author = _sitting_author(suite.settings.author, task, arm)
            console.print(Text(f"{author}: {task.name}, {arm.value} the skill"), soft_wrap=True)
            asked = replace(suite, settings=replace(suite.settings, author=author))
            try:
                with progress() as say, contextlib.redirect_stdout(_Told(say)):
                    folder.record(outcome(folder, asked, task))
            except KeyboardInterrupt:
                raise NotDone("interrupted; the same command goes on where it stopped", INTERRUPTED) from None
        return [_sitting(one, label, arm) for one in folder.records()]


class _Told(io.TextIOBase):
    """What a task of a suite prints about itself, as a line that goes away."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def write(self, text: str) -> int:
        if text.strip():
            self._say(text.strip())
        return len(text)


def _sitting_author(student: str, task: SuiteTask, arm: Arm) -> str:
    own = re.sub(r"[^\w.-]", "_", f"{task.id}-{arm.value}")
    return f"{student}/{own}" if providers()[student.partition(":")[0]].takes_path else student


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
