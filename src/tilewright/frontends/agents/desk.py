"""What an agent can have done: a task specified, its kernels judged, its run advised, ended, looked at, exported.

Each deed is one call: it takes plain values, does its work with the same code as the command line, and answers with
text and facts. Nothing is kept here between calls but where the desk is: runs lie in the store, and a run's own lock
keeps two callers apart.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass, replace
from pathlib import Path

from tilewright.authors.playbook_author import PlaybookAuthor
from tilewright.frontends import choices, conduct
from tilewright.frontends.agents import answers, guard
from tilewright.frontends.agents.answers import Answer
from tilewright.frontends.agents.author import Awaited, Hand, Submission
from tilewright.frontends.agents.guard import Refused
from tilewright.frontends.agents.kept_judges import KeptJudges
from tilewright.frontends.agents.talk import AgentTalk
from tilewright.frontends.conduct import Addition, KernelFound
from tilewright.frontends.judging import OpenJudges
from tilewright.frontends.remedies import in_arguments
from tilewright.frontends.run_opening import loaded
from tilewright.frontends.run_words import found_words
from tilewright.frontends.talk import specification_text
from tilewright.playbook.errors import PlaybookProblem
from tilewright.records import Budget, Ending, Precision, Question, Reply, Run, Settings
from tilewright.refine import next_step
from tilewright.store import Request, RunBusy, RunFolder, Store
from tilewright.tasks import TaskError, fit_specification

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


class Desk:
    """The deeds for one agent. `root` is the folder that exports may go to; `agent` names it on record."""

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

    def judged(self, talk: AgentTalk) -> OpenJudges:
        """Judges that speak to the caller, and stop when the caller does."""
        return lambda task, settings, device, say: self._kept.judged(task, settings, device, say, talk.is_cancelled)

    # -- a task --

    def specify(self, wanted: Wanted, accept: bool, talk: AgentTalk) -> Answer:
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
        hand = Hand(self.author)
        try:
            result = conduct.conduct(
                request,
                settings,
                device,
                talk,
                fresh=wanted.fresh,
                alone=True,
                opened=hand.opened,
                judged=self.judged(talk),
            )
        except Awaited as awaited:
            assert talk.run is not None  # or nobody would have been asked
            folder = self.store.open_run(talk.run.id)
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

    def advise(self, name: str, talk: AgentTalk, *, more_attempts: int = 0, hint: str = "") -> Answer:
        """What is asked next, in full; what was submitted and not judged yet is judged first."""
        folder, run = self.opened(name)
        hint = guard.checked_text("hint", hint.strip(), guard.MOST_WORDS_CHARACTERS)
        addition = Addition(attempts=_count("more_attempts", more_attempts) if more_attempts else None, hint=hint)
        if run.ending is not None and addition == Addition():
            return answers.standing(folder, run, None, len(run.attempts), brief=False)
        return self._driven(folder, run, Hand(self.author), talk, addition, brief=False)

    def submit(
        self, name: str, attempt: int, talk: AgentTalk, *, kernel: str = "", edits: str = "", summary: str = ""
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
        hand = Hand(self.author, Submission(attempt, _reply_text(kernel, edits, summary)))
        answer = self._driven(folder, run, hand, talk, Addition(), brief=True)
        if hand.is_empty:
            return answer
        said = f"Attempt {attempt} had been submitted before, so what was sent then counts, and not this.\n\n"
        return replace(answer, text=said + answer.text)

    def finish(self, name: str, talk: AgentTalk) -> Answer:
        """End a run with the best it has."""
        folder, run = self.opened(name)
        if run.ending is not None:
            return answers.standing(folder, run, None, len(run.attempts), brief=True)
        return self._driven(folder, run, Hand(self.author, done=True), talk, Addition(), brief=True)

    def opened(self, name: str) -> tuple[RunFolder, Run]:
        folder = guard.open_run(self.store, name)
        run = loaded(folder)
        if run is None:
            raise Refused(f"run {name} has no accepted task; specify one")
        return folder, run

    def _driven(
        self, folder: RunFolder, run: Run, hand: Hand, talk: AgentTalk, addition: Addition, *, brief: bool
    ) -> Answer:
        """Carry a run as far as what is in hand goes."""
        if run.settings.author != self.author:
            addition = replace(addition, author=self.author)
        if run.ending is not None:
            _refuse_at_once(run, addition)
        question: Question | None = None
        try:
            self._resumed(folder, addition, hand, talk)
        except Awaited as awaited:
            question = awaited.question
        return answers.standing(folder, folder.load(), question, len(run.attempts), brief=brief)

    def _resumed(self, folder: RunFolder, addition: Addition, hand: Hand, talk: AgentTalk) -> None:
        """Waits for a call of this very process that was cancelled and is about to stop; for nobody else."""
        deadline = time.monotonic() + _OWN_WORK_SECONDS
        output = folder.header().settings.output
        while True:
            try:
                conduct.resume(folder, addition, output, talk, opened=hand.opened, judged=self.judged(talk))
                return
            except RunBusy:
                if folder.worker != f"process {os.getpid()}" or time.monotonic() > deadline:
                    raise Refused(
                        f"run {folder.path.name} is being worked on by another call; wait for its answer, or specify a "
                        "run of your own with fresh=true"
                    ) from None
                talk.check()
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
