"""NaN, infinities and the ends of f32: elements come out as PyTorch has them, in every form of an operation."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from tests.playbook.agreement import load_structure
from tests.playbook.functions import Function, task_of

from tilewright.playbook.tracing import trace
from tilewright.playbook.understanding import answer

_NUMBERS = (math.nan, math.inf, -math.inf, 0.0, -0.0, 0.5, -0.5, 3.0, -3.0, 6.5, -6.5, 89.0, -89.0, 1e19, 3e38, -3e38)
_OF_ONE = """
F.hardsigmoid(x);F.hardswish(x);F.mish(x);F.silu(x);torch.sigmoid(x);torch.relu(x);F.elu(x);F.softplus(x);F.relu6(x)
x.clamp(-1, 1);F.leaky_relu(x);F.hardtanh(x);torch.sign(x);F.threshold(x, 0.1, 2.0);torch.tanh(x);F.hardshrink(x)
"""
_OF_TWO = """
torch.clamp(x, y, y + 1);torch.clamp(x, min=y);torch.clamp(x, max=y);torch.maximum(x, y);torch.minimum(x, y)
torch.lerp(x, y, 0.25);torch.lerp(x, y, 0.75);torch.where(x > y, x, y);x / y;x * F.hardsigmoid(y)
torch.fmax(x, y);torch.fmin(x, y)
"""


def _bodies(text: str) -> str:
    return "return " + ", ".join(one for line in text.split("\n") for one in line.split(";") if one)


@pytest.mark.parametrize("text", [_OF_ONE, _OF_TWO], ids=["of one", "of two"])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_what_is_no_number_is_none_in_the_result(text: str, dtype: str, tmp_path: Path) -> None:
    function = Function("ends", _bodies(text), f"x: {dtype}[rows, cols]; y: {dtype}[rows, cols]")
    task = task_of(function, {"rows": 64, "cols": 32})
    numbers = torch.tensor(_NUMBERS).to(torch.float32 if dtype == "f32" else torch.bfloat16)
    x = numbers[:, None].expand(16, 16).contiguous()
    given = (x, x.t().contiguous())
    expected = function.callable(*(one.float() for one in given))
    for step in answer(task, lambda request: trace(function.callable, request)).every:
        results = load_structure(step, task, tmp_path)(*given)
        for number, (found, wide) in enumerate(zip(results, expected, strict=True)):
            held = wide.to(found.dtype)  # an infinity where the dtype holds no such number
            assert torch.equal(found.isnan(), held.isnan()), f"{step.id}: result {number}"
            assert torch.equal(found.isinf(), held.isinf()), f"{step.id}: result {number}"
            assert torch.equal(found.sign()[held.isinf()], held.sign()[held.isinf()]), f"{step.id}: result {number}"
