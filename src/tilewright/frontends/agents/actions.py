"""What an agent can have done: a task specified, its kernels judged, its run advised, ended, looked at, exported.

Each action is one call: it takes plain values, does its work with the same code as the command line, and answers with
text and facts. Nothing is kept here between calls but where the session is: runs lie in the store, and a run's own lock
keeps two callers apart.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tilewright.authors.playbook_author import PlaybookAuthor
from tilewright.exports import export as exports
from tilewright.exports.export import Target
from tilewright.exports.source import from_run
from tilewright.frontends.agents import answers, guard
from tilewright.frontends.agents.answers import Answer, printed
from tilewright.frontends.agents.author import AgentReporter, AgentTurn, Pending, Submission
from tilewright.frontends.agents.guard import Refused
from tilewright.frontends.agents.kept_judges import KeptJudges
from tilewright.frontends.api import choices, running
from tilewright.frontends.api.judges import OpenJudges
from tilewright.frontends.api.kernel_arguments import SMALL_SHAPES, choose_profiles, complete_arguments, parse_arguments
from tilewright.frontends.api.reporter import in_arguments, specification_text
from tilewright.frontends.api.running import Addition, KernelFound
from tilewright.frontends.cli.check import CheckOptions, check_file, show_check
from tilewright.frontends.cli.make import place_kernel
from tilewright.frontends.report import run_text, runs
from tilewright.frontends.report.runs import found_words
from tilewright.kernel_file import KernelFile, parse
from tilewright.playbook.errors import PlaybookProblem
from tilewright.records import Attempt, Budget, Emulation, Ending, Precision, Question, Reply, Run, Settings, Task
from tilewright.refine import next_step
from tilewright.store import Request, RunBusy, RunFolder, Store
from tilewright.tasks import TaskError, fit_specification
from tilewright.verify import read_kernel

MOST_ATTEMPTS = 100
BUDGET_SECONDS = 4 * 3600.0  # of work on kernels; an agent's own time does not count
_OWN_WORK_SECONDS = 30.0  # to wait for a call that was cancelled and is about to stop
_CLIENT = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True)
class Wanted:
    """What an agent specifies: words, or source and the function meant, with what `tilewright make` takes beside."""

    words: str = ""
    source: str = ""
    function: str = ""
    shapes: dict[str, str] | None = None
    numbers: dict[str, str] | None = None
    values: dict[str, str] | None = None
    gpu: str = ""
    precision: str = ""
    start: str = ""
    attempts: int = Budget.attempts
    fresh: bool = False


class Session:
    """The actions for one agent. `root` is the folder that exports may go to; `agent` names it on record."""

    def __init__(self, root: Path, *, agent: str = "unnamed", gpu: str = "", spool: str = "") -> None:
        self.root = root.resolve()
        self.store = Store()
        self._gpu, self._spool = gpu, spool
        self.agent = agent
        self._kept = KeptJudges()

    @property
    def author(self) -> str:
        """The author's name for the record."""
        return f"{choices.AGENT}:{_CLIENT.sub('-', self.agent).strip('-')[:40] or 'unnamed'}"

    def close(self) -> None:
        """End the processes that wait for the next kernel."""
        self._kept.close()

    def judged(self, reporter: AgentReporter) -> OpenJudges:
        """Judges that speak to the caller, and stop when the caller does."""
        return lambda task, settings, device, say: self._kept.judged(task, settings, device, say, reporter.is_cancelled)

    # -- a task --

    def specify(self, wanted: Wanted, accept: bool, reporter: AgentReporter) -> Answer:
        """A request as it is understood or, once that is accepted, a run of it and its first question."""
        device = choices.choose_device(wanted.gpu or self._gpu or None, self._spool)
        request = replace(self._request(wanted), gpu=device.gpu)
        if not accept:
            return _preview(request)
        settings = Settings(
            author=self.author,
            budget=Budget(attempts=_count("attempts", wanted.attempts), seconds=BUDGET_SECONDS),
            start=guard.checked_text("start_kernel", wanted.start, guard.MOST_KERNEL_CHARACTERS),
            spool=os.path.realpath(self._spool) if self._spool else "",
        )
        turn = AgentTurn(self.author)
        try:
            result = running.run_request(
                request,
                settings,
                device,
                reporter,
                fresh=wanted.fresh,
                alone=True,
                opened=turn.opened,
                judged=self.judged(reporter),
            )
        except Pending as awaited:
            assert reporter.run is not None  # or nobody would have been asked
            folder = self.store.open_run(reporter.run.id)
            return answers.standing(folder, folder.load(), awaited.question, 0, brief=False)
        except (TaskError, PlaybookProblem) as problem:
            raise Refused(in_arguments(problem)) from None
        if isinstance(result, KernelFound):
            entry = result.kernel.entry
            said = f"{found_words(entry, '', 'fresh=true')}. Its file is attempt {entry.attempt} of run {entry.run}."
            return Answer(said, {"state": "found", "run": entry.run, "attempt": entry.attempt, "op": entry.op})
        return answers.standing(result.folder, result.run, None, 0, brief=False)  # the file given was good enough

    def _request(self, wanted: Wanted) -> Request:
        if bool(wanted.words.strip()) == bool(wanted.source.strip()):
            raise Refused("give either words or source with function: one of the two says what is to be computed")
        named = {
            name: guard.checked_entries(name, given or {})
            for name, given in (("shapes", wanted.shapes), ("numbers", wanted.numbers), ("values", wanted.values))
        }
        try:
            precision = Precision(wanted.precision) if wanted.precision else None
        except ValueError:
            known = ", ".join(one.value for one in Precision)
            raise Refused(f"precision {wanted.precision[:40]!r} is not known; write one of {known}") from None
        plain = Request(wanted.words, named["shapes"], named["numbers"], named["values"], precision=precision)
        if wanted.source.strip():
            source = guard.checked_source(wanted.source)
            meant = guard.meant_by(source, wanted.function)
            return replace(plain, text=source, function=meant.name, module=meant.module)
        if wanted.function:
            raise Refused("function goes with source; words need none")
        return replace(plain, text=guard.checked_words(wanted.words))

    # -- a run --

    def advise(self, name: str, reporter: AgentReporter, *, more_attempts: int = 0, hint: str = "") -> Answer:
        """What is asked next, in full; what was submitted and not judged yet is judged first."""
        folder, run = self.opened(name)
        hint = guard.checked_text("hint", hint.strip(), guard.MOST_WORDS_CHARACTERS)
        addition = Addition(attempts=_count("more_attempts", more_attempts) if more_attempts else None, hint=hint)
        if run.ending is not None and addition == Addition():
            return answers.standing(folder, run, None, len(run.attempts), brief=False)
        return self._driven(folder, run, AgentTurn(self.author), reporter, addition, brief=False)

    def submit(
        self, name: str, attempt: int, reporter: AgentReporter, *, kernel: str = "", edits: str = "", summary: str = ""
    ) -> Answer:
        """Have a kernel judged and timed as the next attempt of a run."""
        folder, run = self.opened(name)
        if run.ending is not None:
            raise Refused(f"run {name} has ended ({run.ending.words}); advise with more_attempts opens it again")
        if 0 < attempt <= len(run.attempts):
            raise Refused(f"attempt {attempt} of run {name} is judged already; attempt {len(run.attempts) + 1} is next")
        if attempt != len(run.attempts) + 1:
            raise Refused(
                f"run {name} asks for attempt {len(run.attempts) + 1}, not {attempt}; advise has the question"
            )
        turn = AgentTurn(self.author, Submission(attempt, _reply_text(kernel, edits, summary)))
        answer = self._driven(folder, run, turn, reporter, Addition(), brief=True)
        if turn.is_empty:
            return answer
        said = f"Attempt {attempt} had been submitted before, so what was sent then counts, and not this.\n\n"
        return replace(answer, text=said + answer.text)

    def finish(self, name: str, reporter: AgentReporter) -> Answer:
        """End a run with the best it has."""
        folder, run = self.opened(name)
        if run.ending is not None:
            return answers.standing(folder, run, None, len(run.attempts), brief=True)
        return self._driven(folder, run, AgentTurn(self.author, done=True), reporter, Addition(), brief=True)

    def opened(self, name: str) -> tuple[RunFolder, Run]:
        folder = guard.open_run(self.store, name)
        run = folder.find_run()
        if run is None:
            raise Refused(f"run {name} has no accepted task; specify one")
        return folder, run

    def _driven(
        self, folder: RunFolder, run: Run, turn: AgentTurn, reporter: AgentReporter, addition: Addition, *, brief: bool
    ) -> Answer:
        """Carry a run as far as what is in hand goes."""
        if run.settings.author != self.author:
            addition = replace(addition, author=self.author)
        if run.ending is not None:
            _refuse_at_once(run, addition)
        question: Question | None = None
        try:
            self._resumed(folder, addition, turn, reporter)
        except Pending as awaited:
            question = awaited.question
        return answers.standing(folder, folder.load(), question, len(run.attempts), brief=brief)

    def _resumed(self, folder: RunFolder, addition: Addition, turn: AgentTurn, reporter: AgentReporter) -> None:
        """Waits for a call of this very process that was cancelled and is about to stop; for nobody else."""
        deadline = time.monotonic() + _OWN_WORK_SECONDS
        output = folder.header().settings.output
        while True:
            try:
                running.resume(folder, addition, output, reporter, opened=turn.opened, judged=self.judged(reporter))
                return
            except RunBusy:
                if folder.worker != f"process {os.getpid()}" or time.monotonic() > deadline:
                    raise Refused(
                        f"run {folder.path.name} is being worked on by another call; wait for its answer, or specify a "
                        "run of your own with fresh=true"
                    ) from None
                reporter.check()
                time.sleep(0.1)


def _preview(request: Request) -> Answer:
    """What a request is taken to mean. Nothing is run."""
    if request.function:
        facts = {"state": "to be accepted", "reference": request.text, "inputs": dict(request.shapes)}
        return Answer(f"{request.text.strip()}\n\nOf {request.module or request.function}. {answers.ACCEPT}", facts)
    try:
        specified = PlaybookAuthor().specify(request.text, request.shapes, request.gpu, _no_question)
        specified = fit_specification(specified, request.shapes, request.numbers, request.values)
    except (TaskError, PlaybookProblem) as problem:
        raise Refused(in_arguments(problem)) from None
    return answers.specification_answer(specified, specification_text(specified))


def _no_question(question: Question) -> Reply:
    raise AssertionError(f"the built-in grammar asked a model: {question.id}")


def _refuse_at_once(run: Run, addition: Addition) -> None:
    """A run that has ended and would end again without asking anything is not opened."""
    budget = run.settings.budget
    attempts = len(run.attempts) + addition.attempts if addition.attempts else budget.attempts
    hints = (*run.settings.hints, (len(run.attempts), addition.hint)) if addition.hint else run.settings.hints
    settings = replace(run.settings, budget=replace(budget, attempts=attempts), hints=hints)
    at_once = next_step(replace(run, settings=settings, ending=None))
    if isinstance(at_once, Ending):
        needed = "more_attempts" if at_once is Ending.ATTEMPTS else "a hint that says what to try"
        raise Refused(f"run {run.id} would end at once, because {at_once.words}; give {needed}")


def _count(name: str, number: int) -> int:
    if not 1 <= number <= MOST_ATTEMPTS:
        raise Refused(f"{name} is {number}; give 1 to {MOST_ATTEMPTS}")
    return number


def _reply_text(kernel: str, edits: str, summary: str) -> str:
    """What a model would have replied."""
    if bool(kernel.strip()) == bool(edits.strip()):
        raise Refused("give either kernel, the whole file, or edits of the file that the question shows")
    for name, text in (("kernel", kernel), ("edits", edits)):
        guard.checked_text(name, text, guard.MOST_KERNEL_CHARACTERS)
    line = " ".join(guard.checked_text("summary", summary, guard.MOST_SUMMARY_CHARACTERS).split())
    said = f"Summary: {line or 'no summary given'}\n\n"
    if edits.strip():
        return said + edits.strip("\n") + "\n"
    if kernel.lstrip().startswith("```"):  # it came in a fence, as a model would send it
        return said + kernel.strip() + "\n"
    return f"{said}```cuda\n{kernel.strip()}\n```\n"


# -- actions that change no run: --

FILE_NAME = "submitted.cu"
_CHECK_SECONDS = 120.0
_LISTED_RUNS = 30


def check(
    session: Session,
    kernel: str,
    reporter: AgentReporter,
    *,
    run: str = "",
    shapes: dict[str, str] | None = None,
    numbers: dict[str, str] | None = None,
) -> Answer:
    """Run a file in the emulator with every checker on; where a run is named, beside its reference."""
    task = None if not run else session.opened(run)[1].task
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
        report = check_file(file, arguments, guessed, options, reporter.working)
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


def bench(session: Session, name: str, reporter: AgentReporter, *, attempt: int = 0) -> Answer:
    """Time a kernel that passed once more; on a GPU beside its baselines, without one by the performance model."""
    folder, run = session.opened(name)
    chosen = _attempt(run, attempt) if attempt else _best(run)
    if not chosen.passed:
        raise Refused(f"attempt {chosen.number} of run {name} did not pass, and only what is right is timed")
    kernel = read_kernel(folder.attempt(chosen.number).text(answers.KERNEL), run.task)
    assert isinstance(kernel, KernelFile)  # it passed
    device = choices.same_device(run.environment, run.task.gpu, run.settings.spool)
    tune = chosen.tune
    with session.judged(reporter)(run.task, run.settings, device, reporter.working) as (_, stopwatch):
        reporter.working("timing")
        found = stopwatch.measure(kernel, dict(tune.choice) if tune else None, tune.answer if tune else None)
    if found is None:
        raise Refused(f"attempt {chosen.number} of run {name} cannot be timed here; history has why it was not")
    facts: dict[str, Any] = {"run": run.id, "attempt": chosen.number, "device": device.label}
    text = printed(lambda console: run_text.show_measurement(console, found))
    said = "" if not device.is_emulated else "\nModelled from emulated counts, not measured: no GPU is at hand."
    return Answer(text + said, facts | answers.measurement_facts(found))


def history(session: Session, *, run: str = "", attempt: int = 0) -> Answer:
    """All runs, one run, or one attempt in full."""
    if run:
        folder, found = session.opened(run)
        if attempt:
            return answers.attempt_answer(folder, found, _attempt(found, attempt))
        return answers.history_answer(folder, found)
    if attempt:
        raise Refused("attempt goes with run; name the run")
    listing = session.store.runs()
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
    best = runs.time_words(run.best.measurement) if run.best else "none passed"
    state = run.ending.words if run.ending else "may go on"
    return f"{run.id}  {run.task.name} on {run.environment.device}, {runs.attempts_words(run)}, {best}; {state}"


FILE = "file"  # the kernel file itself; the other forms are those of `exports`
FORMS = (FILE, *(one.value for one in Target))


def export(session: Session, name: str, destination: str, reporter: AgentReporter, *, to: str = FILE) -> Answer:
    """Write the best kernel of a run below the session's root, in one of its forms."""
    if to not in FORMS:
        raise Refused(f"to {to[:40]!r} is no form of an export; write one of {', '.join(FORMS)}")
    folder, run = session.opened(name)
    best = _best(run)
    if to != FILE:
        target = guard.inside(session.root, destination)
        done = exports.export(from_run(folder), Target(to), target, say=reporter.working)
        made = f"{done.name} as {to}, for {', '.join(done.archs)}, {done.standing}"
        text = f"Wrote {done.files} files to {destination}: {made}."
        facts = {"run": run.id, "to": to, "folder": destination, "name": done.name, "standing": done.standing}
        return Answer("\n".join([text, *done.notes]), facts | {"notes": list(done.notes)})
    target = guard.inside(session.root, destination if destination.endswith(".cu") else f"{destination}.cu")
    kernel = running.library_kernel(session.store, folder, run)
    assert kernel is not None  # there is a best one
    target.parent.mkdir(parents=True, exist_ok=True)
    place_kernel(kernel, target, run.settings.licence)
    written = sorted(str(path.relative_to(session.root)) for path in target.parent.glob(f"{target.name}*"))
    call = f'tilewright.load("{target.relative_to(session.root)}")'
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
