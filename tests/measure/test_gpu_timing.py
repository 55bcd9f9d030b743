"""Rounds and their record, and baselines in a child that finds no GPU. Times themselves: test_on_gpu."""

from __future__ import annotations

import pytest
import torch
from tests.measure import kernels

from tilewright.measure.baselines import TIME_BASELINES, BaselineAnswer, BaselineRequest
from tilewright.measure.gpu_timing import Rounds, measured
from tilewright.measure.preparation import job_inputs
from tilewright.records import (
    Content,
    DType,
    IndexValues,
    Integers,
    IntegerValues,
    Normal,
    NormalValues,
    TensorInput,
    Timing,
    Uniform,
    UniformValues,
    Values,
)
from tilewright.reference import Reference, ReferenceLimits
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
    assert made.notes == ("torch.compile failed: it did", "eager drifted by +10% from the first round to the last")
    assert made.sizes == {"rows": 64, "cols": 64}


def test_a_time_below_the_roofline_is_noted() -> None:
    rounds = Rounds({"kernel": [(1.0, 1.0)]})
    made = measured(rounds, kernels.scale_task(64, 64), "NVIDIA H200", 5.0)
    assert "faster than the roofline" in made.notes[0]


@pytest.mark.skipif(torch.cuda.is_available(), reason="the child finds a GPU")
def test_baselines_without_a_gpu_are_failures_with_a_reason() -> None:
    task = kernels.scale_task(8, 8)
    with Reference(task.reference, task.function, limits=ReferenceLimits(gpu=True)) as reference:
        answer = reference.call(TIME_BASELINES, BaselineRequest(task, 3, 0, ("eager",)), BaselineAnswer)
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
