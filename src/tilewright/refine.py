"""The loop: one evolving kernel, replaced only by a better one.

It is drafted, repaired from a diagnosis, restructured, autotuned, and refined with profiler evidence once restructuring
has stopped paying. `next_step` decides from the recorded attempts alone, and everything is recorded before it is used,
so a killed run resumes where it stopped. The author, referee and stopwatch are given; nothing here knows a model, a
prompt or a device.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tilewright import records
from tilewright.authors import Author
from tilewright.child.process import Interrupted, stopped_when
from tilewright.kernel_file import KernelFile
from tilewright.measure import Stopwatch, autotune, slower_than
from tilewright.measure.floor import too_fast
from tilewright.records import Attempt, BadPlan, BadReply, Ending, Proposal, Rejected, Reply, Run, Situation, Stage
from tilewright.store import AttemptFolder, RunFolder
from tilewright.verify import Referee, read_kernel

KERNEL = "kernel.cu"  # the candidate, in its attempt's folder
UNREADABLE_IN_A_ROW = 3
_LINTED = (Stage.REPAIR_CRASH, Stage.REPAIR_WRONG, Stage.STRUCTURE)  # stages whose author gets lint findings
REPAIRS_OF_A_STEP = 2  # where a right kernel exists: reverting to it is cheap

Complete = Callable[[records.Question, Callable[[str], None]], Reply]


class Watcher(Protocol):
    """Receives the events of a run."""

    def started(self, run: Run) -> None: ...

    def asking(self, situation: Situation) -> None:
        """The author is asked for a candidate."""

    def text(self, text: str) -> None:
        """A piece of the reply, as it streams in."""

    def working(self, what: str) -> None:
        """What a candidate is going through, in a few words."""

    def attempted(self, run: Run, attempt: Attempt) -> None: ...

    def ended(self, run: Run) -> None: ...


# -- decisions: from a run to its next step --


@dataclass(frozen=True)
class Step:
    """What to ask the author for."""

    stage: Stage
    number: int  # of the step, shared by its candidates
    candidate: int = 0
    failing: Attempt | None = None


def next_step(run: Run) -> Step | Ending:
    """The next step of a run, or why it ends."""
    ending = _spent(run) or _satisfied(run)
    if ending is not None:
        return ending
    if not run.attempts:
        return Step(Stage.DRAFT, 1)
    last = run.attempts[-1]
    group = [one for one in run.attempts if one.step == last.step]
    given = bool(run.settings.start) and last.step == 1
    if len(group) < run.settings.candidates and not last.stage.is_repair and not given:
        return Step(last.stage, last.step, len(group))
    if not any(one.passed for one in group):
        failing = next((one for one in reversed(group) if _repairable(one)), None)
        if failing is not None and _repairs_left(run):
            return Step(_repair_stage(failing), last.step + 1, failing=failing)
    return _onward(run)


def _onward(run: Run) -> Step | Ending:
    """The next step, leaving the last one as it is."""
    last = run.attempts[-1]
    if run.best is None:
        return Step(Stage.DRAFT, last.step + 1)
    since = _last_hint(run)
    passed_on = [
        one.stage
        for one in run.attempts[max(since, run.best.number) :]
        if isinstance(_evidence(one), records.NothingBetter)
    ]
    profiling = bool(passed_on) or any(one.stage is Stage.PROFILED for one in run.attempts[since:])
    if not profiling and _without_gain(run, Stage.STRUCTURE) < run.settings.structure_patience:
        return Step(Stage.STRUCTURE, last.step + 1)
    if Stage.PROFILED in passed_on:
        return Ending.AUTHOR_DONE
    if _without_gain(run, Stage.PROFILED) < run.settings.profiled_patience:
        return Step(Stage.PROFILED, last.step + 1)
    return Ending.SETTLED


def _spent(run: Run) -> Ending | None:
    budget, usage, dollars = run.settings.budget, run.usage, run.dollars or 0.0
    if len(run.attempts) >= budget.attempts:
        return Ending.ATTEMPTS
    if usage.tokens >= budget.tokens:
        return Ending.TOKENS
    if dollars > 0 and dollars >= budget.dollars:
        return Ending.DOLLARS
    if run.seconds >= budget.seconds:
        return Ending.SECONDS
    tail = run.attempts[-UNREADABLE_IN_A_ROW:]
    if len(tail) == UNREADABLE_IN_A_ROW and all(isinstance(_evidence(one), BadReply) for one in tail):
        return Ending.UNREADABLE
    return None


def _satisfied(run: Run) -> Ending | None:
    best = run.best
    if best is None or best.measurement is None:
        return None
    if run.settings.hints and _last_hint(run) == len(run.attempts):
        return None  # the user wants one more step
    if best.measurement.fraction >= run.settings.good_enough:
        return Ending.GOOD_ENOUGH
    bound = isinstance(best.measurement, records.Modelled) and best.measurement.at_bound
    return Ending.AT_BOUND if bound and run.settings.stop_at_bound else None


def _evidence(attempt: Attempt) -> records.Evidence | None:
    return attempt.verdict.evidence if isinstance(attempt.verdict, Rejected) else None


def _repairable(attempt: Attempt) -> bool:
    return not isinstance(_evidence(attempt), (BadReply, records.Duplicate, records.NotFaster, records.NothingBetter))


def _repair_stage(attempt: Attempt) -> Stage:
    evidence = _evidence(attempt)
    if isinstance(evidence, (BadPlan, records.NotBuilt)):
        return Stage.REPAIR_BUILD
    wrong = isinstance(evidence, (records.WrongValues, records.Unstable, records.Impossible))
    return Stage.REPAIR_WRONG if wrong else Stage.REPAIR_CRASH


def _repairs_left(run: Run) -> bool:
    made = 0
    for one in reversed(run.attempts):
        if not one.stage.is_repair:
            break
        made += 1
    patience = run.settings.repair_patience
    return made < (patience if run.best is None else min(patience, REPAIRS_OF_A_STEP))


def _without_gain(run: Run, stage: Stage) -> int:
    """Steps of a stage since the best kernel or the user's last hint; repairs belong to their step."""
    since = max(_last_hint(run), run.best.number if run.best else 0)
    return len({one.step for one in run.attempts[since:] if one.stage is stage})


def _last_hint(run: Run) -> int:
    """How many attempts preceded the user's last hint."""
    return run.settings.hints[-1][0] if run.settings.hints else 0


# -- actions: from a step to an attempt on record --


@dataclass(frozen=True)
class RunContext:
    """The participants: author, model, referee, stopwatch and watcher."""

    author: Author
    complete: Complete  # asks the model; authors without one never call it
    referee: Referee
    stopwatch: Stopwatch
    watch: Watcher


def refine(folder: RunFolder, context: RunContext) -> Run:
    """Carry a run to its end, from wherever it stands.

    Raises only for faults of the machine, the reference or the model's provider. Everything until then is recorded, and
    calling it again resumes the run.
    """
    run = folder.load()
    context.watch.started(run)
    while run.ending is None:
        made = _made(run, folder, context)
        if isinstance(made, Ending):
            folder.end(made)
            run = folder.load()
            continue
        folder.attempt(made.number).finish(made)
        run = folder.load()
        context.watch.attempted(run, made)
    context.watch.ended(run)
    return run


def _made(run: Run, folder: RunFolder, context: RunContext) -> Attempt | Ending:
    """The next attempt. An author that cannot repair a candidate may still have something else to propose."""
    step = next_step(run)
    made = _Attempt(run, step, folder, context).make() if isinstance(step, Step) else step
    if made is Ending.AUTHOR_DONE and isinstance(step, Step) and step.failing is not None:
        step = _onward(run)
        made = _Attempt(run, step, folder, context).make() if isinstance(step, Step) else step
    return made


class _Attempt:
    """One attempt in progress. Each result is stored at once, and read back if another process began the attempt."""

    def __init__(self, run: Run, step: Step, folder: RunFolder, context: RunContext) -> None:
        self._run = run
        self._step = step
        self._folder = folder
        self._context = context
        self._number = len(run.attempts) + 1
        self._place: AttemptFolder = folder.attempt(self._number)
        self._replies: list[Reply] = []
        self._began = time.monotonic()
        self._waited_s = 0.0  # for a person, which does not count

    @property
    def _taken_s(self) -> float:
        return time.monotonic() - self._began - self._waited_s

    def make(self) -> Attempt | Ending:
        """The attempt, or an ending if the author has nothing more to propose or time is up.

        When time is up its processes are ended and the attempt stays unfinished. A reply is waited for, since it is
        paid for.
        """
        left_s = self._run.settings.budget.seconds - self._run.seconds
        try:
            with stopped_when(lambda: self._taken_s > left_s):
                return self._made()
        except Interrupted:
            if self._taken_s <= left_s:  # interrupted by something else
                raise
            self._folder.cut_short(self._number, self._taken_s)
            return Ending.SECONDS

    def _made(self) -> Attempt | Ending:
        asked = self._proposal()
        if asked is None:
            return Ending.AUTHOR_DONE
        situation, proposal = asked
        kernel, identity = self._read(proposal)
        verdict = self._place.remember("verdict", records.Verdict, lambda: self._verdict(proposal, kernel, identity))
        tune, measurement, unmeasured = None, None, ""
        if isinstance(verdict, records.Passed) and isinstance(kernel, KernelFile):
            tune, measurement = self._measured(kernel, verdict.answer)
            if measurement is None:
                unmeasured = self._place.remember("unmeasured", str, lambda: self._context.stopwatch.unmeasured)
            verdict = self._possible(verdict, measurement)
        prices = [reply.dollars for reply in self._replies]
        return Attempt(
            number=self._number,
            step=self._step.number,
            stage=situation.stage,
            parent=situation.parent.number if situation.parent else None,
            summary=proposal.summary,
            kernel=identity,
            verdict=verdict,
            measurement=measurement,
            tune=tune,
            usage=sum((reply.usage for reply in self._replies), records.Usage()),
            dollars=None if None in prices else sum(price for price in prices if price is not None),
            replies=len(self._replies),
            seconds=self._taken_s,
            cut=sum((reply.cut.usage for reply in self._replies), records.Usage()),
            recipe=proposal.recipe,
            notes=proposal.notes,
            unmeasured=unmeasured,
        )

    # -- the candidate --

    def _proposal(self) -> tuple[Situation, Proposal] | None:
        """The author's proposal. An author without another structure may still have details to refine."""
        stages = (Stage.STRUCTURE, Stage.PROFILED) if self._step.stage is Stage.STRUCTURE else (self._step.stage,)
        for stage in stages:
            situation = self._situation(stage)
            if self._run.settings.start and not self._run.attempts:
                return situation, Proposal(self._run.settings.start, "the kernel file to start from")
            self._context.watch.asking(situation)
            proposal = self._context.author.propose(situation, self._ask)
            if proposal is not None:
                return situation, proposal
        return None

    def _situation(self, stage: Stage) -> Situation:
        best, failing = self._run.best, self._step.failing
        evidence = ""
        if stage is Stage.PROFILED and best is not None and self._context.author.reads_evidence:
            evidence = self._place.remember("evidence", str, lambda: self._evidence(best))
        shown = failing or best
        lint: tuple[records.LintFinding, ...] = ()
        reads = self._context.author.reads_evidence and stage in _LINTED
        if reads and shown is not None:
            lint = self._place.remember("lint", tuple[records.LintFinding, ...], lambda: self._lint(shown))
        hints = [text for made, text in self._run.settings.hints if made < self._number]
        return Situation(
            task=self._run.task,
            stage=stage,
            number=self._number,
            candidate=self._step.candidate,
            parent=best,
            parent_text=self._kernel_of(best) if best else "",
            failing=failing,
            failing_text=self._kernel_of(failing) if failing else "",
            history=self._run.attempts,
            evidence=evidence,
            hint="\n".join(hints),
            emulated_only=self._run.environment.emulated,
            noise=self._run.settings.noise,
            skill=self._run.settings.skill,
            lint=lint,
        )

    def _ask(self, question: records.Question) -> Reply:
        number = len(self._replies) + 1

        def heard(text: str) -> None:
            self._place.stream(number, text)
            self._context.watch.text(text)

        began = time.monotonic()
        reply = self._place.reply_to(number, question, lambda asked: self._context.complete(asked, heard))
        self._waited_s += time.monotonic() - began if reply.by_person else 0.0
        self._replies.append(reply)
        return reply

    def _read(self, proposal: Proposal) -> tuple[KernelFile | BadPlan | None, str | None]:
        """The parsed file with mechanical fixes, and its identity; the text is stored even if it cannot be parsed."""
        if proposal.text is None:
            return None, None
        kernel = read_kernel(proposal.text, self._run.task)
        text = kernel.text if isinstance(kernel, KernelFile) else proposal.text
        self._place.save_text(KERNEL, text)
        return kernel, hashlib.sha256(text.encode(errors="replace")).hexdigest()[:20]

    def _kernel_of(self, attempt: Attempt) -> str:
        return self._folder.attempt(attempt.number).text(KERNEL)

    # -- judging and measuring --

    def _verdict(
        self, proposal: Proposal, kernel: KernelFile | BadPlan | None, identity: str | None
    ) -> records.Verdict:
        if kernel is None:
            return Rejected(records.NothingBetter(proposal.summary) if proposal.passes else BadReply(proposal.problem))
        earlier = next((one for one in self._run.attempts if one.kernel == identity), None)
        if earlier is not None:
            return Rejected(records.Duplicate(earlier.number))
        if isinstance(kernel, BadPlan):
            return Rejected(kernel)
        self._context.watch.working("verifying")
        return self._context.referee.judge(kernel, skip_if_slower=lambda: self._not_faster(kernel))

    def _not_faster(self, kernel: KernelFile) -> records.NotFaster | None:
        """Evidence that it is slower than the best kernel, so that slow full-size cases can be skipped."""
        best = self._run.best
        if best is None or best.is_provisional or not isinstance(best.measurement, records.Measured):
            return None
        best_us, watch = best.measurement.time_us, self._context.watch
        watch.working("timing it beside the best")
        limit = self._run.settings.tune_combinations
        time_us = slower_than(kernel, best_us, self._context.stopwatch, limit, watch.working)
        return records.NotFaster(time_us, best_us, best.number) if time_us is not None else None

    def _measured(
        self, kernel: KernelFile, answer: records.JudgedAnswer | None
    ) -> tuple[records.TuneResult, records.Measurement | None]:
        referee, stopwatch, watch = self._context.referee, self._context.stopwatch, self._context.watch
        noise, limit = self._run.settings.noise, self._run.settings.tune_combinations
        watch.working("tuning")
        tune = self._place.remember(
            "tune",
            records.TuneResult,
            lambda: autotune(kernel, referee, stopwatch, limit, watch.working, gain=noise, answer=answer),
        )
        watch.working("measuring")
        choice, best_us = dict(tune.choice), self._run.best.time_us if self._run.best else None
        measurement = self._place.remember(
            "measurement", records.Measurement | None, lambda: stopwatch.measure(kernel, choice, tune.answer, best_us)
        )
        return tune, measurement

    def _possible(self, passed: records.Passed, measurement: records.Measurement | None) -> records.Verdict:
        """The verdict, unless a timed call returned something else or the time is impossibly short."""
        if not isinstance(measurement, records.Measured):
            return passed
        if measurement.answered_otherwise:
            task = self._run.task
            changed = (*(one.name for one in task.outputs), *(one.name for one in task.tensors if one.in_place))
            own = records.Case(task.sizes, 1)
            return Rejected(records.Unstable(own, changed, measurement.answered_otherwise), passed.cases)
        impossible = too_fast(measurement, self._run.task, self._context.referee.needed_inputs)
        return Rejected(impossible, passed.cases) if impossible is not None else passed

    def _lint(self, attempt: Attempt) -> tuple[records.LintFinding, ...]:
        kernel = read_kernel(self._kernel_of(attempt), self._run.task)
        return self._context.stopwatch.lint(kernel) if isinstance(kernel, KernelFile) else ()

    def _evidence(self, best: Attempt) -> str:
        kernel = read_kernel(self._kernel_of(best), self._run.task)
        assert isinstance(kernel, KernelFile)  # it passed
        self._context.watch.working("profiling")
        return self._context.stopwatch.evidence(kernel, dict(best.tune.choice) if best.tune else None)
