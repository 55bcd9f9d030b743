"""Rounds and their record, and baselines in a child that finds no GPU. Times themselves: test_on_gpu."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.measure import kernels

from tilewright.measure.baselines import TIME_BASELINES, BaselineAnswer, BaselineRequest, alternating
from tilewright.measure.gpu_timing import (
    LONG,
    ROUNDS,
    RUNS,
    TRIES,
    Rounds,
    TimingOptions,
    measure_on_gpu,
    measured,
)
from tilewright.measure.preparation import job_inputs, prepare
from tilewright.records import (
    PROFILES,
    Case,
    Completed,
    Content,
    Digest,
    DType,
    GpuConditions,
    IndexValues,
    Integers,
    IntegerValues,
    Job,
    JudgedAnswer,
    Normal,
    NormalValues,
    Precision,
    TensorInput,
    Timing,
    Uniform,
    UniformValues,
    Values,
)
from tilewright.reference import Reference, ReferenceLimits
from tilewright.verify.candidate import case_inputs
from tilewright.verify.distributions import seeded


def test_a_measurement_is_the_median_over_all_rounds() -> None:
    rounds = Rounds()
    for kernel, eager in (((10.0, 11.0, 30.0), (20.0, 21.0)), ((10.5, 10.4, 10.6), (22.0, 23.0))):
        rounds.add(Timing("kernel", kernel))
        rounds.add(Timing("eager", eager))
    rounds.note("torch.compile failed: it did")
    rounds.note("torch.compile failed: it did")
    made = measured(rounds, kernels.scale_task(64, 64), "NVIDIA H200", 5.0)
    assert made.time_us == pytest.approx(10.55)
    assert made.speedup("eager") == pytest.approx(21.5 / 10.55)
    assert made.speedup("torch.compile") is None
    assert made.notes[:2] == ("torch.compile failed: it did", "eager drifted by +10% from the first round to the last")
    assert "clocks are not known" in made.notes[2]
    assert made.kernel.by_round == ((10.0, 11.0, 30.0), (10.5, 10.4, 10.6))
    assert made.sizes == {"rows": 64, "cols": 64}


def test_a_time_below_the_roofline_is_noted() -> None:
    rounds = Rounds({"kernel": [(1.0, 1.0)]})
    made = measured(rounds, kernels.scale_task(64, 64), "NVIDIA H200", 5.0)
    assert "faster than the roofline" in made.notes[0]
    rounds = Rounds({"kernel": [(4.0, 4.0)]})
    made = measured(rounds, kernels.scale_task(64, 64), "NVIDIA H200", 5.0)
    assert "does fewer of them" in made.notes[0], "the bytes take less"


# -- the order of things, with a GPU and a reference that only keep a diary --

COOL = GpuConditions(1980, 1980, 3201, 1980, 40)
SAME = Digest("1234", (10.0,), (5.0,), (64,))


class Diary:
    """A GPU, and the reference that baselines are asked of."""

    profile = PROFILES["H200"]

    def __init__(
        self, answers: dict[int, tuple[int, Digest]] | None = None, drift: float = 0.0, disturbed: range = range(0)
    ) -> None:
        self._drift = drift  # from job to job
        self._disturbed = disturbed  # jobs that take twice as long
        self.said: list[str] = []
        self.jobs: list[Job] = []
        self.requests: list[BaselineRequest] = []
        self._answers = answers or {}  # by job: at which run another digest comes

    def execute(self, job: Job) -> Completed:
        self.said.append("K")
        self.jobs.append(job)
        digests = [SAME] * (1 + job.timed_runs)
        if len(self.jobs) in self._answers:
            run, digest = self._answers[len(self.jobs)]
            digests[run] = digest
        slower = 1.0 + self._drift * len(self.jobs) + (len(self.jobs) in self._disturbed)
        times = (90.0, *(slower * (10.0 + 0.01 * run) for run in range(job.timed_runs - 1)))
        return Completed(job.id, "H200", (), times, digests=tuple(digests), conditions=COOL)

    def call(self, handler: str, request: BaselineRequest, answer: Any, seconds: float) -> BaselineAnswer:
        self.said += [name[0] for name in request.contenders]
        self.requests.append(request)
        failures = {name: "no" for name in request.contenders if name == "torch.compile"}
        timed = (name for name in request.contenders if name not in failures)
        return BaselineAnswer(tuple(Timing(name, (20.0,) * request.runs) for name in timed), failures)

    def close(self) -> None:
        pass


def run_diary(
    diary: Diary, contest: TimingOptions, file: Any = kernels.VECTOR, floor_us: float = 5.0, **changes: Any
) -> Any:
    task = replace(kernels.scale_task(64, 64), **changes)
    return measure_on_gpu(prepare(file, task, None), task, diary, diary, floor_us, contest)  # type: ignore[arg-type]


@pytest.mark.parametrize(("floor_us", "planned"), [*LONG, (LONG[-1][0] - 1.0, (ROUNDS, RUNS))])
def test_long_calls_have_fewer_rounds(floor_us: float, planned: tuple[int, int]) -> None:
    diary, (rounds, runs) = Diary(), planned
    made = run_diary(diary, TimingOptions(("eager",)), floor_us=floor_us)
    assert diary.said == (["K", "e", "K"] * rounds)
    assert (made.kernel.rounds, len(made.kernel.samples_us)) == (rounds, rounds * runs)
    assert {one.runs for one in diary.requests} == {runs}


def test_rounds_go_alternating_and_the_kernel_takes_part_twice() -> None:
    diary = Diary()
    made = run_diary(diary, TimingOptions(("eager", "library"), "some:thing"))
    there = ["K", "e", "l", "a", "K"]
    assert diary.said == (there + there[::-1]) * (ROUNDS // 2)
    assert {len(job.inputs) for job in diary.jobs} == {1}
    assert {job.timed_runs for job in diary.jobs} == {RUNS + 1}
    assert len({job.inputs for job in diary.jobs}) == 1
    assert made.kernel.rounds == made.control.rounds == ROUNDS
    assert len(made.kernel.samples_us) == ROUNDS * RUNS
    assert max(made.kernel.samples_us) < 11, "the first run of a job warms up"
    assert made.precision is Precision.DTYPE
    assert made.conditions == COOL
    assert made.control_error < 0.001
    assert made.notes == ()
    assert made.answered_otherwise == ""


def test_what_drifts_evenly_is_the_same_for_the_kernel_and_itself() -> None:
    made = run_diary(Diary(drift=0.01), TimingOptions(()))
    assert made.control_error < 0.002  # of 1 % from job to job
    assert any("kernel drifted by +11%" in note for note in made.notes)


def test_rounds_that_something_disturbed_are_done_again() -> None:
    diary = Diary(disturbed=range(3, 6))
    made = run_diary(diary, TimingOptions(()))
    assert (len(diary.jobs), made.kernel.rounds, made.notes) == (4 * ROUNDS, ROUNDS, ())
    assert made.kernel.median_us < 11
    always = Diary(disturbed=range(0, 100, 3))
    assert run_diary(always, TimingOptions(())).notes
    assert len(always.jobs) == TRIES * 2 * ROUNDS


def test_a_baseline_that_failed_is_not_tried_again() -> None:
    diary = Diary()
    made = run_diary(diary, TimingOptions())
    assert [request.contenders for request in diary.requests][:2] == [("eager", "torch.compile"), ("eager",)]
    assert made.notes == ("torch.compile failed: no",)
    assert run_diary(Diary(), TimingOptions(())).baselines == ()


def test_a_candidate_far_behind_the_best_is_timed_briefly_and_alone() -> None:
    """It takes 10 us a run."""
    diary = Diary()
    made = run_diary(diary, TimingOptions(("eager",), best_us=7.9))
    assert diary.said == ["K"] * 4
    assert made.baselines == ()
    assert any("far slower than the best so far" in note for note in made.notes)
    near = Diary()
    run_diary(near, TimingOptions(("eager",), best_us=8.1))
    assert near.said.count("e") == ROUNDS


def test_the_runs_of_a_round_go_alternating() -> None:
    said: list[str] = []
    calls = {name: (lambda name=name: said.append(name) or float(len(said))) for name in "abc"}
    samples = alternating(calls, 3)  # type: ignore[arg-type]
    assert "".join(said) == "abccbaabc"
    assert samples == {"a": (1.0, 6.0, 7.0), "b": (2.0, 5.0, 8.0), "c": (3.0, 4.0, 9.0)}


def test_a_timed_call_that_answers_otherwise_ends_it() -> None:
    other = replace(SAME, bits="5678", sums=(10.0001,))
    diary = Diary({3: (5, other)})
    made = run_diary(diary, TimingOptions(()))
    assert made.answered_otherwise == "timed call 5 of round 2 on the same inputs"
    assert len(diary.jobs) == 4
    before = run_diary(Diary({2: (0, other)}), TimingOptions(()))
    assert before.answered_otherwise == "the call before timing of round 1 on the same inputs"


def test_it_is_timed_on_the_inputs_that_were_judged_and_must_answer_the_same() -> None:
    case = Case({"rows": 64, "cols": 64}, 101)
    diary = Diary()
    made = run_diary(diary, TimingOptions((), answer=JudgedAnswer(case, SAME)))
    assert made.answered_otherwise == ""
    assert {job.inputs for job in diary.jobs} == {case_inputs(kernels.scale_task(64, 64), case)}
    judged = JudgedAnswer(case, replace(SAME, bits="judged"))
    made = run_diary(Diary(), TimingOptions((), answer=judged))
    assert made.answered_otherwise == "the call before timing of round 1 on the same inputs"


def test_atomics_may_differ_in_the_last_bits_only() -> None:
    atomic = kernels.scale("if (i < n) atomicAdd(&y[i], 2 * x[i]);", 1)
    near = run_diary(Diary({3: (5, replace(SAME, bits="5678", sums=(10.0001,)))}), TimingOptions(()), atomic)
    assert near.answered_otherwise == ""
    assert "added up by atomics" in near.notes[0]
    far = run_diary(Diary({3: (5, replace(SAME, bits="5678", sums=(11.0,)))}), TimingOptions(()), atomic)
    assert far.answered_otherwise


def test_what_is_wrong_with_the_conditions_is_noted() -> None:
    hot = replace(COOL, least_sm_mhz=1200, held_back=("heat", "the power limit"))
    rounds = Rounds({"kernel": [(10.0,)], "kernel again": [(10.3,)]}, conditions=COOL.with_later(hot))
    made = measured(rounds, kernels.scale_task(64, 64), "NVIDIA H200", 5.0)
    assert made.notes == (
        "the same kernel timed twice differs by 3.0%: smaller differences are noise",
        "the clock was held back by heat and the power limit, to 1200 of 1980 MHz",
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="the child finds a GPU")
def test_baselines_without_a_gpu_are_failures_with_a_reason() -> None:
    task = kernels.scale_task(8, 8)
    with Reference(task.reference, task.function, limits=ReferenceLimits(gpu=True)) as reference:
        answer = reference.call(TIME_BASELINES, BaselineRequest(task, 3, ("eager",)), BaselineAnswer)
    assert answer.timings == ()
    assert answer.failures == {"eager": "this process sees no GPU"}


def test_inputs_follow_the_tasks_values() -> None:
    def content(values: Values, dtype: DType) -> Content:
        return seeded(TensorInput("x", dtype, ("n",), values=values), {"n": 7}, 3)

    assert content(NormalValues(1.0, 2.0), DType.F32) == Normal(3, 1.0, 2.0)
    assert content(UniformValues(-1.0, 1.0), DType.BF16) == Uniform(3, -1.0, 1.0)
    assert content(UniformValues(-1.0, 1.0), DType.I32) == Integers(3, 0, 2)
    assert content(IntegerValues(0, 9), DType.I32) == Integers(3, 0, 9)
    assert content(IndexValues("n"), DType.I64) == Integers(3, 0, 7)
    (first,) = job_inputs(kernels.scale_task(4, 4), {"rows": 2, "cols": 4}, seed=1)
    (second,) = job_inputs(kernels.scale_task(4, 4), {"rows": 2, "cols": 4}, seed=2)
    assert first.spec.shape == (2, 4)
    assert first.content != second.content
