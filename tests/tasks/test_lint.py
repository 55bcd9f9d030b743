"""Tasks whose answers prove nothing are found out; sound ones are not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.tasks.functions import SOURCE
from tests.tasks.in_process import lint_of, probed

from tilewright.records import DType, Origin
from tilewright.tasks import TaskError, TaskOptions
from tilewright.tasks.drafts import with_lint_result
from tilewright.tasks.errors import Remedy, RemedyKind
from tilewright.tasks.questions import LintAnswer, lint_reference, small_sizes


@pytest.mark.parametrize(
    ("function", "shapes", "reason"),
    [
        ("identity", {"x": "8x8"}, "y equals x"),
        ("zeros", {"x": "8x8"}, "y does not depend on the inputs"),
        ("ones", {"x": "32x32"}, "y is 1 for all inputs up to rounding: a constant would pass"),
        ("noise", {"x": "8"}, "two calls with the same inputs give different answers"),
        ("idle", {"x": "8x8", "w": "8"}, "no output depends on w; leave it out of the inputs"),
        ("all_nan", {"x": "8"}, "y is NaN everywhere"),
        ("rounding", {"x": "8x200"}, "differ by less than its own rounding errors: zeros would pass"),
    ],
)
def test_degenerate(function: str, shapes: dict[str, str], reason: str) -> None:
    assert reason in lint_of(SOURCE, function, shapes)


def test_values_decide() -> None:
    assert lint_of(SOURCE, "positive", {"x": "8x8"}) == ""
    found = lint_of(SOURCE, "positive", {"x": "8x8"}, {"x": "uniform 0 1"})
    assert found == "y equals x for the values it holds"


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        ("layernorm_gelu", {"x": "4096x1024:bf16", "weight": "1024:bf16", "bias": "1024:bf16"}),
        ("top1", {"x": "32x32:bf16"}),
        ("add_rmsnorm", {"x": "8x32", "residual": "8x32", "weight": "32"}),
        ("loss", {"logits": "64x10", "target": "64:i64"}),
        ("lookup", {"table": "100x16", "ids": "10:i64"}),
        ("attention", {"q": "2x8x16:f16", "k": "2x8x16:f16", "v": "2x8x16:f16"}),
    ],
)
def test_sound(function: str, shapes: dict[str, str]) -> None:
    assert lint_of(SOURCE, function, shapes) == ""


COMPENSATED = """
def implicit(p, c, u):
    c = c + u
    new = p + c
    return new, c + (p - new)

def casts(p, c, u):
    c = (c.float() + u.float()).bfloat16().float()
    new = (p.float() + c).bfloat16()
    return new, (c + (p.float() - new.float()).bfloat16().float()).bfloat16()
"""


def test_what_16_bit_steps_lose_is_no_result_unless_it_is_cast() -> None:
    shapes = dict.fromkeys("pcu", "64x128:bf16")
    assert "y1 consists of rounding errors of PyTorch's 16-bit steps" in lint_of(COMPENSATED, "implicit", shapes)
    assert lint_of(COMPENSATED, "casts", shapes) == ""
    assert lint_of(COMPENSATED, "implicit", dict.fromkeys("pcu", "64x128")) == ""


MEANS = """
import torch
import torch.nn.functional as F

def distance(x, y):
    return (x - y).abs().mean()

def distilled(s, t, temperature: float = 2.0):
    soft = F.log_softmax(s / temperature, -1)
    return F.kl_div(soft, F.softmax(t / temperature, -1), reduction="batchmean") * temperature**2

def spread(x):
    return F.layer_norm(x, x.shape[-1:]).abs().mean()

def uncertainty(p, t):
    return F.binary_cross_entropy(p, t)

def centre(x):
    return F.layer_norm(x, x.shape[-1:]).mean(-1)

def ratio(x):
    return (x / x.abs().amax(-1, keepdim=True)).abs().amax()
"""


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        ("distance", {"x": "4096x1024:bf16", "y": "4096x1024:bf16"}),
        ("distilled", {"s": "64x1000:bf16", "t": "64x1000:bf16"}),
        ("spread", {"x": "4096x1024:bf16"}),
        ("uncertainty", {"p": "4096x1024:bf16", "t": "4096x1024:bf16"}),
    ],
)
def test_a_mean_that_is_constant_for_one_distribution_alone_is_sound(function: str, shapes: dict[str, str]) -> None:
    assert lint_of(MEANS, function, shapes) == ""


def test_what_is_constant_for_every_distribution_is_not() -> None:
    assert "zeros would pass" in lint_of(MEANS, "centre", {"x": "64x512"})
    assert "does not depend on the inputs" in lint_of(MEANS, "ratio", {"x": "64x512"})
    task, reference = probed(MEANS, "centre", {"x": "64x512"})
    with pytest.raises(TaskError, match="zeros would pass") as caught:
        with_lint_result(task, lint_reference(task, reference), TaskOptions())  # type: ignore[arg-type]
    assert caught.value.remedies == (
        Remedy(RemedyKind.GIVE_VALUES, "x", "normal:0:8"),
        Remedy(RemedyKind.ALLOW_DEGENERATE),
    )


DEEP = """
import torch

def deep(x, first, rest, unused):
    y = x @ first
    for _ in range(8):
        y = torch.tanh(0.01 * (y @ rest) + 0.5)
    return y
"""


def test_what_fades_on_its_way_through_a_deep_network_still_matters() -> None:
    task, reference = probed(DEEP, "deep", {"x": "16x24", "first": "24x32", "rest": "32x32", "unused": "7"})
    assert lint_reference(task, reference).idle == ("unused",)  # type: ignore[arg-type]


STEPS = """
def steps(x, index, table, unused):
    return x.sign() * table[index]
"""


def test_inputs_without_a_derivative_are_drawn_anew() -> None:
    task, reference = probed(STEPS, "steps", {"x": "9", "index": "9:i64", "table": "5", "unused": "5:i32"})
    assert lint_reference(task, reference).idle == ("unused",)  # type: ignore[arg-type]


MANY = f"""
import torch

class Calls:
    made = 0

def many(x, {", ".join(f"w{number}" for number in range(30))}):
    Calls.made += 1
    return x * {" * ".join(f"(2 + torch.sin(w{number}))" for number in range(15))}
"""


def test_the_calls_do_not_grow_with_the_inputs() -> None:
    task, reference = probed(MANY, "many", {"x": "9", **{f"w{number}": "9" for number in range(30)}}, fixed_all=True)
    calls = reference.function.__globals__["Calls"]
    before = calls.made
    assert len(lint_reference(task, reference).idle) == 15  # type: ignore[arg-type]
    assert calls.made - before < 20


LARGE = """
import torch

def large(x):
    return torch.nn.functional.layer_norm(x, (64, 128, 128))
"""


def test_the_reference_is_called_at_sizes_that_are_cheap_beside_those_that_are_fixed() -> None:
    task, _ = probed(LARGE, "large", {"x": "16x64x128x128"})
    assert small_sizes(task)["batch"] == 2


def test_an_output_that_is_not_what_the_reference_returns() -> None:
    task, reference = probed(SOURCE, "add", {"x": "8x12", "y": "8x12"})
    wrong = replace(task, origin=Origin.FOLDER, outputs=(replace(task.outputs[0], dtype=DType.F16),))
    with pytest.raises(
        TaskError, match=r"out is f16\[8, 12\] and the reference returns f32\[8, 12\].*correct \[outputs\]"
    ):
        lint_reference(wrong, reference)  # type: ignore[arg-type]


def test_a_finding_is_refused_unless_allowed() -> None:
    task, _ = probed(SOURCE, "identity", {"x": "8"})
    answer = LintAnswer("", "y equals x", copied="x")
    with pytest.raises(TaskError, match=r"proves nothing: y equals x; ") as caught:
        with_lint_result(task, answer, TaskOptions())
    assert caught.value.remedies == (
        Remedy(RemedyKind.GIVE_VALUES, "x", "normal:0:1"),
        Remedy(RemedyKind.ALLOW_DEGENERATE),
    )
    assert with_lint_result(task, answer, TaskOptions(allow_degenerate=True)).degenerate == "y equals x"


def test_an_empty_tensor_asks_for_another_shape_and_not_for_other_values() -> None:
    task, _ = probed(SOURCE, "identity", {"x": "0"})
    with pytest.raises(TaskError, match="y has no elements") as caught:
        with_lint_result(task, LintAnswer("", "y has no elements", copied="x"), TaskOptions())
    assert caught.value.remedies[0] == Remedy(RemedyKind.GIVE_SHAPE, "x", "64:f32")


def test_sizes_that_depend_on_values_are_refused() -> None:
    task, reference = probed(SOURCE, "chosen", {"x": "30"})
    with pytest.raises(TaskError, match=r"depends on values|the reference returns"):
        lint_reference(task, reference)  # type: ignore[arg-type]
