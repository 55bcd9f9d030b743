"""`tilewright teach`: runs into an Agent Skill, whose examples are run again before it is written."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.text import Text

from tilewright import __version__
from tilewright.frontends.check import CheckOptions, CheckOutcome, check_file
from tilewright.frontends.choices import checked_licence, open_author
from tilewright.frontends.kernel_arguments import BadArgument, parse_arguments, parse_contents
from tilewright.frontends.teaching.chosen_runs import chosen_runs, run_cleaner
from tilewright.frontends.terminal import print_json, progress, stderr_console, stdout_console
from tilewright.kernel_file import parse
from tilewright.records import PROFILES, UNSTATED, Emulation, Question, Reply
from tilewright.store import AttemptFolder, Store, durable, write_text
from tilewright.teaching.guidance import written_guidance
from tilewright.teaching.lessons import Example, Lessons, check_options, lessons_of
from tilewright.teaching.skill import (
    NAME,
    PROVENANCE,
    SkillProvenance,
    WorkedExample,
    guidance_of,
    named,
    skill_files,
)

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


def teach_command(runs: Sequence[str], output: Path, model: str, base_url: str, licence: str, as_json: bool) -> None:
    """Write the skill. `model` is the name of an author as `choices` has it; "" where nobody is to be asked."""
    name = checked_output(output)
    licence = checked_licence(licence)
    folders = chosen_runs(runs)
    clean = run_cleaner(folders)
    lessons = lessons_of(folders, clean)
    with progress() as say:
        worked, left_out = _tested(lessons, say)
        provenance = SkillProvenance(
            name, datetime.now(UTC).isoformat(timespec="seconds"), __version__, clean(model) or RECORDS, lessons.runs
        )
        licence = licence or _common_licence(lessons)
        files = skill_files(provenance, lessons, worked, "", licence)
        tokens = 0
        if model:
            say(f"waiting for {model}")
            guidance, tokens = _guidance(name, model, base_url, guidance_of(lessons), files, worked)
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
    print_json(taught) if as_json else _show(taught)


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


# -- examples are run again --


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


# -- a model's guidance --


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


def _show(taught: Taught) -> None:
    console = stdout_console()
    counts = f"{len(taught.examples)} worked examples, {taught.pitfalls} pitfalls, {taught.steps} steps"
    console.print(Text(f"wrote {taught.folder}: {counts} of {taught.runs} runs; guidance by {taught.author}"))
    for one in taught.left_out:
        console.print(Text(f"left out: {one}"))
