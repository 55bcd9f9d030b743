"""Functions whose own backward is not that of what they compute are found out, and no others."""

from __future__ import annotations

import pytest
from tests.tasks.in_process import probed

from tilewright.verify.gradient_check import gradient_problem

CUSTOM = """
import torch

class Exponential(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.float().exp().to(x.dtype)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0].exp() * {factor}

def f(x):
    return Exponential.apply(x)
"""
ORDINARY = """
import torch

def f(x, w, target):
    y = torch.relu(x) * w.abs()
    loss = torch.nn.functional.cross_entropy(y.float(), target)
    return y.float().softmax(-1).to(x.dtype), y.argmax(-1), loss, y.sum(0).round(), y.max(-1).values
"""


@pytest.mark.parametrize(("factor", "right"), [("1", True), ("1.01", False)])
def test_a_backward_that_lies_is_found(factor: str, right: bool) -> None:
    task, reference = probed(CUSTOM.replace("{factor}", factor), "f", {"x": "64x32:bf16"})
    problem = gradient_problem(task, reference)
    assert (problem == "") is right
    assert right or "finite differences" in problem


def test_kinks_places_whole_numbers_and_casts_are_no_lies() -> None:
    task, reference = probed(ORDINARY, "f", {"x": "64x32:bf16", "w": "32:bf16", "target": "64:i64"})
    assert gradient_problem(task, reference) == ""
