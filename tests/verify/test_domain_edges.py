"""The ends of a domain: what stands for the numbers between 0 and 1 is judged at 0 and 1 too, and beyond them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.tasks.in_process import JudgingReference

from tilewright.devices.child_device import EmulatedDevice
from tilewright.records import (
    BETWEEN_0_AND_1,
    Case,
    Dimension,
    DType,
    Passed,
    Precision,
    Rejected,
    Task,
    TaskOutput,
    TensorInput,
    UniformValues,
    Values,
    Verdict,
    WrongValues,
)
from tilewright.verify import Referee
from tilewright.verify.cases import resampled_values
from tilewright.verify.distributions import draw_inputs
from tilewright.verify.expectation import expectations
from tilewright.verify.judging_records import SurveyRequest
from tilewright.verify.value_survey import survey_values

F = torch.nn.functional

SOURCE = """
import torch
import torch.nn.functional as F

def kl(a, t):
    return F.kl_div(a, t, reduction="none")

def bce(a, t):
    return F.binary_cross_entropy(a, t, reduction="none")

def logarithm(a):
    return torch.log(a)
"""

KERNEL = """//! op      {name}({given}) -> y
//! need    {dtypes}
//! out     y: {dtype}[a.shape]
//! let     n = a.numel
//! launch  k<<<ceil_div(n, 128), 128>>>({given}, y, n)
#include <cuda_bf16.h>
__global__ void k({pointers}, {real}* y, long long n) {{
  long long i = blockIdx.x * 128ll + threadIdx.x;
  if (i < n) {{ {loads} y[i] = {formula}; }}
}}
"""


def task_of(name: str, *given: str, dtype: DType = DType.F32, values: Values = BETWEEN_0_AND_1) -> Task:
    return Task(
        name,
        SOURCE,
        name,
        tuple(TensorInput(one, dtype, ("rows", "cols"), values) for one in given),
        (TaskOutput("y", dtype, ("rows", "cols")),),
        (Dimension("rows", 64), Dimension("cols", 512)),
    )


def kernel_of(task: Task, formula: str) -> str:
    """One that works element by element, on the elements called as the tensors are with an underscore."""
    names = [one.name for one in task.tensors]
    dtype = task.tensors[0].dtype
    real = "float" if dtype is DType.F32 else "__nv_bfloat16"
    return KERNEL.format(
        name=task.name,
        given=", ".join(names),
        dtypes=" and ".join(f"{one}.dtype == {dtype.value} and {one}.shape == a.shape" for one in names),
        dtype=dtype.value,
        pointers=", ".join(f"const {real}* {one}" for one in names),
        real=real,
        loads=" ".join(f"float {one}_ = (float){one}[i];" for one in names),
        formula=formula,
    )


def verdict_of(task: Task, text: str, emulator: EmulatedDevice) -> Verdict:
    with JudgingReference(task.reference, task.function) as reference:
        return Referee(task, reference, emulator=emulator).judge(text)


BCE = "-(t_ * fmaxf(logf(a_), -100.f) + (1.f - t_) * fmaxf(log1pf(-a_), -100.f))"
KL = "(t_ > 0.f ? t_ * (logf(t_) - a_) : t_ == 0.f ? 0.f : NAN)"


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        ("kl", "t_ * (logf(t_) - a_)", KL),
        ("bce", "-(t_ * logf(a_) + (1.f - t_) * log1pf(-a_))", BCE),
    ],
)
def test_a_loss_is_judged_at_0_and_1(name: str, wrong: str, right: str, dtype: DType, emulator: EmulatedDevice) -> None:
    task = task_of(name, "a", "t", dtype=dtype)
    rejected = verdict_of(task, kernel_of(task, wrong), emulator)
    assert isinstance(rejected, Rejected)
    assert isinstance(rejected.evidence, WrongValues)
    assert rejected.evidence.case.values == "edges: a=0 and 1, t=0 and 1"
    passed = verdict_of(task, kernel_of(task, right), emulator)
    assert isinstance(passed, Passed)
    assert "edges: a=0 and 1, t=0 and 1" in {one.case.values for one in passed.cases}


def test_values_that_the_reference_refuses_are_named_once(emulator: EmulatedDevice) -> None:
    task = task_of("bce", "a", "t")
    passed = verdict_of(task, kernel_of(task, BCE), emulator)
    assert isinstance(passed, Passed)
    said = [one for one in passed.notes if "the reference itself fails" in one]
    assert len(said) == 1
    assert said[0].startswith("the reference itself fails on values of these kinds: impulse, small, ")
    assert said[0].endswith("all elements of input should be between 0 and 1)")
    assert "rows=" not in said[0]


def test_what_is_nan_beyond_the_domain_is_nan_in_a_kernel(emulator: EmulatedDevice) -> None:
    task = task_of("logarithm", "a")
    rejected = verdict_of(task, kernel_of(task, "logf(fabsf(a_))"), emulator)
    assert isinstance(rejected, Rejected)
    assert isinstance(rejected.evidence, WrongValues)
    assert rejected.evidence.case.values == "outside: a=below 0 or above 1"
    assert isinstance(verdict_of(task, kernel_of(task, "logf(a_)"), emulator), Passed)


# -- what the reference takes --


def surveyed(function: Callable[..., Any], *given: str, values: Values = BETWEEN_0_AND_1) -> set[str]:
    task = task_of("f", *given, values=values)
    kinds = survey_values(function, SurveyRequest(task, {"rows": 10, "cols": 70}, whole=False)).kinds
    return {one for one in kinds if one.startswith(("edges", "outside"))}


def test_only_ends_at_which_the_reference_is_finite() -> None:
    outside = "outside: a=below 0 or above 1"
    assert surveyed(lambda a: torch.sqrt(a), "a") == {"edges: a=0 and 1", outside}
    assert surveyed(lambda a: torch.log(a), "a") == {"edges: a=1", outside}
    assert surveyed(lambda a: torch.log1p(-a), "a") == {"edges: a=0", outside}
    assert surveyed(lambda a, t: torch.xlogy(a, t), "a", "t") == {"edges: a=0 and 1, t=1"}
    assert surveyed(lambda a, t: a / t, "a", "t") == {"edges: a=0 and 1, t=1"}
    assert surveyed(lambda a: torch.logit(a), "a") == {outside}
    assert surveyed(lambda a: torch.sqrt(a), "a", values=UniformValues(0.25, 0.75)) == set(), "the task's own domain"


def test_beyond_the_domain_only_where_nan_is_an_elements_own_and_a_promise() -> None:
    assert surveyed(lambda a: torch.log(a) + a.log().sum(-1, keepdim=True), "a") == {"edges: a=1"}
    assert surveyed(lambda a: torch.log(a).cumsum(-1), "a") == {"edges: a=1"}
    assert surveyed(lambda a: torch.log(a).clamp(min=-3.0) + 1, "a") == {"edges: a=0 and 1"}, "fmaxf leaves NaN out"
    assert surveyed(lambda a: F.binary_cross_entropy(a, a, reduction="none"), "a") == {"edges: a=0 and 1"}
    assert surveyed(lambda a: torch.exp(a), "a") == {"edges: a=0 and 1"}, "no NaN anywhere"


def test_a_task_without_a_smaller_call_is_judged_at_the_ends_too() -> None:
    task, found = task_of("f", "a"), ("special", "edges: a=0 and 1", "other numbers: b=1")
    assert "edges: a=0 and 1" in resampled_values(task, found, whole=False, alone=True)
    assert resampled_values(task, found[:2], whole=False) == ()


# -- what is drawn --


def drawn(kind: str, number: int = 0, shape: tuple[int, int] = (6, 300)) -> np.ndarray:
    task = task_of("f", "a", "t")
    sizes = dict(zip(("rows", "cols"), shape, strict=True))
    held = draw_inputs(task, Case(sizes, 5, kind))[("a", "t")[number]]
    return np.frombuffer(held, np.float32).reshape(shape)


def test_rows_at_the_ends() -> None:
    found = drawn("edges: a=0 and 1, t=0 and 1")
    assert sorted(found[0].tolist()) == [0.0] * 299 + [1.0]
    assert 0 < np.count_nonzero((found[1] == 0) | (found[1] == 1)) < 150
    assert not found[2].any()
    assert 0 < found[3].min() < 1e-15
    assert 1 - 1e-5 < found[3].max() < 1
    assert (found[4] == 1).all()
    assert set(found[5].tolist()) == {0.0, 1.0}
    other = drawn("edges: a=0 and 1, t=0 and 1", 1)
    assert {(x, y) for x, y in zip(found.flat, other.flat, strict=True)} >= {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert drawn("edges: a=0").max() < 1
    assert drawn("edges: a=1").min() > 0
    assert drawn("edges: a=1", 1).min() > 0, "a tensor that is not named holds the task's own"


def test_no_rounding_leads_out_of_the_domain() -> None:
    """binary_cross_entropy raises at the least above 1, which one rounding of a 16-bit 1 would be."""
    held = torch.tensor([0.0, 1.0, 0.5, 1.0]).bfloat16()
    call = lambda given: (F.binary_cross_entropy(given["a"], given["a"], reduction="none"),)  # noqa: E731
    expected = expectations(call, {"a": held}, Precision.DTYPE)[0]
    wide = {"a": torch.linspace(-100.0, 100.0, 64)}
    of_sigmoid = lambda given: call({"a": torch.sigmoid(given["a"])})  # noqa: E731
    assert all(bool(one.isfinite().all()) for one in expectations(of_sigmoid, wide, Precision.DTYPE)[0].moved)
    assert len(expected.moved) == 4
    assert all(bool(one.isfinite().all()) for one in expected.moved)
