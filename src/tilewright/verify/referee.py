"""`Referee`: says whether a kernel file computes what a task asks for.

It holds a task, its reference and the devices, and judges one candidate after another by the same cases. Candidates and
reference run in children of their own; nothing a candidate does is taken as anything but an answer or a fault.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property

from tilewright import records
from tilewright.devices.protocol import Device
from tilewright.kernel_file import Choice, Evaluation, KernelFile, Refused
from tilewright.kernel_file.supported_sizes import size_limits
from tilewright.records import BadPlan, Case, CaseStatus, Evidence, NotBuilt, Rejected, Unsupported, Verdict
from tilewright.reference import AnyReference
from tilewright.verify.call_forms import other_forms
from tilewright.verify.candidate import Candidate, Judges, Times, instruction_budget, is_huge, read_kernel
from tilewright.verify.case_sizes import has_own_size, shorter
from tilewright.verify.case_work import OWN_WORK, is_small
from tilewright.verify.cases import again_values, own_cases, plan_cases, value_cases, value_sizes
from tilewright.verify.distributions import TASK
from tilewright.verify.independence import independent_dimensions
from tilewright.verify.least_work import impossible, needed_inputs
from tilewright.verify.need_sizes import (
    Accepts,
    accepted_sizes,
    paired_sizes,
    turning_sizes,
    within_need,
)
from tilewright.verify.own_trial import FURTHER_BUDGET, OwnTrial
from tilewright.verify.scheduled import scheduled_cases, several_of_each
from tilewright.verify.trial import CaseOutcome, NotRun, Right, Trial, Wrong, ran_out, sizes_text, smallest_failing

Say = Callable[[str], None]
InVain = Callable[[], Evidence | None]

_PREFLIGHT = 3  # cases emulated before a GPU is touched
_SCHEDULES = 3
_MORE_INSTRUCTIONS = 4  # times what is usual for a case
_FEW = 3  # cases that a file must take, else sizes are looked for that it takes
_MOST_MOVED = 16  # cases that a file declines, judged at sizes that it takes
_MOST_TURNS = 12
_MOST_PAIRS = 4  # ways that only two dimensions together lead to
_SHOWN_RIGHT = 8
_OF_HUGE = 2  # cases at own sizes, where each takes seconds: the task's own values, and others that hide less


def _silent(_: str) -> None:
    pass


class Referee:
    """The referee of one task. The devices and the references are the caller's: closing this does not close them.

    `gpu_reference` is the reference where the GPU is; it is not needed where `reference` sees the GPU itself.
    """

    def __init__(
        self,
        task: records.Task,
        reference: AnyReference,
        *,
        emulator: Device,
        gpu: Device | None = None,
        gpu_reference: AnyReference | None = None,
        say: Say = _silent,
    ) -> None:
        self._task = task
        self._judges = Judges(reference, gpu_reference)
        self._emulator = emulator
        self._gpu = gpu
        self._say = say
        self.times = Times()  # of the last verdict
        self._in_vain: InVain | None = None  # in this one
        self._further: tuple[str, ...] | None = None  # kinds of values, once the reference was asked

    def __enter__(self) -> Referee:
        """A reference on this machine's GPU gets ready to judge there while the first candidate is written."""
        smallest = next(iter(plan_cases(self._task)), None)
        if self._gpu is not None and smallest is not None:
            threading.Thread(target=self._judges.warm_up, args=(self._task, smallest), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def judge(self, file: KernelFile | str, choice: Choice | None = None, *, in_vain: InVain | None = None) -> Verdict:
        """The whole verdict, on the file as it stands or with a choice of its constants: then something must have been
        run with that choice, for where it does not hold the file is run as dispatch would choose.

        `in_vain` is asked before a GPU runs the task's own sizes, once all smaller cases were right; what it answers is
        what the file is rejected for.
        Raises `ToolchainError`, `DeviceError` and `ReferenceProblem` only.
        """
        self.times = Times()
        if isinstance(file, str):
            read = read_kernel(file, self._task)
            if isinstance(read, BadPlan):
                return Rejected(read)
            file = read
        self._in_vain = in_vain
        candidate = Candidate(file, self._task, choice, self.times)
        trial = Trial(candidate, self._judges, self.times)
        refused = self._refused_at_own_sizes(candidate)
        if refused is not None:
            return Rejected(refused)
        cases = self._cases(candidate)
        not_built = self._build_ahead(candidate, cases)
        if not_built is not None:
            return Rejected(not_built)
        return self._emulate(trial, cases)

    @cached_property
    def needed_inputs(self) -> tuple[str, ...]:
        """The task's inputs that no kernel can leave unread."""
        return needed_inputs(self._task, self._judges.here)

    # -- before anything runs --

    def _refused_at_own_sizes(self, candidate: Candidate) -> Evidence | None:
        """The file must take the task's own call, with outputs as the task has them, build for it and fit the GPU."""
        own = Case(self._task.sizes, 1)
        evaluation = candidate.evaluate(own, self._profile_device.profile, strictly=True)
        if isinstance(evaluation, BadPlan):
            return evaluation
        if isinstance(evaluation, Refused):
            return records.Declined(own, str(evaluation.problem))
        built = candidate.build_all([evaluation])
        if isinstance(built, NotBuilt):
            return built
        bound = candidate.bound(own, evaluation, built[0])
        return bound if isinstance(bound, BadPlan) else None

    @property
    def _profile_device(self) -> Device:
        return self._gpu or self._emulator

    def _takes(self, candidate: Candidate, case: Case, *, strictly: bool = False) -> bool:
        return isinstance(candidate.evaluate(case, self._emulator.profile, strictly=strictly), Evaluation)

    def _cases(self, candidate: Candidate) -> list[Case]:
        """The task's cases, and for those that the file declines others that it takes."""
        cases = list(plan_cases(self._task))
        small = is_small(self._task, self._task.sizes, OWN_WORK)
        if small:
            cases += own_cases(self._task) if not cases else own_cases(self._task)[:1]
        if not cases and not self._varies:
            return cases
        accepts = lambda sizes: self._takes(candidate, Case(sizes, 1), strictly=True)  # noqa: E731
        taken = [case for case in cases if self._takes(candidate, case, strictly=True)]
        few = len({tuple(case.sizes.items()) for case in taken}) < _FEW
        if self._varies:
            turning = self._turning(candidate)
            for case in (*self._moved(cases, taken, accepts), *turning, *(self._found(accepts) if few else ())):
                if not any((one.sizes, one.values) == (case.sizes, case.values) for one in cases):
                    cases.append(case)
                    taken.append(case)
        forms = other_forms(self._task, candidate.file.compiled, taken)
        return [*cases, *forms, *value_cases(self._task, self._further_values(), accepts, taken)]

    def _moved(self, cases: Sequence[Case], taken: Sequence[Case], accepts: Accepts) -> Iterator[Case]:
        """Cases that the file declines at sizes that it takes, for the sake of their values."""
        for case in [one for one in cases if one not in taken][:_MOST_MOVED]:
            moved = within_need(self._task, case, accepts)
            if moved is not None:
                yield moved

    def _turning(self, candidate: Candidate) -> Iterator[Case]:
        """Where the plan turns to other launches, constants or blocks, or declines: each side of every turn."""

        def way(sizes: dict[str, int]) -> Hashable:
            found = candidate.evaluate(Case(sizes, 1), self._emulator.profile, strictly=True)
            return found.way if isinstance(found, Evaluation) else None

        turns = itertools.islice(turning_sizes(self._task, way), _MOST_TURNS)
        pairs = itertools.islice(paired_sizes(self._task, way), _MOST_PAIRS)
        for number, sizes in enumerate((*turns, *pairs)):
            yield Case(sizes, 401 + number)

    def _found(self, accepts: Accepts) -> Iterator[Case]:
        """The smallest cases that the file takes."""
        for number, sizes in enumerate(accepted_sizes(self._task, accepts)):
            for values in (TASK, "impulse"):
                yield Case(sizes, 201 + number, values)

    def _further_values(self) -> tuple[str, ...]:
        """The kinds of values beyond the usual that the reference takes; it is asked once."""
        if self._further is None:
            sizes = value_sizes(self._task, lambda sizes: True)
            self._further = self._judges.further_values(self._task, sizes) if sizes is not None else ()
        return self._further

    @property
    def _varies(self) -> bool:
        return any(one.varies for one in self._task.dimensions)

    def _build_ahead(self, candidate: Candidate, cases: Sequence[Case]) -> NotBuilt | BadPlan | None:
        """Every build that the cases need, on all cores at once."""
        self._say("building")
        evaluations = []
        for case in cases:
            evaluation = candidate.evaluate(case, self._emulator.profile)
            if isinstance(evaluation, BadPlan):
                return evaluation
            if isinstance(evaluation, Evaluation):
                evaluations.append(evaluation)
        built = candidate.build_all(evaluations)
        return built if isinstance(built, NotBuilt) else None

    # -- running --

    def _emulate(self, trial: Trial, cases: Sequence[Case]) -> Verdict:
        """The cases on the emulator, few of them where a GPU does the rest."""
        emulated = 0
        left: list[Case] = []
        scheduled = scheduled_cases(trial.candidate, cases, self._emulator.profile)
        preflight = scheduled | several_of_each(self._task, cases)
        for number, case in enumerate(cases):
            if self._gpu is not None and emulated >= _PREFLIGHT and number not in preflight:
                left.append(case)
                continue
            schedules = _SCHEDULES if number in scheduled else 1
            self._say(f"emulating {case}")
            outcome = trial.run(case, self._emulator, emulated=True, schedules=schedules)
            less: Case | None = case if case.sizes != self._task.sizes and has_own_size(self._task, case) else None
            if (
                less is None
                and case.sizes != self._task.sizes
                and isinstance(outcome, Wrong)
                and ran_out(outcome.evidence)
            ):
                # Tiles much larger than the case take many instructions; an endless loop takes any number.
                more = _MORE_INSTRUCTIONS * instruction_budget(self._task, case)
                outcome = trial.run(case, self._emulator, emulated=True, schedules=schedules, most_instructions=more)
            while less is not None and isinstance(outcome, Wrong) and ran_out(outcome.evidence):
                less = shorter(self._task, less)
                if less is not None:
                    outcome = trial.run(less, self._emulator, emulated=True)
            if case.sizes == self._task.sizes and isinstance(outcome, Wrong) and ran_out(outcome.evidence):
                outcome = NotRun(
                    records.CaseResult(
                        case, CaseStatus.TOO_LARGE, f"{self._emulator.profile.name} (emulated)", emulated=True
                    )
                )
            if isinstance(outcome, NotRun) and _not_emulable(outcome):
                if self._gpu is not None:
                    trial.note(f"not emulated: {outcome.message}")
                    return self._on_gpu(trial, cases, watched=True)
                return Unsupported(f"not emulable here: {outcome.message}")
            rejected = self._count(trial, outcome, self._emulator, schedules)
            if rejected is not None:
                return rejected
            emulated += isinstance(outcome, Right)
        return self._on_gpu(trial, left) if self._gpu is not None else self._passed(trial)

    def _on_gpu(self, trial: Trial, cases: Sequence[Case], *, watched: bool = False) -> Verdict:
        """The remaining cases and the task's own sizes on the GPU; `watched`: under a sanitizer too, for nothing else
        has looked for faults that leave the results right."""
        assert self._gpu is not None
        further = again_values(self._task, self._further_values(), whole=True)
        own = [case for case in own_cases(self._task, further) if self._judges.of(self._task, case) is not None]
        own = own[:_OF_HUGE] if own and is_huge(self._task, own[0]) else own
        if not own:
            trial.note("not judged at the task's own sizes: their tensors are too large to carry to the referee")
        small = [one for one in cases if one.sizes != self._task.sizes]
        ended = (
            self._run_all(trial, small, self._gpu) or self._ended_in_vain(trial) or self._run_all(trial, own, self._gpu)
        )
        return ended or (self._watch(trial, self._gpu) if watched else None) or self._passed(trial)

    def _run_all(self, trial: Trial, cases: Sequence[Case], gpu: Device) -> Verdict | None:
        """Cases on the GPU, up to the first that ends the trial."""
        for case in cases:
            self._say(f"running {case} on {gpu.profile.name}")
            outcome = trial.run(case, gpu, emulated=False)
            if isinstance(outcome, NotRun) and _not_emulable(outcome):
                return Unsupported(outcome.message)
            rejected = self._count(trial, outcome, gpu, 1)
            if rejected is not None:
                return rejected
        return None

    def _ended_in_vain(self, trial: Trial) -> Rejected | None:
        vain = self._in_vain() if self._in_vain is not None else None
        return Rejected(vain, _right(trial)) if vain is not None else None

    def _watch(self, trial: Trial, gpu: Device) -> Rejected | None:
        """The smallest and the largest small case that was right, once more under a sanitizer."""
        right = [case for case in trial.right_cases if case.sizes != self._task.sizes] or list(trial.right_cases[:1])
        for case in right[:1] + right[1:][-1:]:
            self._say(f"looking for faults at {case} on {gpu.profile.name}")
            outcome = trial.watch(case, gpu)
            if isinstance(outcome, Wrong):
                return Rejected(outcome.evidence, _right(trial))
        return None

    def _count(self, trial: Trial, outcome: CaseOutcome, device: Device, schedules: int) -> Rejected | None:
        """Keep what was right or not run; a failing case ends the trial, shrunk as far as it goes."""
        if isinstance(outcome, Right):
            trial.results.append(outcome.result)
        elif isinstance(outcome, NotRun):
            if outcome.result is not None:
                trial.results.append(outcome.result)
        else:
            right = _right(trial)
            return Rejected(self._shrunk(trial, outcome.evidence, device, schedules), right)
        return None

    def _shrunk(self, trial: Trial, evidence: Evidence, device: Device, schedules: int) -> Evidence:
        """The smallest case found with a fault of the same kind, and what was right around it."""
        if not isinstance(evidence, (records.Crashed, records.WrongValues)) or ran_out(evidence):
            return evidence
        right: list[Case] = []

        def attempt(smaller: Case) -> Evidence | None:
            outcome = trial.run(smaller, device, emulated=device is self._emulator, schedules=schedules)
            if isinstance(outcome, Right):
                right.append(smaller)
            return outcome.evidence if isinstance(outcome, Wrong) else None

        self._say(f"looking for the smallest case like {evidence.case}")
        smallest = smallest_failing(self._task, evidence.case, evidence, attempt)
        if not isinstance(smallest, records.WrongValues):
            return smallest
        return replace(smallest, right_cases=(*right, *trial.right_cases)[:_SHOWN_RIGHT])

    # -- the end --

    def _passed(self, trial: Trial) -> Verdict:
        results = trial.results
        if not any(one.status is CaseStatus.RIGHT for one in results):
            if trial.reference_problem is not None:
                raise trial.reference_problem
            return self._own_call_alone(trial)
        if trial.candidate.choice and not any(
            self._takes(trial.candidate, one, strictly=True) for one in trial.right_cases
        ):
            return Unsupported("the choice only holds at shapes too large to emulate here; run it on a GPU")
        limits = self._limits(trial)
        own = [one for one in results if one.case.sizes == self._task.sizes]
        if not any(one.status is CaseStatus.RIGHT for one in own):
            call = Case(self._task.sizes, 1)
            self._say("counting what it moves at the task's own sizes")
            short = impossible(trial.candidate, self._emulator, self.needed_inputs)
            if short is not None:
                return Rejected(short, tuple(one for one in results if one.status is CaseStatus.RIGHT))
            outcome = self._own_call(trial)
            if isinstance(outcome, Rejected):
                return outcome
            trial.note(outcome.note)
            if not outcome.judged and not own:
                results.append(records.CaseResult(call, CaseStatus.TOO_LARGE, ""))
            seen = outcome.is_looked_at and not outcome.judged
            return records.Passed(tuple(results), tuple(trial.notes), outcome.uncovered, outcome.unseen, limits, seen)
        return records.Passed(tuple(results), tuple(trial.notes), limits=limits)

    def _own_call_alone(self, trial: Trial) -> Verdict:
        """Of a task that has no smaller call: as much of it as can be run, with every kind of values."""
        unsupported = Unsupported("it only takes shapes too large to emulate here; run it on a GPU")
        if self._gpu is not None or plan_cases(self._task):
            return unsupported
        outcome = impossible(trial.candidate, self._emulator, self.needed_inputs) or self._own_call(trial, alone=True)
        if isinstance(outcome, records.Impossible):
            return Rejected(outcome)
        if isinstance(outcome, Rejected) or not outcome.judged:
            return outcome if isinstance(outcome, Rejected) else unsupported
        unseen = outcome.unseen or "a part of it was run, and the task has no smaller call to run whole"
        return records.Passed(tuple(trial.results), (*trial.notes, outcome.note), outcome.uncovered, unseen)

    def _own_call(self, trial: Trial, *, alone: bool = False) -> Rejected | OwnTrial:
        """Some blocks of the task's own call, and further cases until what runs there was judged somewhere."""
        further = self._further_values()
        own = OwnTrial(trial, self._emulator, self._judges.here, self._independent, further, alone=alone)
        self._say("running some blocks at the task's own sizes")
        outcome = own.sample()
        if isinstance(outcome, Wrong):
            return Rejected(outcome.evidence, _right(trial))
        if outcome is not None:
            trial.results.append(outcome)
        for case in own.further(lambda sizes: self._takes(trial.candidate, Case(sizes, 1), strictly=True)):
            self._say(f"emulating {case}, for what was judged nowhere yet")
            run = trial.run(case, self._emulator, emulated=True, most_instructions=FURTHER_BUDGET)
            if not (isinstance(run, Wrong) and ran_out(run.evidence)):
                rejected = self._count(trial, run, self._emulator, 1)
                if rejected is not None:
                    return rejected
        return own

    @cached_property
    def _independent(self) -> tuple[str, ...]:
        """The dimensions that the reference is independent in."""
        return independent_dimensions(self._task, self._judges.here)

    def _limits(self, trial: Trial) -> tuple[records.SizeLimit, ...]:
        """What the file declines of what the task promises, noted too: at further sizes, or else among the cases."""
        gpu = self._profile_device.profile

        def takes(sizes: dict[str, int]) -> bool:
            return isinstance(trial.candidate.evaluate(Case(sizes, 1), gpu), Evaluation)

        limits = size_limits(self._task, takes)
        declined = [one.case for one in trial.results if one.status is CaseStatus.DECLINED]
        by_size = [one for one in declined if one.leading or not takes(one.sizes)]
        sizes = "; ".join(dict.fromkeys(map(sizes_text, by_size)))
        others = (sizes_text(one) if one.values == TASK else one.values for one in declined if one not in by_size)
        for said in dict.fromkeys(others):
            trial.note(f"the file declines {said}")
        if limits:
            trial.note(f"{records.SizeLimit.NOTE}{records.SizeLimit.words(limits)}")
        elif sizes:
            trial.note(f"the file declines {sizes}")
        return limits


def _not_emulable(outcome: NotRun) -> bool:
    return outcome.result is not None and outcome.result.status is CaseStatus.NOT_EMULABLE


def _right(trial: Trial) -> tuple[records.CaseResult, ...]:
    return tuple(one for one in trial.results if one.status is CaseStatus.RIGHT)
