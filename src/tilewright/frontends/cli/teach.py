"""What agents and models learn from: `tilewright teach`, `dataset`, `skill`, and `mcp`, which serves agents.

The examples of a skill are run again before it is written.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from tilewright import __version__
from tilewright.frontends.api.choices import author_name, checked_licence, checked_url, open_author
from tilewright.frontends.api.kernel_arguments import parse_arguments, parse_contents
from tilewright.frontends.cli import program
from tilewright.frontends.cli.check import CheckOptions, check_file
from tilewright.frontends.cli.program import check_writable
from tilewright.frontends.cli.terminal import deliver, progress, stderr_console
from tilewright.frontends.report.checks import CheckOutcome
from tilewright.frontends.report.site import chosen
from tilewright.kernel_file import parse
from tilewright.models import key_variables
from tilewright.records import PROFILES, UNSTATED, Emulation, Question, Reply
from tilewright.store import AttemptFolder, NotAccepted, RunFolder, Store, StoreError, durable, write_text
from tilewright.store.run_folder import HEADER
from tilewright.tasks.errors import BadArgument
from tilewright.teaching.dataset import NoParquet, samples_of, write_jsonl, write_parquet
from tilewright.teaching.lessons import Clean, Example, Lessons, check_options, cleaner, lessons_of
from tilewright.teaching.skill import (
    NAME,
    PROVENANCE,
    SkillProvenance,
    WorkedExample,
    guidance_of,
    named,
    skill_files,
    written_guidance,
)

TaughtArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN|DIR...", help="Runs, a suite's folder, or a folder of runs; as many as wanted.", show_default=False
    ),
]


def mcp(
    root: Annotated[Path, typer.Option(help="The folder that exports may be written below.")] = Path(),
    gpu: program.GpuOption = None,
    spool: program.SpoolOption = None,
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


def chosen_runs(named: Sequence[str]) -> list[RunFolder]:
    """Runs by name, and all runs of a suite's folder or of a folder of runs; each once, those with an attempt."""
    store = Store()
    found: dict[str, RunFolder] = {}
    for what in named:
        choice = chosen(what, store)
        one = choice.find(choice.run) if choice.run else None
        listed = [one] if one is not None else [folder for folder in choice.folders().values() if _is_readable(folder)]
        found |= {str(folder.path.resolve()): folder for folder in listed}
    folders = [folder for folder in found.values() if folder.load().attempts]
    if not folders:
        raise BadArgument(f"{', '.join(named)}: no run here has an attempt to learn from; name others")
    return folders


def _is_readable(folder: RunFolder) -> bool:
    """Whether a folder among runs is one that can be read: others are passed over, and a damaged one is named."""
    try:
        folder.load()
    except NotAccepted:
        return False
    except StoreError as error:
        if (folder.path / HEADER).is_file():
            stderr_console().print(Text(f"passed over: {error}"), soft_wrap=True)
        return False
    return True


def run_cleaner(folders: Sequence[RunFolder]) -> Clean:
    secrets = [os.environ[name] for name in key_variables() if os.environ.get(name)]
    return cleaner(secrets, (Store().home, *(folder.path for folder in folders)))


RECORDS = "records"  # the author of guidance that no model wrote


@dataclass(frozen=True)
class Taught:
    """What was written."""

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
    base_url: program.BaseUrlOption = None,
    licence: program.LicenceOption = "",
    as_json: program.JsonOption = False,
) -> None:
    """Write an Agent Skill from what runs showed: what paid, what failed and what fixed it, tested examples."""
    author, url = author_name(model, None, os.environ) if model else "", checked_url(base_url)
    name = checked_output(output)
    licence = checked_licence(licence)
    folders = chosen_runs(runs)
    clean = run_cleaner(folders)
    lessons = lessons_of(folders, clean)
    with progress() as say:
        worked, left_out = _tested(lessons, say)
        provenance = SkillProvenance(
            name, datetime.now(UTC).isoformat(timespec="seconds"), __version__, clean(author) or RECORDS, lessons.runs
        )
        licence = licence or _common_licence(lessons)
        files = skill_files(provenance, lessons, worked, "", licence)
        tokens = 0
        if author:
            say(f"waiting for {author}")
            guidance, tokens = _guidance(name, author, url, guidance_of(lessons), files, worked)
            files = skill_files(provenance, lessons, worked, guidance, licence)
    _write(output, files)
    taught = Taught(
        str(output),
        len(lessons.runs),
        tuple(one.name for one in worked),
        left_out,
        len(lessons.pitfalls),
        len(lessons.steps),
        provenance.author,
        tokens,
    )
    deliver(taught, as_json, lambda console: _show(console, taught))


def checked_output(output: Path) -> str:
    """The skill's name, which is its folder's; raises `BadArgument` where that cannot be, or is something else's."""
    name = output.resolve().name
    if not NAME.fullmatch(name):
        raise BadArgument(
            f"-o {output}: a skill is called like its folder, in lower-case letters, digits and single hyphens; "
            "write such as skills/fast-norms"
        )
    if output.exists() and not (output / PROVENANCE).is_file() and (not output.is_dir() or any(output.iterdir())):
        raise BadArgument(f"-o {output}: something is there that `teach` did not write; name another folder")
    return name


def _common_licence(lessons: Lessons) -> str:
    found = {one.licence for one in lessons.runs}
    return found.pop() if len(found) == 1 else UNSTATED


def _tested(lessons: Lessons, say: Callable[[str], None]) -> tuple[tuple[WorkedExample, ...], tuple[str, ...]]:
    """The examples that pass, and why others do not. One that cannot be emulated stands on its run's verdict."""
    worked, left_out = [], []
    for name, example in named(lessons.examples):
        say(f"running {name} again")
        outcome, why = run_again(example)
        if outcome in (None, CheckOutcome.CLEAN, CheckOutcome.NOT_EMULABLE):
            worked.append(WorkedExample(name, example, "clean" if outcome is CheckOutcome.CLEAN else ""))
        else:
            left_out.append(f"{name} of run {example.run}: {why}")
    return tuple(worked), tuple(left_out)


def run_again(example: Example) -> tuple[CheckOutcome | None, str]:
    """What `tilewright check` says of an example at its smallest case; None where it takes no such call."""
    options = check_options(example.task, example.sizes)
    if options is None:
        return None, ""
    file = parse(example.kernel, f"{example.task.name}.cu", allow_library=example.task.allow_library)
    given = {kind: [value for key, value in zip(options[::2], options[1::2], strict=True) if key == kind] for kind in
             ("--shape", "--set", "--fill")}  # fmt: skip
    arguments = parse_arguments(file.plan.op, given["--shape"], given["--set"])
    with tempfile.TemporaryDirectory() as folder:
        reference = Path(folder) / "reference.py"
        write_text(reference, example.task.reference)
        report = check_file(
            file,
            arguments,
            False,
            CheckOptions(
                gpu=PROFILES[example.task.gpu],
                emulation=Emulation(schedules=2),
                reference=(reference, example.task.function),
                contents=parse_contents(file.plan.op, given["--fill"]),
            ),
            lambda text: None,
        )
    return report.outcome, f"{report.outcome.value} {report.reason}".strip()


def _guidance(
    name: str, model: str, base_url: str, summary: str, files: dict[str, str], worked: tuple[WorkedExample, ...]
) -> tuple[str, int]:
    """What the model writes, and its tokens. What was asked and answered is kept, and the same is not asked twice."""
    place = AttemptFolder(Store().home / "teaching" / name / "attempts" / "0001", 1)
    tokens = 0
    with open_author(model, base_url, lambda text: stderr_console().print(Text(text))) as chosen:

        def ask(number: int, question: Question) -> Reply:
            nonlocal tokens
            reply = place.reply_to(
                number, question, lambda one: chosen.complete(one, lambda text: place.stream(number, text))
            )
            tokens += reply.usage.all_input_tokens + reply.usage.output_tokens
            return reply

        return written_guidance(summary, files, worked, ask), tokens


def _write(output: Path, files: dict[str, str]) -> None:
    """The folder as a whole: what an earlier `teach` wrote there goes."""
    if output.exists():
        shutil.rmtree(output)
    with durable.new_folder(output.resolve()) as folder:
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            write_text(folder / path, text)


def _show(console: Console, taught: Taught) -> None:
    counts = f"{len(taught.examples)} worked examples, {taught.pitfalls} pitfalls, {taught.steps} steps"
    console.print(Text(f"wrote {taught.folder}: {counts} of {taught.runs} runs; guidance by {taught.author}"))
    for one in taught.left_out:
        console.print(Text(f"left out: {one}"))


_WRITERS = {".jsonl": write_jsonl, ".parquet": write_parquet}


@dataclass(frozen=True)
class Written:
    """What was written."""

    file: str
    runs: int
    records: int
    passed: int
    licences: dict[str, int]


def dataset(
    runs: TaughtArgument,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="A .jsonl or .parquet file.", show_default=False)
    ],
    passed: Annotated[bool, typer.Option("--passed", help="Only replies whose kernel passed.")] = False,
    licence: program.LicenceOption = "",
    as_json: program.JsonOption = False,
) -> None:
    """Write the prompts and replies of runs, each with its verdict and speed, as records for fine-tuning."""
    check_writable("-o", output, *_WRITERS)
    folders = chosen_runs(runs)
    samples = samples_of(folders, run_cleaner(folders), checked_licence(licence), passed)
    if not samples:
        raise BadArgument(
            f"{', '.join(runs)}: there is nothing to write: no such run has a reply or a kernel that passed"
        )
    try:
        _WRITERS[output.suffix.lower()](output, samples)
    except NoParquet as error:
        raise BadArgument(str(error)) from None
    licences = dict(Counter(one.licence for one in samples))
    written = Written(str(output), len(folders), len(samples), sum(one.passed for one in samples), licences)
    deliver(written, as_json, lambda console: _show_dataset(console, written))


def _show_dataset(console: Console, written: Written) -> None:
    counts = f"{written.records} records of {written.runs} runs, {written.passed} of them right"
    console.print(Text(f"wrote {written.file}: {counts}"))
    if unstated := written.licences.get(UNSTATED):
        console.print(Text(f"note: nobody has stated a licence for {unstated} of them; state one with --license SPDX"))
