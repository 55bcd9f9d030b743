"""Which references take any number of leading dimensions: found out by calling them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tilewright.records import Dimension, DType, NumberInput, ScalarType, Task, TaskOutput, TensorInput
from tilewright.tasks.child.lint_run import leading_inputs

F32 = DType.F32
ROWS, COLS, CHANNELS = Dimension("rows", 12), Dimension("cols", 20), Dimension("channels", 8)
X = TensorInput("x", F32, ("rows", "cols"))


def task(
    *inputs: Any, outputs: tuple[tuple[str | int, ...], ...] = (("rows", "cols"),), rows: Dimension = ROWS
) -> Task:
    named = tuple(TaskOutput(f"y{number}", F32, shape) for number, shape in enumerate(outputs))
    return Task("f", "", "f", inputs, named, (rows, COLS))


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


WEIGHT, EPS = TensorInput("weight", F32, ("cols",)), NumberInput("eps", ScalarType.FLOAT, 1e-5)
FIXED = Dimension("rows", 12, varies=False)
EVEN = Dimension("rows", 12, multiple_of=2)
SCALE = TensorInput("scale", F32, ("rows",))
ROW = (("rows",),)


@pytest.mark.parametrize(
    ("function", "made", "found"),
    [
        (norm, task(X, WEIGHT, EPS), (("x", 2),)),
        (lambda x: x.softmax(-1), task(X), (("x", 2),)),
        (lambda x: x.softmax(1), task(X), ()),
        (lambda x: x.softmax(0), task(X), ()),
        (lambda x: x.amax(-1), task(X, outputs=ROW), (("x", 2),)),
        (lambda x: (x.amax(-1), x * 2), task(X, outputs=(*ROW, ("rows", "cols"))), (("x", 2),)),
        (lambda x: x / x.shape[0], task(X), ()),
        (lambda x: x - x.mean(), task(X), ()),
        (lambda x: x.cumsum(0), task(X), ()),
        (lambda x: x.sum(0), task(X, outputs=(("cols",),)), ()),
        (lambda x, scale: x * scale[..., None], task(X, SCALE), (("x", 2), ("scale", 1))),
        (lambda x, scale: x * scale[:, None], task(X, SCALE), ()),
        (lambda x: x * 2, task(X, rows=FIXED), ()),
        (lambda x: x * 2, task(X, rows=EVEN), ()),
        (lambda x: x.t().contiguous(), task(X, outputs=(("cols", "rows"),)), ()),
        (lambda x: x @ x.transpose(-1, -2), task(X, outputs=(("rows", "rows"),)), ()),
        (lambda x: x * 2 if x.dim() == 2 else x * 3, task(X), ()),
        (lambda x: x * torch.linspace(0, 1, x.shape[0])[:, None], task(X), ()),
    ],
)
def test_rows_that_are_done_alike_may_have_any_leading_dimensions(
    function: Callable[..., Any], made: Task, found: tuple[tuple[str, int], ...]
) -> None:
    assert leading_inputs(function, made, made.sizes) == found


def test_roundings_of_16_bits_hide_no_other_answer() -> None:
    """With a fifth dimension instance norm takes the statistics of what were its channels together."""
    shape = ("rows", "channels", "cols", "cols")
    inputs, outputs = (TensorInput("x", DType.BF16, shape),), (TaskOutput("y", DType.BF16, shape),)
    made = Task("f", "", "f", inputs, outputs, (ROWS, CHANNELS, COLS))
    for norm in (F.instance_norm, lambda x: F.instance_norm(x.bfloat16())):
        assert leading_inputs(norm, made, made.sizes) == ()
    for softmax in (lambda x: x.softmax(-1), lambda x: x.bfloat16().softmax(-1)):
        assert leading_inputs(softmax, made, made.sizes) == (("x", 4),)


def test_what_is_changed_in_place_leads_too() -> None:
    def add(y: torch.Tensor, x: torch.Tensor) -> None:
        y += x

    y = TensorInput("y", F32, ("rows", "cols"), in_place=True)
    assert leading_inputs(add, task(y, X, outputs=()), {"rows": 12, "cols": 20}) == (("y", 2), ("x", 2))
