"""A task in a few lines, and which calls it covers, where sizes follow from others."""

from __future__ import annotations

from dataclasses import replace

import torch

from tilewright.frontends.api.decorator import _size_distance
from tilewright.frontends.report.runs import rounding_words, task_words, verdict_words
from tilewright.records import (
    Dimension,
    DType,
    Kind,
    Passed,
    Precision,
    SizeFormula,
    Task,
    TaskOutput,
    TensorInput,
)

TASK = Task(
    "rotate",
    "def rotate(x, cos): ...",
    "rotate",
    (TensorInput("x", DType.F32, ("rows", "cols")), TensorInput("cos", DType.F32, ("half_cols",))),
    (TaskOutput("y", DType.F32, ("rows", "cols")),),
    (
        Dimension("rows", 8),
        Dimension("cols", 64, multiple_of=2),
        Dimension("half_cols", 32, formula=SizeFormula.parse("cols / 2")),
    ),
)


def test_what_follows_is_said() -> None:
    assert task_words(TASK) == [
        "rotate(x, cos) -> y",
        "x = f32[8, 64], cos = f32[32] -> y = f32[8, 64]",
        "any rows, cols (a multiple of 2); then half_cols = cols / 2",
    ]


def test_the_promise_of_precision_is_said_where_it_matters() -> None:
    convolution = replace(TASK, kind=Kind.CONVOLUTION)
    said = "precision: as PyTorch by default: f32 convolutions in TF32, other f32 products in f32"
    assert said in task_words(convolution)
    assert "precision: strict: f32 products and convolutions in f32" in task_words(
        replace(convolution, precision=Precision.STRICT)
    )
    here = (
        "precision: as PyTorch by default, which computes these f32 convolutions in f32 on this GPU: so must the kernel"
    )
    assert here in task_words(replace(convolution, precision=Precision.DEFAULT_F32))
    halves = tuple(replace(one, dtype=DType.BF16) for one in TASK.tensors)
    assert not any("precision" in line for line in task_words(replace(convolution, inputs=halves)))


def test_a_kernel_that_rounds_products_is_said_to() -> None:
    convolution = replace(TASK, reference="def f(x): return torch.conv2d(x, w)")
    tensor_cores = 'asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 ...");'
    assert "convolutions in TF32" in rounding_words(convolution, tensor_cores)
    assert rounding_words(convolution, "y[i] = sum;  // no mma, in place of TF32") == ""
    assert "as was allowed" in rounding_words(replace(TASK, precision=Precision.TF32), tensor_cores)
    for precision in (Precision.STRICT, Precision.DEFAULT_F32):
        assert rounding_words(replace(convolution, precision=precision), tensor_cores) == ""
    assert rounding_words(TASK, tensor_cores) == "", "products of f32 are made of parts"


def test_what_was_not_judged_everywhere_is_not_called_passed() -> None:
    assert verdict_words(Passed(())) == "passed"
    assert verdict_words(Passed((), unseen="its tensors take 900 MB")) == "provisional"


def test_calls_that_contradict_a_formula_are_not_covered() -> None:
    assert _size_distance(TASK, {"x": torch.zeros(8, 64), "cos": torch.zeros(32)}) == 0
    assert _size_distance(TASK, {"x": torch.zeros(3, 10), "cos": torch.zeros(5)}) == 3
    assert _size_distance(TASK, {"x": torch.zeros(3, 10), "cos": torch.zeros(10)}) is None
    assert _size_distance(TASK, {"x": torch.zeros(3, 11), "cos": torch.zeros(5)}) is None


def test_least_sizes_are_said_and_kept() -> None:
    task = replace(TASK, dimensions=(TASK.dimensions[0], replace(TASK.dimensions[1], at_least=6), TASK.dimensions[2]))
    assert task_words(task)[-1] == "any rows, cols (a multiple of 2, at least 6); then half_cols = cols / 2"
    assert _size_distance(task, {"x": torch.zeros(3, 6), "cos": torch.zeros(3)}) == 3
    assert _size_distance(task, {"x": torch.zeros(3, 4), "cos": torch.zeros(2)}) is None
