"""Deeds that change no run: check a file in the emulator, time a kernel again, read a history, write a kernel out."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from tilewright.exports import export as exports
from tilewright.exports.export import Target
from tilewright.exports.source import from_run
from tilewright.frontends import choices, conduct, run_words, show_text
from tilewright.frontends.agents import answers, guard
from tilewright.frontends.agents.answers import Answer, printed
from tilewright.frontends.agents.desk import Desk
from tilewright.frontends.agents.guard import Refused
from tilewright.frontends.agents.talk import AgentTalk
from tilewright.frontends.check import CheckOptions, check_file
from tilewright.frontends.check_text import show_check
from tilewright.frontends.kernel_arguments import SMALL_SHAPES, choose_profiles, complete_arguments, parse_arguments
from tilewright.frontends.make import place_kernel
from tilewright.kernel_file import KernelFile, parse
from tilewright.records import Attempt, Emulation, Run, Task
from tilewright.verify import read_kernel

FILE_NAME = "submitted.cu"
_CHECK_SECONDS = 120.0
_LISTED_RUNS = 30


def check(
    desk: Desk,
    kernel: str,
    talk: AgentTalk,
    *,
    run: str = "",
    shapes: dict[str, str] | None = None,
    numbers: dict[str, str] | None = None,
) -> Answer:
    """Run a file in the emulator with every checker on; where a run is named, beside its reference."""
    task = None if not run else desk.opened(run)[1].task
    text = guard.checked_text("kernel", kernel, guard.MOST_KERNEL_CHARACTERS)
    file = parse(text, FILE_NAME, allow_library=task is not None and task.allow_library)
    (profile,) = choose_profiles([], [task.gpu] if task else [])
    given = parse_arguments(
        file.plan.op,
        [f"{name}={value}" for name, value in guard.checked_entries("shapes", shapes or {}).items()],
        [f"{name}={value}" for name, value in guard.checked_entries("numbers", numbers or {}).items()],
    )
    arguments, guessed = complete_arguments(file, given, profile, SMALL_SHAPES)
    with tempfile.TemporaryDirectory() as folder:
        options = CheckOptions(
            profile,
            Emulation(schedules=3),
            _reference_file(task, Path(folder)) if task else None,
            seconds=_CHECK_SECONDS,
        )
        report = check_file(file, arguments, guessed, options, talk.working)
    facts = {
        "outcome": report.outcome.value,
        "reason": report.reason,
        "findings": [f"{one.kind.value} in {one.kernel}, line {one.line}" for one in report.findings],
        "compared": report.compared,
        "arguments": report.arguments,
    }
    return Answer(printed(lambda console: show_check(console, file, report)), facts)


def _reference_file(task: Task, folder: Path) -> tuple[Path, str]:
    path = folder / "reference.py"
    path.write_text(task.reference, encoding="utf-8")
    return path, task.function


def bench(desk: Desk, name: str, talk: AgentTalk, *, attempt: int = 0) -> Answer:
    """Time a kernel that passed once more; on a GPU beside its baselines, without one by the performance model."""
    folder, run = desk.opened(name)
    chosen = _attempt(run, attempt) if attempt else _best(run)
    if not chosen.passed:
        raise Refused(f"attempt {chosen.number} of run {name} did not pass, and only what is right is timed")
    kernel = read_kernel(folder.attempt(chosen.number).text(answers.KERNEL), run.task)
    assert isinstance(kernel, KernelFile)  # it passed
    device = choices.same_device(run.environment, run.task.gpu, run.settings.spool)
    tune = chosen.tune
    with desk.judged(talk)(run.task, run.settings, device, talk.working) as (_, stopwatch):
        talk.working("timing")
        found = stopwatch.measure(kernel, dict(tune.choice) if tune else None, tune.answer if tune else None)
    if found is None:
        raise Refused(f"attempt {chosen.number} of run {name} cannot be timed here; history has why it was not")
    facts: dict[str, Any] = {"run": run.id, "attempt": chosen.number, "device": device.label}
    text = printed(lambda console: show_text.show_measurement(console, found))
    said = "" if not device.is_emulated else "\nModelled from emulated counts, not measured: no GPU is at hand."
    return Answer(text + said, facts | answers.measurement_facts(found))


def history(desk: Desk, *, run: str = "", attempt: int = 0) -> Answer:
    """All runs, one run, or one attempt in full."""
    if run:
        folder, found = desk.opened(run)
        if attempt:
            return answers.attempt_answer(folder, found, _attempt(found, attempt))
        return answers.history_answer(folder, found)
    if attempt:
        raise Refused("attempt goes with run; name the run")
    listing = desk.store.runs()
    shown = listing.runs[:_LISTED_RUNS]
    lines = [_line(one) for one in shown] or ["no runs yet; specify begins one"]
    if len(listing.runs) > len(shown):
        lines.append(f"and {len(listing.runs) - len(shown)} older runs")
    facts = [
        {"run": one.id, "op": one.task.name, "author": one.settings.author, "attempts": len(one.attempts)}
        | {"state": "ended" if one.ending else "open"}
        for one in shown
    ]
    return Answer("\n".join(lines), {"runs": facts, "older": len(listing.runs) - len(shown)})


def _line(run: Run) -> str:
    best = run_words.time_words(run.best.measurement) if run.best else "none passed"
    state = run.ending.words if run.ending else "may go on"
    return f"{run.id}  {run.task.name} on {run.environment.device}, {run_words.attempts_words(run)}, {best}; {state}"


FILE = "file"  # the kernel file itself; the other forms are those of `exports`
FORMS = (FILE, *(one.value for one in Target))


def export(desk: Desk, name: str, destination: str, talk: AgentTalk, *, to: str = FILE) -> Answer:
    """Write the best kernel of a run below the desk's root, in one of its forms."""
    if to not in FORMS:
        raise Refused(f"to {to[:40]!r} is no form of an export; write one of {', '.join(FORMS)}")
    folder, run = desk.opened(name)
    best = _best(run)
    if to != FILE:
        target = guard.inside(desk.root, destination)
        done = exports.export(from_run(folder), Target(to), target, say=talk.working)
        made = f"{done.name} as {to}, for {', '.join(done.archs)}, {done.standing}"
        text = f"Wrote {done.files} files to {destination}: {made}."
        facts = {"run": run.id, "to": to, "folder": destination, "name": done.name, "standing": done.standing}
        return Answer("\n".join([text, *done.notes]), facts | {"notes": list(done.notes)})
    target = guard.inside(desk.root, destination if destination.endswith(".cu") else f"{destination}.cu")
    kernel = conduct.kept_kernel(desk.store, folder, run)
    assert kernel is not None  # there is a best one
    target.parent.mkdir(parents=True, exist_ok=True)
    place_kernel(kernel, target, run.settings.licence)
    written = sorted(str(path.relative_to(desk.root)) for path in target.parent.glob(f"{target.name}*"))
    call = f'tilewright.load("{target.relative_to(desk.root)}")'
    text = f"Wrote {', '.join(written)}: attempt {best.number} of run {run.id}. Called from PyTorch: {call}(...)."
    return Answer(text, {"run": run.id, "to": FILE, "attempt": best.number, "files": written})


def _attempt(run: Run, number: int) -> Attempt:
    if not 1 <= number <= len(run.attempts):
        raise Refused(f"run {run.id} has no attempt {number}; it has {len(run.attempts)}")
    return run.attempts[number - 1]


def _best(run: Run) -> Attempt:
    if run.best is None:
        raise Refused(f"no attempt of run {run.id} has passed, so it has no kernel; submit_kernel sends one")
    return run.best
