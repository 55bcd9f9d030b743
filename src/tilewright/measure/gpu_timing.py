"""Time a candidate on a GPU beside its baselines, in rounds of alternating order so that a linear drift affects all
equally.

    round 1   kernel   eager  compiled   kernel again
    round 2   kernel again   compiled  eager   kernel

The kernel is timed twice per round as a control: the difference of the two is the noise. The number of runs is fixed
before the first. The output of every timed call is compared with the output that was verified.
"""

from __future__ import annotations

import contextlib
import re
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from tilewright.devices.protocol import Device
from tilewright.measure.baselines import (
    AGAINST,
    BASELINES,
    COMPILE_BASELINES,
    TIME_BASELINES,
    BaselineAnswer,
    BaselineRequest,
)
from tilewright.measure.floor import IMPOSSIBLE, floor_us
from tilewright.measure.preparation import job_inputs
from tilewright.records import (
    USUAL_BASELINES,
    Completed,
    Digest,
    Faulted,
    GpuConditions,
    InputTensor,
    Job,
    JudgedAnswer,
    Limits,
    Measured,
    Task,
    Timing,
)
from tilewright.reference import AnyReference, ReferenceProblem
from tilewright.toolchain import BuiltPlan
from tilewright.verify.candidate import case_inputs

ROUNDS = 6  # even, so that both orders occur equally often
RUNS = 7  # of every contender in a round
# By roofline floor: (rounds, runs per round). Long calls vary less and take longer.
LONG = ((1500.0, (2, 8)), (400.0, (4, 5)), (100.0, (4, 7)))
FAR_BEHIND, FEWEST_ROUNDS = 1.25, 2  # times the best so far: such a kernel is timed briefly
KERNEL, CONTROL = "kernel", "kernel again"
DRIFT = 0.05  # between the first and the last round; more is noted
CONTROL_ERROR = 0.01  # between the kernel and its control; more is noted
DISTURBED, TRIES = 0.2, 3  # difference between the rounds of one contender that makes timing start again
SCATTER_OF_ATOMICS = 1e-3  # of an output's size: the most that the order of float atomics explains
_JOB_SECONDS = 120.0
_FIRST_BASELINE_SECONDS = 600.0  # torch.compile
_BASELINE_SECONDS = 120.0
_ATOMICS = re.compile(r"\b(?:atom|red)\.[\w.:]*(?:add|cas|exch)[\w.:]*")

Say = Callable[[str], None]
Inputs = tuple[InputTensor, ...]


class GpuFault(Exception):
    """The candidate failed on the GPU. The message is the device's."""


@dataclass(frozen=True)
class TimingOptions:
    """What a candidate is timed beside: names of `BASELINES`, and "module:function" as a further one.

    `answer` is the output that the candidate was verified with; it is timed on the same inputs.
    """

    baselines: tuple[str, ...] = USUAL_BASELINES
    against: str = ""
    answer: JudgedAnswer | None = None
    best_us: float | None = None  # of the best candidate so far; one far slower is timed without baselines

    @property
    def contenders(self) -> tuple[str, ...]:
        return (*(BASELINES[name] for name in self.baselines), *((AGAINST,) if self.against else ()))


@dataclass
class Rounds:
    """The samples so far, by contender and round, with the GPU's clocks and the kernel's output."""

    samples: dict[str, list[tuple[float, ...]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    conditions: GpuConditions | None = None
    answer: Digest | None = None  # of the verified call, or else of the first untimed one
    answered_otherwise: str = ""

    def add(self, timing: Timing) -> None:
        self.samples.setdefault(timing.name, []).append(timing.samples_us)

    def timing(self, name: str) -> Timing:
        rounds = self.samples[name]
        return Timing(name, tuple(sample for one in rounds for sample in one), len(rounds))

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def drift(self, name: str) -> float:
        """Relative difference of the last round to the first."""
        rounds = self.samples[name]
        return statistics.median(rounds[-1]) / statistics.median(rounds[0]) - 1.0

    @property
    def is_disturbed(self) -> bool:
        """Whether one round of a contender was far slower than another: something else used the GPU."""
        medians = [[statistics.median(one) for one in rounds] for rounds in self.samples.values()]
        return any(max(one) > (1.0 + DISTURBED) * min(one) for one in medians)

    def add_runs(self, name: str, runs: CandidateRuns, added_by_atomics: bool = False) -> None:
        """Add a round of a kernel. Where digests come with it, they must all equal the first one."""
        self.add(Timing(name, runs.run_us))
        if runs.conditions is not None:
            before = self.conditions
            self.conditions = runs.conditions if before is None else before.with_later(runs.conditions)
        self.answer = self.answer or next(iter(runs.digests), None)
        for number, one in enumerate(runs.digests):
            if self.answer is None or one.bits == self.answer.bits:
                continue
            if added_by_atomics and one.is_near(self.answer, SCATTER_OF_ATOMICS):
                self.note("the last bits of its answers differ from call to call: they are added up by atomics")
            elif not self.answered_otherwise:
                call = f"timed call {number}" if number else "the call before timing"
                self.answered_otherwise = f"{call} of round {len(self.samples[name])} on the same inputs"


@dataclass(frozen=True)
class CandidateRuns:
    """One round of a candidate."""

    run_us: tuple[float, ...]
    digests: tuple[Digest, ...] = ()  # of an untimed call, then of each timed one
    conditions: GpuConditions | None = None


def gpu_job(id: str, prepared: BuiltPlan, task: Task, seconds: float, inputs: Inputs | None = None) -> Job:
    """A job that runs the plan at the task's sizes with most of the GPU's memory and returns no tensors."""
    memory = int(0.8 * prepared.evaluation.gpu.memory_bytes) or Limits().device_bytes
    return prepared.job(id, inputs or job_inputs(task), limits=Limits(seconds, memory))


def time_candidate(
    prepared: BuiltPlan,
    task: Task,
    gpu: Device,
    runs: int,
    id: str = "time",
    inputs: Inputs | None = None,
    *,
    digests: bool = True,
) -> CandidateRuns:
    """Time the plan `runs` times in microseconds, each on fresh inputs and a cold L2. Raises `GpuFault`."""
    changed = (*(one.name for one in task.outputs), *(one.name for one in task.tensors if one.in_place))
    changed = changed if digests else ()
    job = gpu_job(id, prepared, task, _JOB_SECONDS, inputs)
    execution = gpu.execute(replace(job, timed_runs=runs + 1, digests=changed))
    if isinstance(execution, Faulted):
        raise GpuFault(f"{execution.kind.value}: {execution.message}")
    assert isinstance(execution, Completed)
    return CandidateRuns(execution.run_us[1:], execution.digests, execution.conditions)  # the first one warms up


def measure_on_gpu(
    prepared: BuiltPlan,
    task: Task,
    gpu: Device,
    baselines: AnyReference,
    floor_us: float,
    options: TimingOptions,
    say: Say = lambda _: None,
) -> Measured:
    """Time the candidate and its baselines. Raises `GpuFault`; a failing baseline becomes a note.

    If other work disturbed the GPU, all rounds are repeated, up to `TRIES` times.
    """
    for _ in range(TRIES):
        rounds = _rounds(prepared, task, gpu, baselines, floor_us, options, say)
        if rounds.answered_otherwise or not rounds.is_disturbed:
            break
        say("timing again: something else was at the GPU")
    return measured(rounds, task, gpu.profile.name, floor_us)


def _rounds(
    prepared: BuiltPlan,
    task: Task,
    gpu: Device,
    baselines: AnyReference,
    floor_us: float,
    options: TimingOptions,
    say: Say,
) -> Rounds:
    """All rounds. They end early if a timed call returns a different output: its time is meaningless."""
    answer, contenders = options.answer, options.contenders
    rounds = Rounds(answer=answer.digest if answer is not None else None)
    inputs = case_inputs(task, answer.case) if answer is not None else None
    atomics = _ATOMICS.search(prepared.build.ptx if prepared.build is not None else "") is not None
    count, runs = rounds_and_runs(floor_us)
    number = 0
    while number < count:
        say(f"timing, round {number + 1} of {count}")
        back = number % 2 == 1
        first, last = (CONTROL, KERNEL) if back else (KERNEL, CONTROL)
        rounds.add_runs(first, time_candidate(prepared, task, gpu, runs, f"time-{number}-1", inputs), atomics)
        best_us = options.best_us
        if number == 0 and best_us is not None and rounds.timing(first).median_us > FAR_BEHIND * best_us:
            contenders, count = (), FEWEST_ROUNDS
            rounds.note(f"far slower than the best so far: timed in {FEWEST_ROUNDS} rounds, beside no baselines")
        if contenders:
            order = contenders[::-1] if back else contenders
            request = BaselineRequest(task, runs, order, options.against, getattr(gpu, "index", 0))
            running = baseline_round(rounds, request, baselines, first=number == 0)
            contenders = tuple(name for name in contenders if name in running)
        rounds.add_runs(last, time_candidate(prepared, task, gpu, runs, f"time-{number}-2", inputs), atomics)
        if rounds.answered_otherwise:
            break
        number += 1
    return rounds


def rounds_and_runs(floor_us: float) -> tuple[int, int]:
    """How many rounds, and runs of each contender per round: fixed by the task's roofline floor alone."""
    return next((planned for least_us, planned in LONG if floor_us >= least_us), (ROUNDS, RUNS))


def compile_baselines(task: Task, gpu: Device, baselines: AnyReference, options: TimingOptions) -> None:
    """Compile the baselines without running them; one that fails says so when it is timed."""
    request = BaselineRequest(task, RUNS, options.contenders, options.against, getattr(gpu, "index", 0))
    with contextlib.suppress(Exception):  # timing meets the same error again
        baselines.call(COMPILE_BASELINES, request, BaselineAnswer, _FIRST_BASELINE_SECONDS)


def baseline_round(rounds: Rounds, request: BaselineRequest, baselines: AnyReference, first: bool) -> set[str]:
    """One round of the baselines; returns those that ran."""
    seconds = _FIRST_BASELINE_SECONDS if first else _BASELINE_SECONDS
    try:
        answer: BaselineAnswer = baselines.call(TIME_BASELINES, request, BaselineAnswer, seconds)
    except ReferenceProblem as problem:
        rounds.note(f"no baselines: {problem}")
        return set()
    for contender, reason in answer.failures.items():
        rounds.note(f"{contender} failed: {reason}")
    for timing in answer.timings:
        rounds.add(timing)
    return {timing.name for timing in answer.timings}


def measured(rounds: Rounds, task: Task, gpu: str, least_us: float) -> Measured:
    """The record of all rounds."""
    kernel = rounds.timing(KERNEL)
    made = Measured(
        gpu=gpu,
        sizes=task.sizes,
        kernel=kernel,
        baselines=tuple(rounds.timing(name) for name in rounds.samples if name not in (KERNEL, CONTROL)),
        floor_us=least_us,
        control=rounds.timing(CONTROL) if CONTROL in rounds.samples else None,
        precision=task.precision,
        conditions=rounds.conditions,
        answered_otherwise=rounds.answered_otherwise,
    )
    _note(rounds, task, made)
    return replace(made, notes=tuple(rounds.notes))


def _note(rounds: Rounds, task: Task, made: Measured) -> None:
    for name in rounds.samples:
        drift = rounds.drift(name)
        if abs(drift) > DRIFT:
            rounds.note(f"{name} drifted by {drift:+.0%} from the first round to the last")
    if made.control_error > CONTROL_ERROR:
        rounds.note(f"the same kernel timed twice differs by {made.control_error:.1%}: smaller differences are noise")
    if made.time_us < IMPOSSIBLE * floor_us(task):
        rounds.note("faster than the roofline allows: the result or the clock must be wrong")
    elif made.time_us < IMPOSSIBLE * made.floor_us:
        rounds.note("faster than the reference's products allow at peak throughput: the kernel does fewer of them")
    if made.conditions is None:
        rounds.note("clocks are not known: the GPU's management library (NVML) does not answer")
    elif made.conditions.held_back:
        held, low = " and ".join(made.conditions.held_back), made.conditions.least_sm_mhz
        rounds.note(f"the clock was held back by {held}, to {low} of {made.conditions.possible_sm_mhz} MHz")


# -- `tilewright bench` --


def bench_on_gpu(
    kernels: Mapping[str, BuiltPlan],
    task: Task,
    gpu: Device,
    baselines: tuple[AnyReference, tuple[str, ...]] | None,
    floor_us: float,
    say: Say,
) -> Rounds:
    """The first kernel is timed twice per round, first and last, as a control. One that fails is left out with a
    note."""
    rounds = Rounds()
    count, runs = rounds_and_runs(floor_us)
    running = dict(kernels)
    contenders = baselines[1] if baselines is not None else ()
    first = next(iter(kernels))
    for number in range(count):
        say(f"timing, round {number + 1} of {count}")
        back = number % 2 == 1
        order = [*running, CONTROL] if first in running else [*running]
        for name in reversed(order) if back else order:
            built = running.get(first if name == CONTROL else name)
            if built is None:
                continue
            try:
                timed = time_candidate(built, task, gpu, runs, f"bench-{number}-{name}", digests=False)
            except GpuFault as fault:
                rounds.note(f"{name} failed: {fault}")
                running.pop(name, None)
                continue
            rounds.add_runs(name, timed)
        if baselines is not None and contenders:
            request = BaselineRequest(
                task, runs, contenders[::-1] if back else contenders, "", getattr(gpu, "index", 0)
            )
            known = baseline_round(rounds, request, baselines[0], first=number == 0)
            contenders = tuple(name for name in contenders if name in known)
    return rounds
