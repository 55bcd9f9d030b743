"""What agents and models learn from: `tilewright teach`, `dataset`, `skill`, `mcp` and `exam`."""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from tilewright import __version__
from tilewright.frontends.api import choices
from tilewright.frontends.api.judges import precision_settler
from tilewright.frontends.api.kernel_arguments import parse_arguments, parse_contents
from tilewright.frontends.api.requests import resolved, task_of
from tilewright.frontends.cli import terminal
from tilewright.frontends.cli.check import CheckOptions, check_file
from tilewright.frontends.cli.suite import carry_out_shown, local_pool, new_suite
from tilewright.frontends.report.checks import CheckOutcome
from tilewright.frontends.report.document import Section, say, say_each
from tilewright.frontends.report.rendering import markdown
from tilewright.frontends.report.site import chosen
from tilewright.frontends.report.suite import SuiteDisplay, exam_report
from tilewright.kernel_file import parse
from tilewright.models import key_variables, providers
from tilewright.records import PROFILES, UNSTATED, Budget, Emulation, Question, Reply, Settings
from tilewright.store import AttemptFolder, NotAccepted, RunFolder, Store, StoreError, durable, write_text
from tilewright.store.run_folder import HEADER
from tilewright.suites import NoTasks, OtherSuite, Status, Suite, SuiteFolder, SuiteTask, TaskRecord, folder_tasks
from tilewright.tasks.errors import BadArgument
from tilewright.teaching import skill as skills
from tilewright.teaching.dataset import samples_of, write_jsonl
from tilewright.teaching.exam import Arm, Exam, Sitting, figures_of, sitting_of, skill_text, taught_before
from tilewright.teaching.lessons import Clean, Example, Lessons, check_options, cleaner, lessons_of

TaughtArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN|DIR...", help="Runs, a suite's folder, or a folder of runs; as many as wanted.", show_default=False
    ),
]


def mcp(
    root: Annotated[Path, typer.Option(help="The folder that exports may be written below.")] = Path(),
    gpu: terminal.GpuOption = None,
    spool: terminal.SpoolOption = None,
) -> None:
    """Serve a coding agent over the Model Context Protocol, on stdin and stdout: the agent is the author."""
    from tilewright.frontends.agents.tools import serve_mcp

    serve_mcp(root, gpu, spool)


def skill(
    folder: Annotated[Path, typer.Argument(help="The folder that holds an agent's skills.", show_default=False)],
) -> None:
    """Write the Agent Skill by which a coding agent learns to drive Tilewright, into DIR/tilewright."""
    from tilewright.frontends.agents.tools import write_skill

    print(f"wrote {write_skill(folder)}")


def chosen_runs(given: Sequence[str]) -> list[RunFolder]:
    """Runs by name, and all runs of a suite's folder or of a folder of runs; each once, those with an attempt."""
    store = Store()
    found: dict[str, RunFolder] = {}
    for what in given:
        choice = chosen(what, store)
        one = choice.find(choice.run) if choice.run else None
        listed = [one] if one is not None else [folder for folder in choice.folders().values() if _is_readable(folder)]
        found |= {str(folder.path.resolve()): folder for folder in listed}
    folders = [folder for folder in found.values() if folder.load().attempts]
    if not folders:
        raise BadArgument(f"{', '.join(given)}: no run here has an attempt to learn from; name others")
    return folders


def _is_readable(folder: RunFolder) -> bool:
    """Whether a folder among runs can be read: others are passed over, and a damaged one is named."""
    try:
        folder.load()
    except (NotAccepted, StoreError) as error:
        if not isinstance(error, NotAccepted) and (folder.path / HEADER).is_file():
            terminal.stderr_console().print(Text(f"passed over: {error}"), soft_wrap=True)
        return False
    return True


def run_cleaner(folders: Sequence[RunFolder]) -> Clean:
    secrets = [os.environ[name] for name in key_variables() if os.environ.get(name)]
    return cleaner(secrets, (Store().home, *(folder.path for folder in folders)))


RECORDS = "records"  # the author of guidance that no model wrote


@dataclass(frozen=True)
class Taught:
    folder: str
    runs: int
    examples: tuple[str, ...]
    left_out: tuple[str, ...]  # examples that did not pass when they were run again, and why
    pitfalls: int
    steps: int
    author: str
    tokens: int  # of the model, if one wrote the guidance


def teach(
    runs: TaughtArgument,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="The skill's folder.", show_default=False)
    ],
    model: Annotated[
        str | None,
        typer.Option(metavar="PROVIDER:NAME", help="Who writes the guidance; without one it is made of the records."),
    ] = None,
    base_url: terminal.BaseUrlOption = None,
    licence: terminal.LicenceOption = "",
    as_json: terminal.JsonOption = False,
) -> None:
    """Write an Agent Skill from what runs showed: what paid, what failed and what fixed it, tested examples."""
    author, url = choices.author_name(model, None, os.environ) if model else "", choices.checked_url(base_url)
    name = checked_output(output)
    licence = choices.checked_licence(licence)
    folders = chosen_runs(runs)
    clean = run_cleaner(folders)
    lessons = lessons_of(folders, clean)
    with terminal.progress() as say:
        worked, left_out = _tested(lessons, say)
        provenance = skills.SkillProvenance(
            name, datetime.now(UTC).isoformat(timespec="seconds"), __version__, clean(author) or RECORDS, lessons.runs
        )
        stated = {one.licence for one in lessons.runs}
        licence = licence or (stated.pop() if len(stated) == 1 else UNSTATED)
        files = skills.skill_files(provenance, lessons, worked, "", licence)
        tokens = 0
        if author:
            say(f"waiting for {author}")
            guidance, tokens = _guidance(name, author, url, skills.guidance_of(lessons), files, worked)
            files = skills.skill_files(provenance, lessons, worked, guidance, licence)
    _write(output, files)
    facts = len(lessons.runs), tuple(one.name for one in worked), left_out, len(lessons.pitfalls), len(lessons.steps)
    taught = Taught(str(output), *facts, provenance.author, tokens)
    counts = f"{len(worked)} worked examples, {taught.pitfalls} pitfalls, {taught.steps} steps"
    summary = f"wrote {output}: {counts} of {taught.runs} runs; guidance by {taught.author}"
    terminal.deliver(taught, as_json, say_each([summary, *(f"left out: {one}" for one in left_out)]))


def checked_output(output: Path) -> str:
    """The skill's name, which is its folder's; raises `BadArgument` where that cannot be, or is something else's."""
    name = output.resolve().name
    if not skills.NAME.fullmatch(name):
        raise BadArgument(
            f"-o {output}: a skill is called like its folder, in lower-case letters, digits and single hyphens; "
            "write such as skills/fast-norms"
        )
    if (
        output.exists()
        and not (output / skills.PROVENANCE).is_file()
        and (not output.is_dir() or any(output.iterdir()))
    ):
        raise BadArgument(f"-o {output}: something is there that `teach` did not write; name another folder")
    return name


def _tested(lessons: Lessons, say: Callable[[str], None]) -> tuple[tuple[skills.WorkedExample, ...], tuple[str, ...]]:
    """The examples that pass, and why others do not. One that cannot be emulated stands on its run's verdict."""
    worked, left_out = [], []
    for name, example in skills.named(lessons.examples):
        say(f"running {name} again")
        outcome, why = run_again(example)
        if outcome in (None, CheckOutcome.CLEAN, CheckOutcome.NOT_EMULABLE):
            worked.append(skills.WorkedExample(name, example, "clean" if outcome is CheckOutcome.CLEAN else ""))
        else:
            left_out.append(f"{name} of run {example.run}: {why}")
    return tuple(worked), tuple(left_out)


def run_again(example: Example) -> tuple[CheckOutcome | None, str]:
    """What `tilewright check` says of an example at its smallest case; None where it takes no such call."""
    options = check_options(example.task, example.sizes)
    if options is None:
        return None, ""
    task = example.task
    file = parse(example.kernel, f"{task.name}.cu", allow_library=task.allow_library)
    given = list(zip(options[::2], options[1::2], strict=True))
    shapes, numbers, fills = ([text for key, text in given if key == one] for one in ("--shape", "--set", "--fill"))
    how = CheckOptions(
        gpu=PROFILES[task.gpu],
        emulation=Emulation(schedules=2),
        reference=(task.reference, task.function, None),
        contents=parse_contents(file.plan.op, fills),
    )
    report = check_file(file, parse_arguments(file.plan.op, shapes, numbers), False, how, lambda text: None)
    return report.outcome, f"{report.outcome.value} {report.reason}".strip()


def _guidance(
    name: str, model: str, base_url: str, summary: str, files: dict[str, str], worked: tuple[skills.WorkedExample, ...]
) -> tuple[str, int]:
    """What the model writes, and its tokens. What was asked and answered is kept, and the same is not asked twice."""
    place = AttemptFolder(Store().home / "teaching" / name / "attempts" / "0001", 1)
    tokens = 0
    with choices.open_author(model, base_url, lambda text: terminal.stderr_console().print(Text(text))) as chosen:

        def ask(number: int, question: Question) -> Reply:
            nonlocal tokens
            reply = place.reply_to(
                number, question, lambda one: chosen.complete(one, lambda text: place.stream(number, text))
            )
            tokens += reply.usage.tokens
            return reply

        return skills.written_guidance(summary, files, worked, ask), tokens


def _write(output: Path, files: dict[str, str]) -> None:
    """The folder as a whole: what an earlier `teach` wrote there goes."""
    if output.exists():
        shutil.rmtree(output)
    with durable.new_folder(output.resolve()) as folder:
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            write_text(folder / path, text)


@dataclass(frozen=True)
class Written:
    file: str
    runs: int
    records: int
    passed: int
    licences: dict[str, int]


def dataset(
    runs: TaughtArgument,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="A .jsonl file.", show_default=False)],
    passed: Annotated[bool, typer.Option("--passed", help="Only replies whose kernel passed.")] = False,
    licence: terminal.LicenceOption = "",
    as_json: terminal.JsonOption = False,
) -> None:
    """Write the prompts and replies of runs, each with its verdict and speed, as records for fine-tuning."""
    terminal.check_writable("-o", output, ".jsonl")
    folders = chosen_runs(runs)
    samples = samples_of(folders, run_cleaner(folders), choices.checked_licence(licence), passed)
    if not samples:
        raise BadArgument(f"{', '.join(runs)}: nothing to write: no such run has a reply or a kernel that passed")
    write_jsonl(output, samples)
    licences = dict(Counter(one.licence for one in samples))
    written = Written(str(output), len(folders), len(samples), sum(one.passed for one in samples), licences)
    lines = [f"wrote {output}: {written.records} records of {written.runs} runs, {written.passed} of them right"]
    if unstated := licences.get(UNSTATED):
        lines.append(f"note: nobody has stated a licence for {unstated} of them; state one with --license SPDX")
    terminal.deliver(written, as_json, say_each(lines))


def exam(
    skill: Annotated[Path, typer.Argument(help="A skill's folder.", metavar="SKILL", show_default=False)],
    tasks: Annotated[
        Path, typer.Option(metavar="DIR", help="A folder of tasks, as `suite folder` takes it.", show_default=False)
    ],
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="PROVIDER:NAME", help="A model to examine; may be repeated.", show_default=False),
    ] = None,
    base_url: terminal.BaseUrlOption = None,
    gpu: terminal.GpuOption = None,
    attempts: terminal.AttemptsOption = terminal.SUITE_BUDGET.attempts,
    tokens: terminal.TokensOption = terminal.SUITE_BUDGET.tokens,
    dollars: terminal.DollarsOption = terminal.SUITE_BUDGET.dollars,
    seconds: terminal.SecondsOption = terminal.SUITE_BUDGET.seconds,
    workers: terminal.WorkersOption = None,
    spool: terminal.SpoolOption = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="Folder of the exam and its report.")
    ] = None,
    as_json: terminal.JsonOption = False,
) -> None:
    """Measure what a skill changes: students write kernels for held-out tasks, with it and without.

    Budgets are of each task, the same both ways. The same command goes on where it was stopped.
    """
    settings = choices.settings_of("", Budget(attempts, tokens, dollars, seconds), base_url, spool)
    students = _students(model or (), settings)
    try:
        text, provenance = skill_text(skill), skills.read_provenance(skill)
        listed = folder_tasks(tasks)
    except (skills.NoSkill, NoTasks) as error:
        raise BadArgument(str(error)) from None
    device = choices.choose_device(gpu, settings.spool)
    _check_held_out(listed, device, provenance)
    name = skill.resolve().name
    out = output or Path(f"exam-{name}")
    labels, sittings = _labels(students), list[Sitting]()
    for student, label in zip(students, labels, strict=True):
        place = re.sub(r"[^\w.-]+", "-", label)
        for arm in Arm:
            author = f"{student}/{arm.value}" if providers()[student.partition(":")[0]].takes_path else student
            asked = replace(settings, author=author, skill=text if arm is Arm.WITH else "")
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
    report = exam_report(held)
    write_text(out / "report.md", markdown(report, None))
    durable.write_record(out / "report.json", held)
    wrote = Section("", (say(f"wrote {out / 'report.md'}, report.json"),))
    terminal.deliver(held, as_json, replace(report, sections=(*report.sections[:-1], wrote)))
    terminal.exit_with(terminal.FAULT if any(one.fault for one in sittings) else 0)


def _students(models: Sequence[str], settings: Settings) -> tuple[str, ...]:
    """Their names as a run has them, and keys that are there; nobody is asked anything."""
    if not models:
        raise BadArgument("name a student with --model PROVIDER:NAME; the playbook reads no skill")
    names = tuple(choices.author_name(one, None, os.environ) for one in models)
    if len(set(names)) < len(names):
        raise BadArgument("a student is named twice with --model; name each once")
    for name in names:
        choices.check_key(name, settings.base_url, os.environ)
    return names


def _labels(students: Sequence[str]) -> list[str]:
    """What the report calls them: of a path its last name alone, numbered where two are alike."""
    short = []
    for one in students:
        provider, _, name = one.partition(":")
        short.append(f"{provider}:{Path(name).name}" if providers()[provider].takes_path else one)
    return [one if short.count(one) == 1 else f"{one}-{number}" for number, one in enumerate(short, start=1)]


def _check_held_out(
    tasks: Sequence[SuiteTask], device: choices.ChosenDevice, provenance: skills.SkillProvenance | None
) -> None:
    """Raises `BadArgument` for a task that the skill was made of, or whose reference nobody has seen yet."""
    if provenance is None:
        note = "note: this skill has no record of its runs, so nobody knows what is held out"
        terminal.stderr_console().print(Text(note))
    for one in tasks:
        task = task_of(resolved(replace(one.request, gpu=device.gpu)), resolve_precision=precision_settler(device))
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
    console, waiting = terminal.stderr_console(), folder.waiting()
    if waiting:
        console.print(Text(f"{label}, {arm.value} the skill: {len(waiting)} of {len(suite.tasks)} tasks"))
    display = SuiteDisplay(console, len(suite.tasks), len(suite.tasks) - len(waiting))
    with folder.lock():
        carry_out_shown(folder, local_pool(folder, workers, display), display)
    return [_sitting(one, label, arm) for one in folder.records()]


def _sitting(record: TaskRecord, student: str, arm: Arm) -> Sitting:
    if record.status in (Status.MADE, Status.NONE_PASSED):
        run = Store().open_run(record.run).load()
        provisional = " provisionally" if record.provisional else ""
        return sitting_of(student, arm, record.name, run, f"{record.status.words}{provisional}")
    fault = record.reason or record.status.words
    return Sitting(student, arm, record.name, False, None, 0, 0, None, None, record.run, record.status.words, fault)
