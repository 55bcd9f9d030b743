"""One candidate before the referee: run and judge each case, and record the outcome."""

from __future__ import annotations

import operator
import re
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import reduce

from tilewright import records
from tilewright.devices.protocol import Device
from tilewright.kernel_file import Refused
from tilewright.records import (
    LOOP,
    Case,
    CaseResult,
    CaseStatus,
    Completed,
    CoverageRecord,
    CoveredSite,
    Crashed,
    Digest,
    Evidence,
    Execution,
    Job,
    Seen,
    UncoveredLine,
    WrongValues,
)
from tilewright.reference import AnyReference, ReferenceProblem
from tilewright.verify.candidate import Candidate, Judges, Times, instruction_budget
from tilewright.verify.distributions import TASK, timed_values
from tilewright.verify.judging_records import Judgement, JudgeRequest

# -- coverage --

_MANY = Seen.SEVERAL_TRIPS | Seen.MANY_TRIPS
_TRIPS = _MANY | Seen.ONE_TRIP | Seen.TWO_TRIPS
_PAIRS = (Seen.RAN | Seen.SKIPPED, Seen.FIRST | Seen.SECOND)

_Place = tuple[tuple[int, ...], str]


@dataclass
class Coverage:
    """The code that was executed in cases judged right."""

    _programs: dict[str, dict[_Place, list[Seen]]] = field(default_factory=dict)
    _places: dict[_Place, Seen] = field(default_factory=dict)
    _lines: dict[int, Seen] = field(default_factory=dict)  # by innermost line

    def add(self, records: Iterable[CoverageRecord]) -> None:
        for record in records:
            known = self._programs.setdefault(record.program, {})
            for site in record.sites:
                place, each = (site.lines, site.what), _seen(site)
                before = known.get(place, [Seen(0)] * len(each))
                known[place] = [one | other for one, other in zip(before, each, strict=True)]
                together = reduce(operator.or_, each, Seen(0))
                self._places[place] = self._places.get(place, Seen(0)) | together
                if site.lines and site.what != LOOP:
                    self._lines[site.lines[0]] = self._lines.get(site.lines[0], Seen(0)) | together

    def uncovered(self, own: Iterable[CoverageRecord], text: str) -> tuple[UncoveredLine, ...]:
        """The lines where the full-size call does what no judged case did."""
        source = text.split("\n")
        found: dict[tuple[int, str], None] = {}
        for record in own:
            for site, why in self._missing(record):
                line = site.lines[0] if site.lines else 0
                if 0 < line <= len(source):
                    found.setdefault((line, why))
        return tuple(UncoveredLine(line, source[line - 1].strip(), why) for line, why in sorted(found))

    def _missing(self, record: CoverageRecord) -> Iterator[tuple[CoveredSite, str]]:
        known = self._programs.get(record.program)
        for site in record.sites:
            place, each = (site.lines, site.what), _seen(site)
            if known is not None:
                for one, other in zip(each, known.get(place, [Seen(0)] * len(each)), strict=True):
                    yield from ((site, why) for why in _lacking(site.what, one, other))
                continue
            line = self._lines.get(site.lines[0], Seen(0)) if site.lines else Seen.RAN
            judged = self._places.get(place)
            together = reduce(operator.or_, each, Seen(0))
            yield from ((site, why) for why in _lacking_elsewhere(site.what, together, judged, line))


def _seen(site: CoveredSite) -> list[Seen]:
    return [Seen(one) for one in bytes.fromhex(site.seen)]


def _lacking(what: str, own: Seen, judged: Seen) -> Iterator[str]:
    """For one instruction or loop header of the same build."""
    if what == LOOP:
        for trips, count in ((Seen.ONE_TRIP, "exactly one iteration"), (Seen.TWO_TRIPS, "exactly two iterations")):
            if own & trips and not judged & trips:
                yield f"its loop never ran {count}"
        if own & _MANY and not judged & _MANY:
            yield _MANY_TRIPS
    elif own & Seen.RAN and not judged & Seen.RAN:
        yield "it never ran" if what != "bra" else _BRANCH
    elif own & ~judged & (Seen.SKIPPED | Seen.FIRST | Seen.SECOND):
        yield _BRANCH


_BRANCH = "its branch never went this way"
_MANY_TRIPS = "its loop never ran more than two iterations"


def _lacking_elsewhere(what: str, own: Seen, judged: Seen | None, line: Seen) -> Iterator[str]:
    """For all instructions of a kind at a place, in other builds. There a condition may be inverted, or removed with
    its loop because a size is constant, and other instructions may do the line's work."""
    if what == LOOP:
        if judged is not None and own & _MANY and not judged & _MANY and judged & _TRIPS:
            yield _MANY_TRIPS
    elif own & (Seen.RAN | Seen.SKIPPED) and not line & (Seen.RAN | Seen.SKIPPED):
        yield "it never ran"
    elif judged and any(own & both == both and judged & both != both for both in _PAIRS if what in ("bra", "selp")):
        yield _BRANCH


# -- running cases --

_CHECKS = tuple(one for one in records.ALL_CHECKS if one is not records.Check.COUNTERS)
JUDGE = "tilewright.verify.judging:judge"
CALL = "tilewright.verify.judging:call_alone"
_JUDGE_SECONDS = 120.0
_WATCH_SECONDS = 120.0
# Sums of floats in a nondeterministic order: an atomic addition, or a compare-and-swap that may be one.
_FLOAT_SUMS = re.compile(r"\b(?:atom|red)\.[\w.:]*(?:add[\w.:]*\.(?:b?f16(?:x2)?|f32|f64)\b|cas\b)")


MOST_RUNS = 12
MOST_SECONDS = 4.0

Attempt = Callable[[Case], Evidence | None]
Located = Crashed | WrongValues


@dataclass(frozen=True)
class Right:
    result: CaseResult


@dataclass(frozen=True)
class NotRun:
    """Nothing was compared. `result` is None where the case proves nothing."""

    result: CaseResult | None
    message: str = ""


@dataclass(frozen=True)
class Wrong:
    evidence: Evidence


CaseOutcome = Right | NotRun | Wrong


@dataclass(frozen=True)
class _RanRight:
    """One run of a case with right results. `varying` are those that differed between calls."""

    device: str
    error_ratio: float
    varying: tuple[str, ...]
    others: tuple[tuple[records.ReturnedTensor, ...], ...] = ()  # of other schedules, not judged yet
    coverage: tuple[records.CoverageRecord, ...] = ()
    digest: Digest | None = None


class Trial:
    """Runs one candidate's cases, and records results and notes."""

    def __init__(self, candidate: Candidate, judges: Judges, times: Times) -> None:
        self.candidate = candidate
        self.results: list[CaseResult] = []
        self.notes: list[str] = []
        self.coverage = Coverage()  # of right cases
        self.reference_problem: ReferenceProblem | None = None
        self._refused_cases: list[Case] = []  # by the reference
        self._refusals: list[str] = []  # the notes on them
        self._judges = judges
        self._times = times

    @property
    def right_cases(self) -> tuple[Case, ...]:
        return tuple(one.case for one in self.results if one.status is CaseStatus.RIGHT)

    def note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)

    def _note_refusal(self, case: Case, problem: ReferenceProblem) -> None:
        """Note that the reference fails: at which sizes, or on which kinds of values."""
        self._refused_cases.append(case)
        at = dict.fromkeys(sizes_text(one) for one in self._refused_cases if one.values == TASK)
        kinds = dict.fromkeys(one.values for one in self._refused_cases if sizes_text(one) not in at)
        self.notes = [one for one in self.notes if one not in self._refusals]
        self._refusals = [f"the reference itself fails at {one}" for one in at]
        if kinds:
            why = str(problem).removeprefix("the reference failed: ").partition(" (line ")[0]
            self._refusals.append(f"the reference itself fails on values of these kinds: {', '.join(kinds)} ({why})")
        self.notes += self._refusals

    # -- one case --

    def job(self, case: Case, device: Device, how: records.Emulation | None) -> Job | CaseOutcome:
        """The case evaluated and built, to be emulated as `how` says or run on a GPU; or why it cannot run."""
        evaluation = self.candidate.evaluate(case, device.profile)
        if isinstance(evaluation, records.BadPlan):
            return Wrong(evaluation)
        if isinstance(evaluation, Refused):
            return NotRun(CaseResult(case, CaseStatus.DECLINED, ""), str(evaluation.problem))
        built = self.candidate.build_all([evaluation])
        if isinstance(built, records.NotBuilt):
            return Wrong(built)
        job = self.candidate.job(case, evaluation, built[0], how)
        return Wrong(job) if isinstance(job, records.BadPlan) else job

    def run(
        self, case: Case, device: Device, *, emulated: bool, schedules: int = 1, most_instructions: int | None = None
    ) -> CaseOutcome:
        """Evaluate, build, run and judge one case."""
        start = time.monotonic()
        budget = most_instructions or instruction_budget(self.candidate.task, case)
        how = records.Emulation(_CHECKS, schedules, case.seed, budget) if emulated else None
        job = self.job(case, device, how)
        if not isinstance(job, Job):
            return job
        if not emulated:
            task = self.candidate.task
            timed = case.sizes == task.sizes and case.values == timed_values(task)
            shares = self._judges.shares(task, case)
            job = replace(job, checked=True, share=shares, digests=job.returns if timed else ())
        right = self._ran(case, device, job)
        if not isinstance(right, _RanRight):
            return right
        unstable = self._other_wrong(case, job, right) or self._unstable(case, right.varying, job)
        if unstable is None and right.varying and not emulated:
            # Two calls differ and the second was judged; the first, on clean memory, must be right too.
            first = self._ran(case, device, replace(job, checked=False))
            unstable = None if isinstance(first, _RanRight) else first
        if unstable is not None:
            return unstable
        self.coverage.add(right.coverage)
        seconds = time.monotonic() - start
        result = CaseResult(case, CaseStatus.RIGHT, right.device, right.error_ratio, seconds, emulated, right.digest)
        return Right(result)

    def _ran(self, case: Case, device: Device, job: Job) -> _RanRight | CaseOutcome:
        """Run and judge a job. Not run where no reference can judge it, or the reference fails outside the task's
        values."""
        task = self.candidate.task
        judge = self._judges.of(task, case)
        judgement: Judgement | None = None
        start = time.monotonic()
        try:
            if judge is None:
                execution = device.execute(job)
            else:
                request = JudgeRequest(task, case, (), job.inputs)
                execution, judgement = judge.call_on_run(device, job, JUDGE, request, Judgement, _JUDGE_SECONDS)
        except ReferenceProblem as problem:
            if case.sizes == task.sizes and case.values == TASK:
                raise
            self.reference_problem = problem
            self._note_refusal(case, problem)
            return NotRun(None)
        finally:
            judged_s = judgement.seconds if judgement is not None else 0.0
            self._times.judge_s += judged_s
            self._times.run_s += time.monotonic() - start - judged_s
        if judgement is not None and judgement.not_opened and job.share:
            return self._ran(case, device, replace(job, share=False))  # send the results through this process instead
        refused = self.refused(case, execution)
        if isinstance(refused, Wrong) and judge is not None and not self._is_taken(judge, case, job):
            return NotRun(None)
        return refused or self._judged(case, execution, judgement)

    def _is_taken(self, judge: AnyReference, case: Case, job: Job) -> bool:
        """Whether the reference takes what a kernel faulted on; noted where it does not."""
        task = self.candidate.task
        if case.sizes == task.sizes and case.values == TASK:
            return True
        try:
            judge.call(CALL, JudgeRequest(task, case, (), job.inputs), Judgement, _JUDGE_SECONDS)
        except ReferenceProblem as problem:
            self.reference_problem = problem
            self._note_refusal(case, problem)
            return False
        return True

    def _judged(self, case: Case, execution: Execution, judgement: Judgement | None) -> _RanRight | CaseOutcome:
        assert isinstance(execution, Completed)
        self._note_emulated(execution.emulated)
        if judgement is None or not judgement.telling:
            return NotRun(None)
        if judgement.not_judged:
            self.note(f"not judged at {sizes_text(case)}: {judgement.not_judged}")
            return NotRun(None)
        if judgement.note:
            self.note(f"at {sizes_text(case)}: {judgement.note}")
        if judgement.wrong:
            return Wrong(WrongValues(case, judgement.wrong))
        varying = execution.emulated.varying if execution.emulated else execution.differing
        coverage = execution.emulated.coverage if execution.emulated else ()
        digest = next(iter(execution.digests), None)
        others = execution.other_outputs
        return _RanRight(execution.device, judgement.error_ratio, varying, others, coverage, digest)

    def _other_wrong(self, case: Case, job: Job, right: _RanRight) -> CaseOutcome | None:
        """Whether another schedule's results are wrong, where the first one's are right."""
        judge = self._judges.of(self.candidate.task, case)
        if judge is None:
            return None
        for outputs in right.others:
            request = JudgeRequest(self.candidate.task, case, outputs, job.inputs)
            other: Judgement = judge.call(JUDGE, request, Judgement, _JUDGE_SECONDS)
            self._times.judge_s += other.seconds
            if other.wrong:
                return Wrong(records.Unstable(case, right.varying, wrong=other.wrong))
        return None

    def _note_emulated(self, ran: records.EmulatedRun | None) -> None:
        for sentence in ran.incomplete if ran is not None else ():
            self.note(f"not checked to the end: {sentence}")
        for finding in ran.harmless if ran is not None else ():
            self.note(f"{finding.kernel}, line {finding.line}: {finding.kind.value}; no result depends on it")

    def watch(self, case: Case, device: Device) -> CaseOutcome | None:
        """What a sanitizer on the GPU finds in a case; None where nothing. Noted where there is no sanitizer."""
        job = self.job(case, device, None)
        if not isinstance(job, Job):
            return job
        limits = replace(job.limits, seconds=_WATCH_SECONDS)
        execution = self.candidate.execute(device, replace(job, returns=(), limits=limits, watch=records.Watch.FAULTS))
        if isinstance(execution, Completed) and execution.not_watched:
            self.note(f"not checked by a sanitizer: {execution.not_watched}")
        return self.refused(case, execution)

    def refused(self, case: Case, execution: Execution) -> CaseOutcome | None:
        """The outcome where an execution faulted or has findings."""
        if isinstance(execution, records.Faulted):
            if execution.kind is records.FaultKind.UNSUITABLE:
                return NotRun(
                    CaseResult(case, CaseStatus.NOT_EMULABLE, execution.device, emulated=True), execution.message
                )
            return Wrong(self._crash(case, execution, execution.findings))
        if execution.findings:
            return Wrong(self._crash(case, execution.findings[0], execution.findings))
        return None

    def _crash(
        self, case: Case, fault: records.Faulted | records.FindingRecord, findings: tuple[records.FindingRecord, ...]
    ) -> Crashed:
        kind, message = (fault.kind, fault.message) if isinstance(fault, records.Faulted) else (None, str(fault))
        lines = self.candidate.file.text.splitlines()
        named = {one for finding in findings for one in (finding.line, finding.other_line, finding.launch_line) if one}
        shown = tuple((one, lines[one - 1]) for one in sorted(named | {fault.line or 0}) if 0 < one <= len(lines))
        return Crashed(case, kind, message, fault.kernel, fault.line, findings, shown)

    def _unstable(self, case: Case, varying: tuple[str, ...], job: Job) -> CaseOutcome | None:
        """Results that differ between runs are a fault, except for the last bits of float sums by atomics. All of them
        were judged, so the difference is within what the order of a sum explains."""
        if not varying:
            return None
        atomics = _FLOAT_SUMS.search(job.ptx or "") is not None
        floats = {one.name for one in self.candidate.task.outputs if one.dtype.is_float}
        floats |= {one.name for one in self.candidate.task.tensors if one.in_place and one.dtype.is_float}
        if atomics and set(varying) <= floats:
            names = ", ".join(varying)
            self.note(f"the last bits of {names} differ from run to run: it is added up by atomic operations")
            return None
        return Wrong(records.Unstable(case, varying))


def sizes_text(case: Case) -> str:
    return str(Case(case.sizes, 0, given=case.given, layouts=case.layouts, leading=case.leading)).removesuffix(
        ", seed 0"
    )


def ran_out(evidence: Evidence) -> bool:
    """Whether a run exceeded its budget, which at the task's own sizes does not mean that it is wrong."""
    return isinstance(evidence, Crashed) and evidence.ran_out


# -- shrinking a failing case --


def smallest_failing(task: records.Task, case: Case, evidence: Located, attempt: Attempt) -> Located:
    """Shrink one varying dimension after another while `attempt` finds the same kind of fault."""
    deadline = time.monotonic() + MOST_SECONDS
    runs = 0
    for dimension in sorted(task.free, key=lambda one: -case.sizes[one.name]):
        for size in _smaller(dimension, case.sizes[dimension.name]):
            if runs >= MOST_RUNS or time.monotonic() > deadline:
                return evidence
            sizes = task.complete({**case.sizes, dimension.name: size})
            if not task.is_sound(sizes):
                continue
            candidate = replace(case, sizes={**case.sizes, **sizes})
            found = attempt(candidate)
            runs += 1
            if found is not None and _looks(found) == _looks(evidence):
                assert isinstance(found, (Crashed, WrongValues))
                case, evidence = candidate, found
                break
    return evidence


def _looks(evidence: Evidence) -> Hashable:
    """The pattern must stay: one wrong element of one says less than the last three of each row."""
    if isinstance(evidence, WrongValues):
        return tuple((one.output, one.pattern, one.wrong > 1) for one in evidence.outputs)
    if isinstance(evidence, Crashed):
        return evidence.fault, frozenset(one.kind for one in evidence.findings)
    return type(evidence).__name__


def _smaller(dimension: records.Dimension, size: int) -> Iterator[int]:
    wanted = (1, 2, size // 8, size // 4, size // 2) if dimension.varies else ()
    yield from dict.fromkeys(smaller for one in wanted if (smaller := dimension.permitted(one)) < size)
