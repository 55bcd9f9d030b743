"""A candidate on a GPU beside its baselines: rounds in turn, so that a card that warms up warms up for all of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tilewright.devices.protocol import Device
from tilewright.measure.baselines import (
    AGAINST,
    COMPILED,
    EAGER,
    TIME_BASELINES,
    BaselineAnswer,
    BaselineRequest,
)
from tilewright.measure.floor import IMPOSSIBLE
from tilewright.measure.preparation import job_inputs
from tilewright.records import Completed, Faulted, Job, Limits, Measured, Task, Timing
from tilewright.reference import AnyReference, ReferenceProblem
from tilewright.toolchain import BuiltPlan

ROUNDS = 5
RUNS = 7  # of every contender in a round
DRIFT = 0.05  # between the first and the last round, that is worth a note
_JOB_SECONDS = 120.0
_FIRST_BASELINE_SECONDS = 600.0  # torch.compile
_BASELINE_SECONDS = 120.0

Say = Callable[[str], None]


class GpuFault(Exception):
    """The candidate failed on the GPU; the message is the device's."""


@dataclass
class Rounds:
    """Samples as they come in, by contender and round."""

    samples: dict[str, list[tuple[float, ...]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, timing: Timing) -> None:
        self.samples.setdefault(timing.name, []).append(timing.samples_us)

    def timing(self, name: str) -> Timing:
        return Timing(name, tuple(sample for one in self.samples[name] for sample in one))

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def drift(self, name: str) -> float:
        """By what fraction the last round was slower (or faster) than the first."""
        rounds = self.samples[name]
        return statistics.median(rounds[-1]) / statistics.median(rounds[0]) - 1.0


def gpu_job(id: str, prepared: BuiltPlan, task: Task, seed: int, seconds: float) -> Job:
    """The plan at the task's sizes on a GPU, with most of its memory; nothing comes back."""
    memory = int(0.8 * prepared.evaluation.gpu.memory_bytes) or Limits().device_bytes
    return prepared.job(id, job_inputs(task, task.sizes, seed), limits=Limits(seconds, memory))


def time_candidate(prepared: BuiltPlan, task: Task, gpu: Device, runs: int, seed: int) -> tuple[float, ...]:
    """`runs` times of the plan in microseconds, on fresh inputs and a cold L2 each. Raises `GpuFault`."""
    job = gpu_job(f"time-{seed}", prepared, task, seed, _JOB_SECONDS)
    execution = gpu.execute(replace(job, timed_runs=runs + 1))
    if isinstance(execution, Faulted):
        raise GpuFault(f"{execution.kind.value}: {execution.message}")
    assert isinstance(execution, Completed)
    return execution.run_us[1:]  # the first one warms up


def measure_on_gpu(
    prepared: BuiltPlan,
    task: Task,
    gpu: Device,
    baselines: AnyReference,
    floor_us: float,
    against: str = "",
    say: Say = lambda _: None,
) -> Measured:
    """The candidate and its baselines, `ROUNDS` times in turn. Raises `GpuFault`; a failing baseline is a note."""
    rounds = Rounds()
    contenders = [EAGER, COMPILED] + ([AGAINST] if against else [])
    for number in range(ROUNDS):
        say(f"timing, round {number + 1} of {ROUNDS}")
        rounds.add(Timing("kernel", time_candidate(prepared, task, gpu, RUNS, number)))
        if contenders:
            request = BaselineRequest(task, RUNS, number, tuple(contenders), against, getattr(gpu, "index", 0))
            contenders = _baseline_round(rounds, request, baselines)
    return measured(rounds, task, gpu.profile.name, floor_us)


def _baseline_round(rounds: Rounds, request: BaselineRequest, baselines: AnyReference) -> list[str]:
    """One round of the baselines; those that may come again."""
    seconds = _BASELINE_SECONDS if request.seed else _FIRST_BASELINE_SECONDS
    try:
        answer: BaselineAnswer = baselines.call(TIME_BASELINES, request, BaselineAnswer, seconds)
    except ReferenceProblem as problem:
        rounds.note(f"no baselines: {problem}")
        return []
    for contender, reason in answer.failures.items():
        rounds.note(f"{contender} failed: {reason}")
    for timing in answer.timings:
        rounds.add(timing)
    return [timing.name for timing in answer.timings]


def measured(rounds: Rounds, task: Task, gpu: str, floor_us: float) -> Measured:
    """The record of finished rounds."""
    kernel = rounds.timing("kernel")
    for name in rounds.samples:
        drift = rounds.drift(name)
        if abs(drift) > DRIFT:
            rounds.note(f"{name} drifted by {drift:+.0%} from the first round to the last")
    if kernel.median_us < IMPOSSIBLE * floor_us:
        rounds.note("faster than the roofline allows: the result or the clock must be wrong")
    others: Sequence[str] = [name for name in rounds.samples if name != "kernel"]
    return Measured(
        gpu=gpu,
        sizes=task.sizes,
        kernel=kernel,
        baselines=tuple(rounds.timing(name) for name in others),
        floor_us=floor_us,
        notes=tuple(rounds.notes),
    )
