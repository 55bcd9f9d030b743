"""One candidate before the referee: each case run and judged in turn, and what became of it."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace

from tilewright.devices.protocol import Device
from tilewright.kernel_file import Evaluation, Refused
from tilewright.records import (
    BadPlan,
    Build,
    Case,
    CaseResult,
    CaseStatus,
    Completed,
    Crashed,
    Emulation,
    Evidence,
    Execution,
    Faulted,
    FaultKind,
    FindingKind,
    FindingRecord,
    InputTensor,
    NotBuilt,
    Unstable,
    Watch,
    WrongValues,
)
from tilewright.reference import ReferenceProblem
from tilewright.verify.distributions import TASK
from tilewright.verify.judging_records import Judgement, JudgeRequest
from tilewright.verify.running import Candidate, Judges, Times, instruction_budget

JUDGE = "tilewright.verify.judging:judge"
_JUDGE_SECONDS = 120.0
_WATCH_SECONDS = 120.0
_ATOMICS = re.compile(r"\b(?:atom|red)\.[\w.:]*(?:add|cas|exch)[\w.:]*")


@dataclass(frozen=True)
class Right:
    result: CaseResult


@dataclass(frozen=True)
class NotRun:
    """Nothing was compared. `result` is None where the case itself proves nothing."""

    result: CaseResult | None
    message: str = ""


@dataclass(frozen=True)
class Wrong:
    evidence: Evidence


Outcome = Right | NotRun | Wrong


@dataclass(frozen=True)
class Prepared:
    """A case with its build, ready to run on one kind of device."""

    case: Case
    evaluation: Evaluation
    built: Build | None


class Trial:
    """Runs one candidate's cases. Remembers what was right, and what there is to note."""

    def __init__(self, candidate: Candidate, judges: Judges, times: Times) -> None:
        self.candidate = candidate
        self.results: list[CaseResult] = []
        self.notes: list[str] = []
        self.reference_problem: ReferenceProblem | None = None
        self._judges = judges
        self._times = times

    @property
    def right_cases(self) -> tuple[Case, ...]:
        return tuple(one.case for one in self.results if one.status is CaseStatus.RIGHT)

    def note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)

    # -- one case --

    def prepare(self, case: Case, device: Device) -> Prepared | Outcome:
        evaluation = self.candidate.evaluate(case, device.profile)
        if isinstance(evaluation, BadPlan):
            return Wrong(evaluation)
        if isinstance(evaluation, Refused):
            return NotRun(CaseResult(case, CaseStatus.DECLINED, ""), str(evaluation.problem))
        built = self.candidate.build_all([evaluation])
        return Wrong(built) if isinstance(built, NotBuilt) else Prepared(case, evaluation, built[0])

    def run(self, case: Case, device: Device, *, emulated: bool, schedules: int = 1, twice: bool = False) -> Outcome:
        """Evaluate, build, run and judge one case; `twice` runs it again and judges that too where it differs."""
        start = time.monotonic()
        prepared = self.prepare(case, device)
        if not isinstance(prepared, Prepared):
            return prepared
        budget = instruction_budget(self.candidate.task, case)
        how = Emulation(schedules=schedules, instruction_budget=budget) if emulated else None
        job = self.candidate.job(case, prepared.evaluation, prepared.built, how)
        if isinstance(job, BadPlan):
            return Wrong(job)
        execution = self.candidate.execute(device, job)
        refused = self._refused(case, execution)
        if refused is not None:
            return refused
        assert isinstance(execution, Completed)
        for sentence in execution.emulated.incomplete if execution.emulated else ():
            self.note(f"not checked to the end: {sentence}")
        judgement = self._judge(case, job.inputs, execution)
        if judgement is None or not judgement.telling:
            return NotRun(None)
        if judgement.wrong:
            return Wrong(WrongValues(case, judgement.wrong))
        varying = execution.emulated.varying if execution.emulated else ()
        if twice:
            again = self.candidate.execute(device, job)
            varying = _differing(execution, again)
            refused = self._refused(case, again) or (self._judged_again(case, job.inputs, again) if varying else None)
            if refused is not None:
                return refused
        unstable = self._unstable(case, varying, prepared)
        if unstable is not None:
            return unstable
        seconds = time.monotonic() - start
        return Right(CaseResult(case, CaseStatus.RIGHT, execution.device, judgement.error_ratio, seconds, emulated))

    def watch(self, case: Case, device: Device) -> Outcome | None:
        """What a sanitizer on the GPU finds in a case, None where nothing; a note where there is no sanitizer."""
        prepared = self.prepare(case, device)
        if not isinstance(prepared, Prepared):
            return None
        job = self.candidate.job(case, prepared.evaluation, prepared.built, None)
        if isinstance(job, BadPlan):
            return Wrong(job)
        limits = replace(job.limits, seconds=_WATCH_SECONDS)
        execution = self.candidate.execute(device, replace(job, returns=(), limits=limits, watch=Watch.FAULTS))
        if isinstance(execution, Completed) and execution.not_watched:
            self.note(f"not checked by a sanitizer: {execution.not_watched}")
        return self._refused(case, execution)

    def _judged_again(self, case: Case, inputs: tuple[InputTensor, ...], execution: Execution) -> Outcome | None:
        assert isinstance(execution, Completed)
        judgement = self._judge(case, inputs, execution)
        return Wrong(WrongValues(case, judgement.wrong)) if judgement is not None and judgement.wrong else None

    def _refused(self, case: Case, execution: Execution) -> Outcome | None:
        """What an execution says before anything is compared."""
        if isinstance(execution, Faulted):
            if execution.kind is FaultKind.UNSUITABLE:
                return NotRun(
                    CaseResult(case, CaseStatus.NOT_EMULABLE, execution.device, emulated=True), execution.message
                )
            return Wrong(self._crash(case, execution))
        if execution.findings:
            first = execution.findings[0]
            return Wrong(self._crashed(case, None, str(first), first.kernel, first.line, execution.findings))
        return None

    def _crash(self, case: Case, fault: Faulted) -> Crashed:
        return self._crashed(case, fault.kind, fault.message, fault.kernel, fault.line, fault.findings)

    def _crashed(
        self,
        case: Case,
        kind: FaultKind | None,
        message: str,
        kernel: str | None,
        line: int | None,
        findings: tuple[FindingRecord, ...],
    ) -> Crashed:
        lines = self.candidate.file.text.splitlines()
        named = {one for finding in findings for one in (finding.line, finding.other_line, finding.launch_line) if one}
        shown = tuple((one, lines[one - 1]) for one in sorted(named | {line or 0}) if 0 < one <= len(lines))
        return Crashed(case, kind, message, kernel, line, findings, shown)

    def _judge(self, case: Case, inputs: tuple[InputTensor, ...], execution: Completed) -> Judgement | None:
        """None where nobody can judge it, or where the reference cannot take a case that the task does not ask for."""
        start = time.monotonic()
        task = self.candidate.task
        judge = self._judges.of(task, case)
        if judge is None:
            return None
        request = JudgeRequest(task, case, execution.outputs, inputs)
        try:
            answer: Judgement = judge.call(JUDGE, request, Judgement, _JUDGE_SECONDS)
        except ReferenceProblem as problem:
            if case.sizes == task.sizes and case.values == TASK:
                raise
            self.reference_problem = problem
            self.note(f"the reference itself fails at {sizes_text(case)}")
            return None
        finally:
            self._times.judge_s += time.monotonic() - start
        return answer

    def _unstable(self, case: Case, varying: tuple[str, ...], prepared: Prepared) -> Outcome | None:
        """Results that differ between schedules are a fault, but for the last bits of sums made with atomics."""
        if not varying:
            return None
        atomics = prepared.built is not None and _ATOMICS.search(prepared.built.ptx) is not None
        floats = {one.name for one in self.candidate.task.outputs if one.dtype.is_float}
        floats |= {one.name for one in self.candidate.task.tensors if one.in_place and one.dtype.is_float}
        if atomics and set(varying) <= floats:
            names = ", ".join(varying)
            self.note(f"the last bits of {names} differ from run to run: it is added up by atomic operations")
            return None
        return Wrong(Unstable(case, varying))


def sizes_text(case: Case) -> str:
    return ", ".join(f"{name}={size}" for name, size in case.sizes.items())


def _differing(first: Completed, second: Execution) -> tuple[str, ...]:
    if not isinstance(second, Completed):
        return ()
    pairs = zip(first.outputs, second.outputs, strict=True)
    return tuple(mine.name for mine, other in pairs if mine.content != other.content)


def ran_out(evidence: Evidence) -> bool:
    """Whether a run spent what it may take: at the task's own sizes that says it is large, not that it is wrong."""
    if not isinstance(evidence, Crashed):
        return False
    budget = any(one.kind is FindingKind.BUDGET for one in evidence.findings)
    return budget or evidence.fault in (FaultKind.TIME, FaultKind.MEMORY)
