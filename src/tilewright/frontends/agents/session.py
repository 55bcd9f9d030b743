"""The actions behind an agent's tools: one method of `Session` for each tool, by the tool's name and parameters.

Each does its work with the same code as the command line, and answers with text and facts. Between two calls nothing
is kept: runs lie in the store, and the lock of a run keeps two callers apart.
An answer is a text for the agent to read, and the same facts as JSON values.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tilewright import records
from tilewright.authors.playbook_author import PlaybookAuthor
from tilewright.exports import cuda_project as exports
from tilewright.exports.cuda_project import Target
from tilewright.exports.source import from_run
from tilewright.frontends.agents import guard
from tilewright.frontends.agents.author import AgentAuthor, AgentReporter, Pending
from tilewright.frontends.agents.guard import Refused
from tilewright.frontends.api import choices, running
from tilewright.frontends.api.judges import OpenJudges, judges
from tilewright.frontends.api.kernel_arguments import SMALL_SHAPES, choose_profiles, complete_arguments, parse_arguments
from tilewright.frontends.api.reporter import in_arguments, specification_blocks
from tilewright.frontends.api.running import Addition, EndsAtOnce, KernelFound
from tilewright.frontends.cli.check import CheckOptions, check_file
from tilewright.frontends.cli.make import place_kernel
from tilewright.frontends.report import run_report, runs
from tilewright.frontends.report.checks import check_report
from tilewright.frontends.report.rendering import plain_text
from tilewright.kernel_file import KernelFile, parse
from tilewright.playbook.errors import PlaybookProblem
from tilewright.prompts.verdict_text import verdict_text
from tilewright.store import Request, RunBusy, RunFolder, Store
from tilewright.store.attempt_folder import KERNEL
from tilewright.tasks import TaskError, fit_specification
from tilewright.verify import read_kernel

# -- answers --

ACCEPT = (
    "Nothing has been run. This reference decides what is right: show it to the person who asked, and if it is what is "
    "meant, call specify again with the same arguments and accept=true."
)


@dataclass(frozen=True)
class Answer:
    text: str
    facts: dict[str, Any] = field(default_factory=dict)


def measurement_facts(measurement: records.Measurement | None) -> dict[str, Any]:
    """`kind` keeps a modelled time apart from a measured one."""
    if measurement is None:
        return {"kind": "none"}
    facts: dict[str, Any] = {
        "kind": runs.kind_words(isinstance(measurement, records.Measured)),
        "time_us": measurement.time_us,
        "roofline_us": measurement.floor_us,
        "fraction_of_roofline": measurement.fraction,
        "gpu": measurement.gpu,
    }
    if isinstance(measurement, records.Measured):
        facts["baselines_us"] = {one.name: one.median_us for one in measurement.baselines}
    return facts


def _attempt_facts(row: runs.Row) -> dict[str, Any]:
    attempt = row.attempt
    return {
        "attempt": attempt.number,
        "stage": attempt.stage.value,
        "verdict": row.verdict,
        "passed": attempt.passed,
        "kept": row.kept,
        "summary": row.summary,
        **({"notes": list(attempt.notes)} if attempt.notes else {}),
        "measurement": measurement_facts(attempt.measurement if attempt.passed else None),
    }


def _run_facts(run: records.Run) -> dict[str, Any]:
    state = "ended" if run.ending else "open"
    return {"run": run.id, "op": run.task.name, "author": run.settings.author, "state": state}


def _diagnosis(folder: RunFolder, attempt: records.Attempt) -> str:
    """The whole verdict, as an author reads it."""
    return verdict_text(attempt.verdict, folder.attempt(attempt.number).find_text(KERNEL) or "")


def run_answer(
    folder: RunFolder, run: records.Run, question: records.Question | None, *, since: int = 0, brief: bool = False
) -> Answer:
    """The attempts of a run after number `since`, and the next question or why there is none.

    `brief` leaves out what is the same in every question of the run.
    """
    rows = runs.rows(run)
    fresh = [row for row in rows if row.attempt.number > since]
    parts = [f"Attempt {row.attempt.number}, {row.attempt.stage.value}: {runs.attempt_words(row)}." for row in fresh]
    stage = None if question is None else _stage(question)
    for row in fresh:
        if not row.attempt.passed and (stage is None or not stage.is_repair):  # the question of a repair has it
            parts.append(_diagnosis(folder, row.attempt))
    facts: dict[str, Any] = {
        "run": run.id,
        "op": run.task.name,
        "device": run.environment.device,
        "attempts": [_attempt_facts(row) | {"diagnosis": _diagnosis(folder, row.attempt)} for row in fresh],
        "best": next((_attempt_facts(row) for row in rows if row.best), None),
    }
    if question is None:
        facts |= {"state": "ended", "ending": run.ending.value if run.ending else ""}
        parts.append(_ended_text(run))
    else:
        number = int(question.id.partition("-")[0])
        facts |= {"state": "asks", "attempt": number, "stage": stage.value if stage else ""}
        facts["attempts_left"] = run.settings.budget.attempts - len(run.attempts)
        parts += [] if brief else [question.system]
        parts.append(question.messages[-1].text)
        parts.append(
            f'Reply with a call: submit_kernel(run="{run.id}", attempt={number}, summary=..., and kernel=... (the '
            "whole file) or edits=... (SEARCH/REPLACE edits of that file)). finish ends the run with its best file."
        )
    return Answer("\n\n".join(parts), facts)


def _stage(question: records.Question) -> records.Stage | None:
    """The stage of a question, which its first message names."""
    first = question.messages[0].text.partition("\n")[0]
    return next((one for one in records.Stage if first.endswith(f"stage: {one.value}.")), None)


def _ended_text(run: records.Run) -> str:
    ending = run.ending.words if run.ending else "it may go on"
    if run.best is None:
        return (
            f"The run has ended ({ending}), and no attempt passed. advise with more_attempts or a hint opens it again."
        )
    time = runs.time_words(run.best.measurement)
    note = "; it is provisional: bench or verify it on a GPU before it is relied on" if run.best.is_provisional else ""
    return (
        f"The run has ended ({ending}). Its best file is that of attempt {run.best.number}, {time}{note}. export "
        "writes it; advise with more_attempts or a hint opens the run again."
    )


def specification_answer(specification: records.Specification, text: str) -> Answer:
    """What words are taken to mean, before anything runs."""
    facts = {
        "state": "to be accepted",
        "reference": specification.reference,
        "inputs": specification.description,
        "assumptions": list(specification.assumptions),
    }
    return Answer(f"{text}\n\n{ACCEPT}", facts)


def runs_answer(shown: Sequence[records.Run], most: int) -> Answer:
    lines = [_run_line(one) for one in shown[:most]] or ["no runs yet; specify begins one"]
    older = max(0, len(shown) - most)
    lines += [f"and {older} older runs"] if older else []
    facts = [_run_facts(one) | {"attempts": len(one.attempts)} for one in shown[:most]]
    return Answer("\n".join(lines), {"runs": facts, "older": older})


def _run_line(run: records.Run) -> str:
    line = run_report.run_line(run.id, run, None)
    best = line.best or "none passed"
    return f"{run.id}  {line.op} on {run.environment.device}, {runs.attempts_words(run)}, {best}; {line.state}"


def history_answer(folder: RunFolder, run: records.Run) -> Answer:
    text = plain_text(run_report.run_report(run, folder.worker))
    attempts = [_attempt_facts(row) for row in runs.rows(run)]
    return Answer(text, _run_facts(run) | {"ending": run.ending.value if run.ending else "", "attempts": attempts})


def attempt_answer(folder: RunFolder, run: records.Run, attempt: records.Attempt) -> Answer:
    source = folder.attempt(attempt.number).find_text(KERNEL) or ""
    text = plain_text(run_report.attempt_report(run, attempt, source))
    row = runs.rows(run)[attempt.number - 1]
    facts = _attempt_facts(row) | {"run": run.id, "kernel": source, "diagnosis": _diagnosis(folder, attempt)}
    return Answer(f"{text}\n\nIts file:\n\n```cuda\n{source.rstrip()}\n```", facts)


# -- the actions --

BUDGET_SECONDS = 4 * 3600.0  # of work on kernels; the agent's own time does not count
FILE = "file"  # an export of the kernel file itself; the other forms are those of `exports`
FORMS = (FILE, *(one.value for one in Target))
_SUBMIT = "submit_kernel sends one"
_BUSY_SECONDS = 30.0  # to wait for a call that was cancelled and is about to stop
_CHECK_SECONDS = 120.0
_LISTED_RUNS = 30
_CLIENT = re.compile(r"[^A-Za-z0-9._-]+")

Texts = dict[str, str]


class Session:
    """The actions for one agent. Exports go below the folder `root`; `agent` is the author's name on record."""

    def __init__(self, root: Path, *, agent: str = "unnamed", gpu: str = "", spool: str = "") -> None:
        self.root = root.resolve()
        self.store = Store()
        self.agent = agent
        self._gpu, self._spool = gpu, spool

    @property
    def author(self) -> str:
        return f"{choices.AGENT}:{_CLIENT.sub('-', self.agent).strip('-')[:40] or 'unnamed'}"

    def opened(self, name: str) -> tuple[RunFolder, records.Run]:
        folder = guard.open_run(self.store, name)
        run = folder.find_run()
        if run is None:
            raise Refused(f"run {name} has no accepted task; specify one")
        return folder, run

    def _judged(self, reporter: AgentReporter) -> OpenJudges:
        return lambda task, settings, device, say: judges(task, settings, device, say, reporter.is_cancelled)

    # -- actions that change a run --

    def specify(
        self,
        reporter: AgentReporter,
        *,
        words: str = "",
        source: str = "",
        function: str = "",
        shapes: Texts | None = None,
        numbers: Texts | None = None,
        values: Texts | None = None,
        gpu: str = "",
        precision: str = "",
        start_kernel: str = "",
        attempts: int = records.Budget.attempts,
        fresh: bool = False,
        accept: bool = False,
    ) -> Answer:
        """The reference of a request or, once that is accepted, a run and its first question."""
        device = choices.choose_device(gpu or self._gpu or None, self._spool)
        request = replace(
            guard.checked_request(words, source, function, precision),
            shapes=guard.checked_entries("shapes", shapes or {}),
            numbers=guard.checked_entries("numbers", numbers or {}),
            values=guard.checked_entries("values", values or {}),
            gpu=device.gpu,
        )
        if not accept:
            return _preview(request)
        settings = records.Settings(
            author=self.author,
            budget=records.Budget(attempts=guard.checked_count("attempts", attempts), seconds=BUDGET_SECONDS),
            start=guard.checked_text("start_kernel", start_kernel, guard.MOST_KERNEL_CHARACTERS),
            spool=choices.spool_path(self._spool),
        )
        try:
            result = running.run_request(
                request,
                settings,
                device,
                reporter,
                fresh=fresh,
                opened=AgentAuthor(self.author).opened,
                judged=self._judged(reporter),
            )
        except Pending as pending:
            assert reporter.run is not None  # or there would be no question
            folder = self.store.open_run(reporter.run.id)
            return run_answer(folder, folder.load(), pending.question)
        except (TaskError, PlaybookProblem) as problem:
            raise Refused(in_arguments(problem)) from None
        if isinstance(result, KernelFound):
            entry = result.kernel.entry
            text = runs.found_words(entry, "", "fresh=true")
            text = f"{text}. Its file is attempt {entry.attempt} of run {entry.run}."
            return Answer(text, {"state": "found", "run": entry.run, "attempt": entry.attempt, "op": entry.op})
        return run_answer(result.folder, result.run, None)  # the file to start from was good enough

    def submit_kernel(
        self, reporter: AgentReporter, *, run: str, attempt: int, kernel: str = "", edits: str = "", summary: str = ""
    ) -> Answer:
        """Have a kernel judged and timed as the next attempt of a run."""
        folder, found = self.opened(run)
        due = len(found.attempts) + 1
        if found.ending is not None:
            raise Refused(f"run {run} has ended ({found.ending.words}); advise with more_attempts opens it again")
        if 0 < attempt < due:
            raise Refused(f"attempt {attempt} of run {run} is judged already; attempt {due} is next")
        if attempt != due:
            raise Refused(f"run {run} asks for attempt {due}, not {attempt}; advise has the question")
        author = AgentAuthor(self.author, attempt, guard.reply_text(kernel, edits, summary))
        answer = self._continued(folder, found, author, reporter, Addition(), brief=True)
        if author.is_empty:
            return answer
        note = f"Attempt {attempt} had been submitted before, so what was sent then counts, and not this.\n\n"
        return replace(answer, text=note + answer.text)

    def advise(self, reporter: AgentReporter, *, run: str, more_attempts: int = 0, hint: str = "") -> Answer:
        """The next question, in full. A submission that was not judged yet is judged first."""
        folder, found = self.opened(run)
        hint = guard.checked_text("hint", hint.strip(), guard.MOST_WORDS_CHARACTERS)
        more = guard.checked_count("more_attempts", more_attempts) if more_attempts else None
        addition = Addition(attempts=more, hint=hint)
        if found.ending is not None and addition == Addition():
            return run_answer(folder, found, None, since=len(found.attempts))
        return self._continued(folder, found, AgentAuthor(self.author), reporter, addition)

    def finish(self, reporter: AgentReporter, *, run: str) -> Answer:
        """End a run with the best it has."""
        folder, found = self.opened(run)
        if found.ending is not None:
            return run_answer(folder, found, None, since=len(found.attempts), brief=True)
        return self._continued(folder, found, AgentAuthor(self.author, done=True), reporter, Addition(), brief=True)

    def _continued(
        self,
        folder: RunFolder,
        run: records.Run,
        author: AgentAuthor,
        reporter: AgentReporter,
        addition: Addition,
        *,
        brief: bool = False,
    ) -> Answer:
        """Continue a run until the agent has to answer."""
        if run.settings.author != self.author:
            addition = replace(addition, author=self.author)
        question: records.Question | None = None
        try:
            self._resumed(folder, addition, author, reporter)
        except Pending as pending:
            question = pending.question
        except EndsAtOnce as error:
            needed = "more_attempts" if error.ending is records.Ending.ATTEMPTS else "a hint that says what to try"
            raise Refused(f"{error.reason}; give {needed}") from None
        return run_answer(folder, folder.load(), question, since=len(run.attempts), brief=brief)

    def _resumed(self, folder: RunFolder, addition: Addition, author: AgentAuthor, reporter: AgentReporter) -> None:
        """Waits for a cancelled call of this process that is about to stop, and for no other."""
        deadline = time.monotonic() + _BUSY_SECONDS
        output = folder.header().settings.output
        while True:
            try:
                running.resume(folder, addition, output, reporter, opened=author.opened, judged=self._judged(reporter))
                return
            except RunBusy:
                if folder.worker != f"process {os.getpid()}" or time.monotonic() > deadline:
                    raise Refused(
                        f"run {folder.path.name} is being worked on by another call; wait for its answer, or specify a "
                        "run of your own with fresh=true"
                    ) from None
                reporter.check()
                time.sleep(0.1)

    # -- actions that change no run --

    def check(
        self,
        reporter: AgentReporter,
        *,
        kernel: str,
        run: str = "",
        shapes: Texts | None = None,
        numbers: Texts | None = None,
    ) -> Answer:
        """Run a file in the emulator with every checker on; where a run is named, compare with its reference."""
        task = self.opened(run)[1].task if run else None
        text = guard.checked_text("kernel", kernel, guard.MOST_KERNEL_CHARACTERS)
        file = parse(text, "submitted.cu", allow_library=task is not None and task.allow_library)
        (profile,) = choose_profiles([], [task.gpu] if task else [])
        given = parse_arguments(
            file.plan.op,
            [f"{name}={value}" for name, value in guard.checked_entries("shapes", shapes or {}).items()],
            [f"{name}={value}" for name, value in guard.checked_entries("numbers", numbers or {}).items()],
        )
        arguments, guessed = complete_arguments(file, given, profile, SMALL_SHAPES)
        reference = (task.reference, task.function, None) if task else None
        options = CheckOptions(profile, records.Emulation(schedules=3), reference, seconds=_CHECK_SECONDS)
        report = check_file(file, arguments, guessed, options, reporter.working)
        facts = {
            "outcome": report.outcome.value,
            "reason": report.reason,
            "findings": [f"{one.kind.value} in {one.kernel}, line {one.line}" for one in report.findings],
            "compared": report.compared,
            "arguments": report.arguments,
        }
        return Answer(plain_text(check_report(file, report)), facts)

    def bench(self, reporter: AgentReporter, *, run: str, attempt: int = 0) -> Answer:
        """Time a kernel that passed: on a GPU beside its baselines, otherwise by the performance model."""
        folder, found = self.opened(run)
        chosen = runs.attempt_of(found, attempt) if attempt else runs.best_of(found, _SUBMIT)
        if not chosen.passed:
            raise Refused(f"attempt {chosen.number} of run {run} did not pass, and only what is right is timed")
        kernel = read_kernel(folder.attempt(chosen.number).text(KERNEL), found.task)
        assert isinstance(kernel, KernelFile)  # it passed
        device = choices.same_device(found.environment, found.task.gpu, found.settings.spool)
        tune = chosen.tune
        with self._judged(reporter)(found.task, found.settings, device, reporter.working) as (_, stopwatch):
            reporter.working("timing")
            time = stopwatch.measure(kernel, dict(tune.choice) if tune else None, tune.answer if tune else None)
        if time is None:
            raise Refused(f"attempt {chosen.number} of run {run} cannot be timed here; history has why it was not")
        facts: dict[str, Any] = {"run": found.id, "attempt": chosen.number, "device": device.label}
        text = plain_text(run_report.measurement_blocks(time))
        note = "" if not device.is_emulated else "\nModelled from emulated counts, not measured: no GPU is at hand."
        return Answer(text + note, facts | measurement_facts(time))

    def history(self, reporter: AgentReporter, *, run: str = "", attempt: int = 0) -> Answer:
        """All runs, one run, or one attempt in full."""
        if run:
            folder, found = self.opened(run)
            if attempt:
                return attempt_answer(folder, found, runs.attempt_of(found, attempt))
            return history_answer(folder, found)
        if attempt:
            raise Refused("attempt goes with run; name the run")
        return runs_answer(self.store.runs().runs, _LISTED_RUNS)

    def export(self, reporter: AgentReporter, *, run: str, destination: str, to: str = FILE) -> Answer:
        """Write the best kernel of a run below the session's root, in one of its forms."""
        if to not in FORMS:
            raise Refused(f"to {to[:40]!r} is no form of an export; write one of {', '.join(FORMS)}")
        folder, found = self.opened(run)
        best = runs.best_of(found, _SUBMIT)
        if to != FILE:
            target = guard.path_below(self.root, destination)
            done = exports.export(from_run(folder), Target(to), target, say=reporter.working)
            made = f"{done.name} as {to}, for {', '.join(done.archs)}, {done.standing}"
            text = f"Wrote {done.files} files to {destination}: {made}."
            facts = {"run": found.id, "to": to, "folder": destination, "name": done.name, "standing": done.standing}
            return Answer("\n".join([text, *done.notes]), facts | {"notes": list(done.notes)})
        target = guard.path_below(self.root, destination if destination.endswith(".cu") else f"{destination}.cu")
        kernel = running.library_kernel(self.store, folder, found)
        assert kernel is not None  # there is a best one
        target.parent.mkdir(parents=True, exist_ok=True)
        place_kernel(kernel, target, found.settings.licence)
        written = sorted(str(path.relative_to(self.root)) for path in target.parent.glob(f"{target.name}*"))
        call = f'tilewright.load("{target.relative_to(self.root)}")'
        text = f"Wrote {', '.join(written)}: attempt {best.number} of run {found.id}. Called from PyTorch: {call}(...)."
        return Answer(text, {"run": found.id, "to": FILE, "attempt": best.number, "files": written})


def _preview(request: Request) -> Answer:
    """The reference of a request, before anything runs."""
    if request.function:
        facts = {"state": "to be accepted", "reference": request.text, "inputs": dict(request.shapes)}
        return Answer(f"{request.text.strip()}\n\nOf {request.module or request.function}. {ACCEPT}", facts)
    try:
        specified = PlaybookAuthor().specify(request.text, request.shapes, request.gpu, _no_question)
        specified = fit_specification(specified, request.shapes, request.numbers, request.values)
    except (TaskError, PlaybookProblem) as problem:
        raise Refused(in_arguments(problem)) from None
    return specification_answer(specified, plain_text(specification_blocks(specified)))


def _no_question(question: records.Question) -> records.Reply:
    raise AssertionError(f"the built-in grammar asked a model: {question.id}")
