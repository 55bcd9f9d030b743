"""A task whose reference branches: cases stay on its side, files decline the other, calls there run the function."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tasks.in_process import probed

import tilewright as tw
from tilewright.frontends.api.decorator import _size_distance
from tilewright.frontends.report.runs import task_words
from tilewright.kernel_file import DoesNotApply, KernelFile, evaluate, needs_of_task
from tilewright.playbook.tracing import probes_of
from tilewright.prompts.task_text import task_text
from tilewright.records import Case, Dimension, NumberBounds, Task
from tilewright.runtime import ReferenceUsed, load
from tilewright.verify import read_kernel
from tilewright.verify.cases import full_size_cases, plan_cases
from tilewright.verify.distributions import NUMBERS, case_task
from tilewright.verify.judging_records import SurveyRequest
from tilewright.verify.value_survey import survey_values

SOURCE = """\
import torch
import torch.nn.functional as F

def narrow(x):
    if x.shape[1] > 512:
        return F.softmax(x, -1)
    return F.log_softmax(x, -1)

def scaled(x, t: float = 1.25):
    return x * t if t > 1.0 else x + t
"""
NARROW = """\
//! op      narrow(x) -> y
//! out     y: f32[x.shape]
//! let     rows = x.shape[0], cols = x.shape[1]
//! launch  run<<<rows, 1>>>(x, y, cols)
__global__ void run(const float* x, float* y, int cols) {
  x += (size_t)blockIdx.x * cols;
  y += (size_t)blockIdx.x * cols;
  float most = -INFINITY, sum = 0.f;
  for (int i = 0; i < cols; ++i) most = fmaxf(most, x[i]);
  for (int i = 0; i < cols; ++i) sum += expf(x[i] - most);
  for (int i = 0; i < cols; ++i) y[i] = x[i] - most - logf(sum);
}
"""
SCALED = """\
//! op      scaled(x, t: float = 1.25) -> y
//! out     y: f32[x.shape]
//! launch  run<<<ceil_div(x.numel, 64), 64>>>(x, y, x.numel, t)
__global__ void run(const float* x, float* y, int n, float t) {
  int i = blockIdx.x * 64 + threadIdx.x;
  if (i < n) y[i] = x[i] * t;
}
"""


def task_named(name: str, shape: str = "16x256:f32") -> Task:
    return probed(SOURCE, name, {"x": shape})[0]


def functions() -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(SOURCE, names)
    return names


def test_cases_stay_on_the_references_side_and_go_to_its_edge() -> None:
    for shape, edge in (("16x256:f32", 512), ("16x1024:f32", 513)):
        task = task_named("narrow", shape)
        cases = (*plan_cases(task), *full_size_cases(task))
        assert all(one.takes(case.sizes[one.name]) for case in cases for one in task.dimensions)
        assert edge in {case.sizes["cols"] for case in cases}
        assert all((case.sizes["cols"] > 512) == (edge == 513) for case in cases)
        probes = probes_of(task).probes
        assert len({one.sizes["cols"] for one in probes}) == len(probes)
        assert all((one.sizes["cols"] > 512) == (edge == 513) for one in probes)


def test_wide_cases_become_as_wide_as_may_be() -> None:
    task = task_named("narrow")
    limited = replace(task, dimensions=(task.dimensions[0], Dimension("cols", 32, at_most=64, branches=True)))
    assert Dimension("cols", 32, multiple_of=8, at_most=60).permitted(100) == 56
    assert len({case.sizes["rows"] for case in plan_cases(limited) if case.sizes["cols"] == 64}) > 2


def test_other_numbers_stay_on_the_references_side() -> None:
    for value in (1.01, 1.25, 8.0, 0.8, 1.0, -2.0):
        task, _ = probed(SOURCE, "scaled", {"x": "16x256:f32"}, {"t": str(value)})
        (other,) = case_task(task, Case(task.sizes, 1, NUMBERS)).numbers
        assert other.value != value
        assert (other.value > 1.0) == (value > 1.0)
        kinds = survey_values(functions()["scaled"], SurveyRequest(task, task.sizes, False)).kinds
        surveyed = [case_task(task, Case(task.sizes, 1, kind)).numbers[0].value for kind in kinds]
        assert surveyed
        assert all((one > 1.0) == (value > 1.0) for one in surveyed)
        assert len({one.numbers["t"] for one in probes_of(task).probes}) == 3
        assert all((one.numbers["t"] > 1.0) == (value > 1.0) for one in probes_of(task).probes)


def test_a_file_gets_the_needs_it_lacks() -> None:
    task = task_named("narrow")
    file = read_kernel(NARROW, task)
    assert isinstance(file, KernelFile)
    assert file.text.split("\n")[1] == "//! need    x.shape[1] <= 512"
    again = read_kernel(file.text, task)
    assert isinstance(again, KernelFile)
    assert again.text == file.text
    evaluate(file, task.arguments(task.complete({"rows": 3, "cols": 512})), task.profile)
    with pytest.raises(DoesNotApply, match="513"):
        evaluate(file, task.arguments(task.complete({"rows": 3, "cols": 513})), task.profile)


def test_every_limit_is_a_need() -> None:
    task = task_named("scaled")
    rows = Dimension("rows", 16, multiple_of=4, at_least=8, at_most=64, branches=True)
    limited = replace(task, dimensions=(rows, Dimension("cols", 256, varies=False, branches=True)))
    assert needs_of_task(limited) == (
        "x.shape[0] % 4 == 0",
        "x.shape[0] >= 8",
        "x.shape[0] <= 64",
        "x.shape[1] == 256",
        "t > 1.0",
    )
    assert NumberBounds(3, 3).conditions("k") == ("k == 3",)


def test_people_and_authors_are_told() -> None:
    text = task_text(task_named("scaled"))
    assert "//! need    t > 1.0" in text
    assert "`t`: float, 1.25 here; other values must work too where t > 1.0" in text
    assert "`cols` (at most 512)" in task_text(task_named("narrow"))
    assert task_words(task_named("scaled"))[2] == "any rows, cols; only t > 1.0"
    assert "any rows, cols (at most 512)" in task_words(task_named("narrow"))


def test_calls_on_the_other_side_run_the_function(tmp_path: Path) -> None:
    for text, inside, outside in ((NARROW, (512,), (513,)), (SCALED, (4, 1.5), (4, 0.5))):
        name = text.split("(")[0].split()[-1]
        file, function = read_kernel(text, task_named(name)), functions()[name]
        assert isinstance(file, KernelFile)
        path = tmp_path / f"{name}.cu"
        path.write_text(file.text)
        operation = load(path, reference=function)
        x = torch.randn(3, inside[0])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            torch.testing.assert_close(operation(x, *inside[1:]), function(x, *inside[1:]))
        x = torch.randn(3, outside[0])
        with pytest.warns(ReferenceUsed, match="is false"):
            assert torch.equal(operation(x, *outside[1:]), function(x, *outside[1:]))


def test_a_decorated_function_uses_no_kernel_of_the_other_side() -> None:
    task = task_named("narrow")
    assert _size_distance(task, {"x": torch.zeros(16, 512)}) == 1
    assert _size_distance(task, {"x": torch.zeros(16, 513)}) is None


def narrow(x: torch.Tensor) -> torch.Tensor:
    if x.shape[1] > 512:
        return torch.softmax(x, -1)
    return torch.log_softmax(x, -1)


@pytest.mark.slow
def test_a_kernel_that_is_made_for_narrow_rows_is_not_used_for_wide_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path))
    made = tw.make(narrow, x="16x256:f32", author="playbook", attempts=1, gpu="H200")
    x = torch.randn(3, 512)
    torch.testing.assert_close(made(x), narrow(x))
    x = torch.randn(3, 513)
    with pytest.warns(ReferenceUsed, match=r"x\.shape\[1\] <= 512"):
        assert torch.equal(made(x), narrow(x))
