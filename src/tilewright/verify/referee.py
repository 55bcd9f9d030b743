"""`Referee`: decides whether a kernel file computes what a task asks for.

It holds a task, its reference and the devices, and judges candidates by the same cases. Candidates and the reference
run in child processes; a candidate can only return results or fault.
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
from tilewright.verify.accepted_sizes import (
    Accepts,
    accepted_sizes,
    branch_pair_sizes,
    branch_sizes,
    nearest_accepted,
)
from tilewright.verify.block_trial import FURTHER_BUDGET, BlockTrial
from tilewright.verify.candidate import Candidate, Judges, Times, instruction_budget, is_huge, read_kernel
from tilewright.verify.case_sizes import has_own_size, shorter
from tilewright.verify.case_work import OWN_WORK, is_small
from tilewright.verify.cases import (
    drawn_cases,
    full_size_cases,
    other_forms,
    plan_cases,
    resampled_values,
    value_cases,
    value_sizes,
)
from tilewright.verify.code_constants import constants_case
from tilewright.verify.distributions import TASK, seeded
from tilewright.verify.independence import independent_dimensions
from tilewright.verify.minimum_work import needed_inputs, too_little_work
from tilewright.verify.own_addresses import Followed, follow_own_call, refuted, unread, written_twice
from tilewright.verify.scheduled import scheduled_cases, several_of_each
from tilewright.verify.trial import CaseOutcome, NotRun, Right, Trial, Wrong, ran_out, sizes_text, smallest_failing

Say = Callable[[str], None]
SkipIfSlower = Callable[[], Evidence | None]

_PREFLIGHT = 3  # cases emulated before the GPU is used
_SCHEDULES = 3
# Times the usual budget of a case: tiles and blocks much larger than it need many instructions, though not without end
# as an endless loop does.
_MORE_INSTRUCTIONS = 4
_FEW = 3  # sizes that a file must accept, else more are searched
_MOST_MOVED = 16  # declined cases that are moved to accepted sizes
_MOST_BRANCH_SIZES = 12
_MOST_PAIRS = 4  # code paths that need two large dimensions
_SHOWN_RIGHT = 8
_OF_HUGE = 2  # full-size cases where each takes seconds


class Referee:
    """The referee of one task. The devices and references belong to the caller and are not closed.

    `gpu_reference` is the reference on the GPU's machine, needed unless `reference` sees the GPU itself.
    """

    def __init__(
        self,
        task: records.Task,
        reference: AnyReference,
        *,
        emulator: Device,
        gpu: Device | None = None,
        gpu_reference: AnyReference | None = None,
        say: Say = lambda _: None,
    ) -> None:
        self._task = task
        self._judges = Judges(reference, gpu_reference)
        self._emulator = emulator
        self._gpu = gpu
        self._say = say
        self.times = Times()  # of the last verdict
        self._skip_if_slower: SkipIfSlower | None = None  # for the current one
        self._further: tuple[str, ...] | None = None  # cached kinds of values
        self._followed: Followed = {}  # cached, for attempts with the same code and launches

    def __enter__(self) -> Referee:
        """Warm up a reference on this machine's GPU while the first candidate is written."""
        smallest = next(iter(plan_cases(self._task)), None)
        if self._gpu is not None and smallest is not None:
            threading.Thread(target=self._judges.warm_up, args=(self._task, smallest), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def judge(
        self, file: KernelFile | str, choice: Choice | None = None, *, skip_if_slower: SkipIfSlower | None = None
    ) -> Verdict:
        """The verdict on the file, as dispatch would run it or with a choice of tune values.

        With a choice, at least one case must have run with it; where it does not apply, dispatch decides.
        `skip_if_slower` is called before a GPU runs the task's own sizes, once all smaller cases were right; if it
        returns evidence, the file is rejected for that. Raises `ToolchainError`, `DeviceError` and `ReferenceProblem`
        only.
        """
        self.times = Times()
        if isinstance(file, str):
            read = read_kernel(file, self._task)
            if isinstance(read, BadPlan):
                return Rejected(read)
            file = read
        self._skip_if_slower = skip_if_slower
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
        """The inputs that every kernel must read."""
        return needed_inputs(self._task, self._judges.here)

    # -- planning and building --

    def _refused_at_own_sizes(self, candidate: Candidate) -> Evidence | None:
        """The file must accept the full-size call, with the task's outputs, build for it and fit the GPU."""
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

    def _takes(self, candidate: Candidate, case: Case) -> bool:
        return isinstance(candidate.evaluate(case, self._emulator.profile, strictly=True), Evaluation)

    def _acceptance(self, candidate: Candidate) -> Accepts:
        return lambda sizes: self._takes(candidate, Case(sizes, 1))

    def _cases(self, candidate: Candidate) -> list[Case]:
        cases = [*plan_cases(self._task), *drawn_cases(self._task, candidate.file.text)]
        small = is_small(self._task, self._task.sizes, OWN_WORK)
        if small:
            cases += full_size_cases(self._task) if not cases else full_size_cases(self._task)[:1]
        if not cases and not self._varies:
            return cases
        accepts = self._acceptance(candidate)
        taken = [case for case in cases if self._takes(candidate, case)]
        few = len({tuple(case.sizes.items()) for case in taken}) < _FEW
        if self._varies:
            declined = [one for one in cases if one not in taken][:_MOST_MOVED]
            moved = [near for one in declined if (near := nearest_accepted(self._task, one, accepts)) is not None]
            found = accepted_sizes(self._task, accepts) if few else ()
            smallest = [Case(sizes, 201 + n, values) for n, sizes in enumerate(found) for values in (TASK, "impulse")]
            for case in (*moved, *self._branching(candidate), *smallest):
                if not any((one.sizes, one.values) == (case.sizes, case.values) for one in cases):
                    cases.append(case)
                    taken.append(case)
        forms = other_forms(self._task, candidate.file.compiled, taken)
        return [*cases, *forms, *value_cases(self._task, self._further_values(), accepts, taken)]

    def _branching(self, candidate: Candidate) -> Iterator[Case]:
        """Cases on both sides of every size at which the plan changes launches, constants or blocks, or declines."""

        def path(sizes: dict[str, int]) -> Hashable:
            found = candidate.evaluate(Case(sizes, 1), self._emulator.profile, strictly=True)
            return found.way if isinstance(found, Evaluation) else None

        turns = itertools.islice(branch_sizes(self._task, path), _MOST_BRANCH_SIZES)
        pairs = itertools.islice(branch_pair_sizes(self._task, path), _MOST_PAIRS)
        for number, sizes in enumerate((*turns, *pairs)):
            yield Case(sizes, 401 + number)

    def _further_values(self) -> tuple[str, ...]:
        if self._further is None:
            sizes = value_sizes(self._task, lambda sizes: True)
            self._further = self._judges.further_values(self._task, sizes) if sizes is not None else ()
        return self._further

    @property
    def _varies(self) -> bool:
        return any(one.varies for one in self._task.dimensions)

    def _build_ahead(self, candidate: Candidate, cases: Sequence[Case]) -> NotBuilt | BadPlan | None:
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
        """Run the cases on the emulator, only a few of them if there is a GPU."""
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
            less: Case | None = case if case.sizes != self._task.sizes else None
            if (
                less is not None
                and not has_own_size(self._task, case)
                and isinstance(outcome, Wrong)
                and ran_out(outcome.evidence)
            ):
                more = _MORE_INSTRUCTIONS * instruction_budget(self._task, case)
                outcome = trial.run(case, self._emulator, emulated=True, schedules=schedules, most_instructions=more)
            while less is not None and isinstance(outcome, Wrong) and ran_out(outcome.evidence):
                less = shorter(self._task, less)
                if less is not None:
                    times = 1 if has_own_size(self._task, less) else _MORE_INSTRUCTIONS
                    more = times * instruction_budget(self._task, less)
                    outcome = trial.run(less, self._emulator, emulated=True, most_instructions=more)
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
        rejected = self._on_constants(trial)
        if rejected is not None:
            return rejected
        return self._on_gpu(trial, left) if self._gpu is not None else self._passed(trial)

    def _on_constants(self, trial: Trial) -> Rejected | None:
        """Emulate the kernel on values that its code names."""
        job = trial.candidate.emulated_job(Case(self._task.sizes, 1), self._emulator.profile, ())
        cases = [one for one in trial.right_cases if one.values == TASK and not has_own_size(self._task, one)]
        if job is None or job.ptx is None:
            return None
        case = constants_case(self._task, job.ptx, cases, self._further_values(), seeded)
        if case is None or not self._takes(trial.candidate, case):
            return None
        self._say(f"emulating {case}")
        more = _MORE_INSTRUCTIONS * instruction_budget(self._task, case)
        outcome = trial.run(case, self._emulator, emulated=True, most_instructions=more)
        if isinstance(outcome, Wrong) and ran_out(outcome.evidence):
            return None
        return self._count(trial, outcome, self._emulator, 1)

    def _on_gpu(self, trial: Trial, cases: Sequence[Case], *, watched: bool = False) -> Verdict:
        """Run the remaining cases and the full-size call on the GPU. `watched`: also under a sanitizer, since nothing
        was emulated."""
        assert self._gpu is not None
        further = resampled_values(self._task, self._further_values(), whole=True)
        own = [case for case in full_size_cases(self._task, further) if self._judges.of(self._task, case) is not None]
        own = own[:_OF_HUGE] if own and is_huge(self._task, own[0]) else own
        if not own:
            trial.note("not judged at the task's own sizes: their tensors are too large to carry to the referee")
        small = [one for one in cases if one.sizes != self._task.sizes]
        ended = self._run_all(trial, small, self._gpu)
        evidence = self._skip_if_slower() if ended is None and self._skip_if_slower is not None else None
        if evidence is not None:
            return Rejected(evidence, _right(trial))
        ended = ended or self._run_all(trial, own, self._gpu)
        return ended or (self._watch(trial, self._gpu) if watched else None) or self._passed(trial)

    def _run_all(self, trial: Trial, cases: Sequence[Case], gpu: Device) -> Verdict | None:
        for case in cases:
            self._say(f"running {case} on {gpu.profile.name}")
            outcome = trial.run(case, gpu, emulated=False)
            if isinstance(outcome, NotRun) and _not_emulable(outcome):
                return Unsupported(outcome.message)
            rejected = self._count(trial, outcome, gpu, 1)
            if rejected is not None:
                return rejected
        return None

    def _watch(self, trial: Trial, gpu: Device) -> Rejected | None:
        """Run the smallest and the largest right small case under a sanitizer."""
        right = [case for case in trial.right_cases if case.sizes != self._task.sizes] or list(trial.right_cases[:1])
        for case in right[:1] + right[1:][-1:]:
            self._say(f"looking for faults at {case} on {gpu.profile.name}")
            outcome = trial.watch(case, gpu)
            if isinstance(outcome, Wrong):
                return Rejected(outcome.evidence, _right(trial))
        return None

    def _count(self, trial: Trial, outcome: CaseOutcome, device: Device, schedules: int) -> Rejected | None:
        """Record the outcome; a wrong case ends the trial, shrunk as far as possible."""
        if isinstance(outcome, Wrong):
            right = _right(trial)
            return Rejected(self._shrunk(trial, outcome.evidence, device, schedules), right)
        if outcome.result is not None:
            trial.results.append(outcome.result)
        return None

    def _shrunk(self, trial: Trial, evidence: Evidence, device: Device, schedules: int) -> Evidence:
        """The smallest case found with the same kind of fault, and right cases near it."""
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

    # -- the full-size call, and the verdict --

    def _passed(self, trial: Trial) -> Verdict:
        results = trial.results
        if not any(one.status is CaseStatus.RIGHT for one in results):
            if trial.reference_problem is not None:
                raise trial.reference_problem
            return self._own_call_alone(trial)
        if trial.candidate.choice and not any(self._takes(trial.candidate, one) for one in trial.right_cases):
            return Unsupported("the choice only holds at shapes too large to emulate here; run it on a GPU")
        limits = self._limits(trial)
        own = [one for one in results if one.case.sizes == self._task.sizes]
        if not any(one.status is CaseStatus.RIGHT for one in own):
            call = Case(self._task.sizes, 1)
            followed = self._follow(trial)
            if isinstance(followed, Rejected):
                return followed
            outcome = self._own_call(trial, followed)
            if isinstance(outcome, Rejected):
                return outcome
            trial.note(outcome.note)
            trial.note(f"every block's addresses at the task's own sizes: {followed}")
            followed = replace(followed, paths=())  # which blocks were judged is not to be known
            if not outcome.judged and not own:
                results.append(records.CaseResult(call, CaseStatus.TOO_LARGE, ""))
            seen = outcome.is_looked_at and not outcome.judged
            notes = tuple(trial.notes)
            return records.Passed(tuple(results), notes, outcome.uncovered, outcome.unseen, limits, seen, followed)
        return records.Passed(tuple(results), tuple(trial.notes), limits=limits)

    def _own_call_alone(self, trial: Trial) -> Verdict:
        """For a task without smaller calls: as much of its call as can be run, with every kind of values."""
        unsupported = Unsupported("it only takes shapes too large to emulate here; run it on a GPU")
        if self._gpu is not None or plan_cases(self._task):
            return unsupported
        followed = self._follow(trial)
        if isinstance(followed, Rejected):
            return followed
        outcome = self._own_call(trial, followed, alone=True)
        if isinstance(outcome, Rejected) or not outcome.judged:
            return outcome if isinstance(outcome, Rejected) else unsupported
        unseen = outcome.unseen or "a part of it was run, and the task has no smaller call to run whole"
        notes = (*trial.notes, outcome.note, f"every block's addresses at the task's own sizes: {followed}")
        return records.Passed(tuple(trial.results), notes, outcome.uncovered, unseen, addresses=followed)

    def _follow(self, trial: Trial) -> Rejected | records.FollowedAddresses:
        """Follow where all blocks of the own call write and read; where not all that, what a few of them move."""
        self._say("following every address at the task's own sizes")
        candidate, independent = trial.candidate, self._independent
        followed = follow_own_call(candidate, self._emulator, independent, self._followed)
        evidence = refuted(candidate, followed, self.needed_inputs)
        if evidence is None and (not followed.followed or followed.reads_left):
            self._say("counting what it moves at the task's own sizes")
            evidence = too_little_work(candidate, self._emulator, self.needed_inputs)
        if evidence is None and followed.twice:
            evidence, unknown = written_twice(candidate, self._emulator, followed, independent)
            followed = replace(followed, twice_left=unknown)
        if evidence is not None:
            return Rejected(evidence, _right(trial))
        return replace(followed, unread=unread(followed, self.needed_inputs))

    def _own_call(
        self, trial: Trial, followed: records.FollowedAddresses, *, alone: bool = False
    ) -> Rejected | BlockTrial:
        """Sample blocks of the full-size call, and run further cases until the code it executes was judged."""
        further, judge = self._further_values(), self._judges.here
        own = BlockTrial(trial, self._emulator, judge, self._independent, further, alone=alone, followed=followed)
        self._say("running some blocks at the task's own sizes")
        outcome = own.sample()
        if isinstance(outcome, Wrong):
            return Rejected(outcome.evidence, _right(trial))
        if outcome is not None:
            trial.results.append(outcome)
        for case in own.further(self._acceptance(trial.candidate)):
            self._say(f"emulating {case}, for code that no case has covered yet")
            run = trial.run(case, self._emulator, emulated=True, most_instructions=FURTHER_BUDGET)
            if not (isinstance(run, Wrong) and ran_out(run.evidence)):
                rejected = self._count(trial, run, self._emulator, 1)
                if rejected is not None:
                    return rejected
        return own

    @cached_property
    def _independent(self) -> tuple[str, ...]:
        return independent_dimensions(self._task, self._judges.here)

    def _limits(self, trial: Trial) -> tuple[records.SizeLimit, ...]:
        """Sizes inside the task's domain that the file declines, which are noted too."""
        gpu = self._profile_device.profile

        def takes(sizes: dict[str, int]) -> bool:
            return isinstance(trial.candidate.evaluate(Case(sizes, 1), gpu), Evaluation)

        limits = size_limits(self._task, takes)
        declined = [one.case for one in trial.results if one.status is CaseStatus.DECLINED]
        by_size = [one for one in declined if one.leading or not takes(one.sizes)]
        sizes = "; ".join(dict.fromkeys(map(sizes_text, by_size)))
        others = (sizes_text(one) if one.values == TASK else one.values for one in declined if one not in by_size)
        for text in dict.fromkeys(others):
            trial.note(f"the file declines {text}")
        if limits:
            trial.note(f"{records.SizeLimit.NOTE}{records.SizeLimit.words(limits)}")
        elif sizes:
            trial.note(f"the file declines {sizes}")
        return limits


def _not_emulable(outcome: NotRun) -> bool:
    return outcome.result is not None and outcome.result.status is CaseStatus.NOT_EMULABLE


def _right(trial: Trial) -> tuple[records.CaseResult, ...]:
    return tuple(one for one in trial.results if one.status is CaseStatus.RIGHT)
