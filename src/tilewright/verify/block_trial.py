"""One candidate's full-size call, as far as it can be emulated: sampled, judged, and what remains unjudged."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Hashable, Iterable, Iterator

from tilewright import records
from tilewright.devices.protocol import Device
from tilewright.kernel_file import Evaluation
from tilewright.records import (
    Case,
    CaseResult,
    CaseStatus,
    FollowedAddresses,
    Task,
    TensorSpec,
    UncoveredLine,
    WrittenPart,
    WrongValues,
)
from tilewright.reference import AnyReference, ReferenceProblem
from tilewright.verify.accepted_sizes import Accepts
from tilewright.verify.block_sample import OWN_SEED, BlockSample, NotSampled, resample_blocks, sample_blocks
from tilewright.verify.case_sizes import BASE, is_filter, sizes_of
from tilewright.verify.case_work import Sizes, bytes_of, work_estimate
from tilewright.verify.cases import resampled_values
from tilewright.verify.distributions import TASK
from tilewright.verify.judging_records import Judgement, WrittenRequest
from tilewright.verify.trial import Trial, Wrong, sizes_text

# -- elements beyond the reach of 32-bit indices --

_LIMITS = (1 << 31, 1 << 32)  # signed and unsigned, of elements and of bytes


def not_reached(task: Task, called: Sizes, written: tuple[WrittenPart, ...], *, judged: bool) -> str:
    """A clause on tensor elements beyond 32-bit indices that no judged block reached; "" where there are none."""
    own, given = {**task.specs(), **task.output_specs()}, {**task.specs(called), **task.output_specs(called)}
    for name, spec in own.items():
        for limit in _LIMITS:
            for unit, size in (("elements", 1), ("bytes", spec.dtype.itemsize)):
                if spec.numel * size <= limit:
                    continue
                smaller = given[name].numel * size <= limit
                if not judged or smaller or not _reaches(task, name, spec, written, limit / size):
                    return f"{name} has more than {limit:,} {unit}, and no judged block is known to reach that far"
    return ""


def _reaches(task: Task, name: str, spec: TensorSpec, written: tuple[WrittenPart, ...], element: float) -> bool:
    """Whether a result was written from that element on; reads show in the results."""
    if name not in {one.name for one in task.outputs}:
        return True
    part = next((one for one in written if one.name == name), None)
    if part is None:
        return False
    last = sum(max(places) * step for places, step in zip(part.indices, spec.stride, strict=True))
    return last >= element


# -- intermediate sizes, for coverage --

_MOST_WORK = 100_000_000
_MOST_BYTES = 36 << 20
_MOST_DIMENSIONS = 6  # whose sizes are combined
_PARTS = (1, 4, 16)  # divisors of a dimension's full size

Constants = Callable[[Sizes], frozenset[Hashable]]


def further_sizes(task: Task, constants: Constants) -> Iterator[Sizes]:
    """Affordable sizes with each dimension full, a fraction of that, or small.

    In turn those nearest to the task's own sizes, and those whose code has most of its constants.
    """
    found = sorted(_affordable(task), key=lambda one: one[0])
    seen: set[tuple[tuple[str, int], ...]] = set()
    own = constants(task.sizes)
    by_code = sorted(found, key=lambda one: (len(own - constants(one[1])), one[0])) if own else []
    for pair in itertools.zip_longest(_largest(found), (sizes for _, sizes in by_code)):
        for sizes in pair:
            if sizes is not None and tuple(sizes.items()) not in seen:
                seen.add(tuple(sizes.items()))
                yield sizes


def _affordable(task: Task) -> Iterator[tuple[float, Sizes]]:
    """Sizes with their distance from the task's own. Filters keep theirs."""
    base = sizes_of(task, BASE)
    results = {axis for one in task.outputs for axis in one.shape}
    varying = [one for one in task.free if one.varies and not is_filter(one, results)]
    if base is None or len(varying) > _MOST_DIMENSIONS:
        return
    base |= {one.name: one.size for one in task.free if is_filter(one, results)}
    choices = [
        sorted({base[one.name], *(one.permitted(max(one.size // part, 1)) for part in _PARTS)} - {0}) for one in varying
    ]
    work = work_estimate(task)
    for chosen in itertools.product(*choices):
        sizes = task.complete({**base, **dict(zip((one.name for one in varying), chosen, strict=True))})
        if work(sizes) <= _MOST_WORK and task.is_sound(sizes) and bytes_of(task, sizes) <= _MOST_BYTES:
            away = sum(abs(math.log(size / one.size)) for one, size in zip(varying, chosen, strict=True) if one.size)
            yield away, sizes


def _largest(found: Iterable[tuple[float, Sizes]]) -> Iterator[Sizes]:
    """Those that are not dominated by an earlier one."""
    kept: list[Sizes] = []
    for _, sizes in found:
        if not any(all(sizes[name] <= other[name] for name in sizes) for other in kept):
            kept.append(sizes)
            yield sizes


# -- the trial --

FURTHER_BUDGET = 300_000_000  # thread instructions of a case that is run for coverage
_JUDGE = "tilewright.verify.judging:judge_written"
_JUDGE_SECONDS = 60.0
_SEED = 501
_MOST_FURTHER = 5
_SECONDS = 45.0  # for all of them, on a busy machine


class BlockTrial:
    """Call `sample` first; then `further` yields cases to run until everything is covered."""

    def __init__(
        self,
        trial: Trial,
        device: Device,
        reference: AnyReference,
        independent: tuple[str, ...],
        further_values: tuple[str, ...],
        *,
        alone: bool = False,
        followed: FollowedAddresses | None = None,
    ) -> None:
        """`alone`: there is no smaller call, so this one is judged with every kind of values."""
        self._followed = followed
        self._further_values = further_values
        self._alone = alone
        self._trial = trial
        self._device = device
        self._reference = reference
        self._independent = independent
        self._sample: BlockSample | NotSampled | None = None
        self.judged = False  # whether values were compared at the task's own sizes

    @property
    def is_looked_at(self) -> bool:
        """Whether blocks of it ran, so that the code they execute is known."""
        return isinstance(self._sample, BlockSample)

    @property
    def unseen(self) -> str:
        """Why it is unknown what the call, or all of it, executes; "" where it is known."""
        if not isinstance(self._sample, BlockSample):
            return self._sample.message if self._sample is not None else ""
        written = self._sample.written
        return not_reached(self._trial.candidate.task, self._sample.sizes.called, written, judged=self.judged)

    @property
    def note(self) -> str:
        """How much of the full-size call was run and judged."""
        if not self.judged or not isinstance(self._sample, BlockSample):
            own = sizes_text(Case(self._trial.candidate.task.sizes, OWN_SEED))
            if self.is_looked_at:
                return f"at the task's own sizes blocks were run to see what runs there, and no result judged: {own}"
            return f"not run at the task's own sizes, which are too large to emulate: {own}"
        blocks = self._sample.blocks
        run = "every block was" if blocks is None else f"{blocks} blocks of each launch were"
        called = self._sample.sizes.called
        where = "at" if called == self._trial.candidate.task.sizes else "near"
        text = f"{where} the task's own sizes {run} run and a part of the results judged"
        return f"{text}: {sizes_text(Case(called, OWN_SEED))}"

    @property
    def uncovered(self) -> tuple[UncoveredLine, ...]:
        if not isinstance(self._sample, BlockSample):
            return ()
        return self._trial.coverage.uncovered(self._sample.coverage, self._trial.candidate.file.text)

    def sample(self) -> Wrong | CaseResult | None:
        """Run some blocks and judge what they wrote; None where nothing could be judged."""
        start = time.monotonic()
        sample = sample_blocks(self._trial.candidate, self._device, self._independent, self._followed)
        self._sample = sample
        if isinstance(sample, NotSampled):
            return None
        execution = sample.execution
        if isinstance(execution, records.Faulted) and not sample.whole:
            # It may depend on blocks that did not run.
            self._sample = NotSampled(execution.message)
            return None
        outcome = self._judged(sample, TASK)
        if not isinstance(outcome, Judgement):
            return outcome
        self.judged = True
        if sample.whole:
            self._trial.coverage.add(sample.coverage)
        case, seconds = Case(sample.sizes.called, OWN_SEED), time.monotonic() - start
        wrong = self._resample(sample)
        if wrong is not None:
            return wrong
        return CaseResult(case, CaseStatus.SAMPLED, execution.device, outcome.error_ratio, seconds, emulated=True)

    def _resample(self, first: BlockSample) -> Wrong | None:
        """Run the same call with other scalars and values, for code that only these sizes execute. Where it ran whole,
        also with nearly equal integers, for counters that only so many elements fill."""
        candidate = self._trial.candidate
        whole, task = first.blocks is None, candidate.task
        kinds = resampled_values(task, self._further_values, whole=whole, floats=first.by_few, alone=self._alone)
        for values in kinds:
            sample = resample_blocks(candidate, self._device, first, values)
            if isinstance(sample, NotSampled) or (isinstance(sample.execution, records.Faulted) and not sample.whole):
                continue
            outcome = self._judged(sample, values)
            if isinstance(outcome, Wrong):
                return outcome
        return None

    def _judged(self, sample: BlockSample, values: str) -> Wrong | Judgement | None:
        case = Case(sample.sizes.called, OWN_SEED, values)
        if sample.whole:
            refused = self._trial.refused(case, sample.execution)
            if refused is not None:
                return refused if isinstance(refused, Wrong) else None
        judgement = self._judge(sample, values)
        if judgement is None or not judgement.telling:
            return None
        return Wrong(WrongValues(case, judgement.wrong, self._trial.right_cases[:4])) if judgement.wrong else judgement

    def _judge(self, sample: BlockSample, values: str) -> Judgement | None:
        sizes, task = sample.sizes, self._trial.candidate.task
        if not sample.written or not sizes.are_judged(self._independent):
            return None
        request = WrittenRequest(task, sizes.called, sizes.drawn, OWN_SEED, self._independent, sample.written, values)
        try:
            answer: Judgement = self._reference.call(_JUDGE, request, Judgement, _JUDGE_SECONDS)
        except ReferenceProblem:  # the task does not promise these sizes
            return None
        return answer

    # -- further cases --

    def further(self, accepts: Accepts) -> Iterator[Case]:
        """Cases with several dimensions at full size, as long as something is not covered."""
        deadline = time.monotonic() + _SECONDS
        known = {tuple(one.sizes.items()) for one in self._trial.right_cases}
        chosen = further_sizes(self._trial.candidate.task, self._constants)
        new = (one for one in chosen if tuple(one.items()) not in known and accepts(one))
        for number, sizes in enumerate(itertools.islice(new, _MOST_FURTHER)):
            unsampled = isinstance(self._sample, NotSampled) and self._sample.message
            if not (unsampled or self.uncovered) or time.monotonic() > deadline:
                return
            yield Case(sizes, _SEED + number)

    def _constants(self, sizes: Sizes) -> frozenset[Hashable]:
        found = self._trial.candidate.evaluate(Case(sizes, 1), self._device.profile, strictly=True)
        return frozenset(found.constants) if isinstance(found, Evaluation) else frozenset()
