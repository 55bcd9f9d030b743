"""Convolutions with what follows them: norms, pooling, reductions and products as further launches of one file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch.nn.functional as F
from tests.playbook.placed import Placed, check_structure
from torch import Tensor

from tilewright.playbook.tracing import trace
from tilewright.playbook.understanding import answer, any_graph
from tilewright.records import NumberInput, Precision, ScalarType
from tilewright.tasks import task_op_line

_CONV = "x: f32[batch, heads, height, width]; w: f32[filters, heads, three, three]; b: f32[filters]"
_AT = ({"height": 9, "width": 11, "filters": 4}, {"batch": 2, "height": 12, "width": 8, "filters": 8})


def _case(name: str, body: str, results: str, more: str = "", multiples: tuple[tuple[str, int], ...] = ()) -> Placed:
    return Placed(name, body, _CONV + more, results, _AT, multiples, Precision.STRICT)


CASES = (
    _case(
        "softmax_pool",
        "return F.max_pool2d(torch.softmax(F.conv2d(x, w, b, padding=1), 1), 2)",
        "f32[batch, filters, h = height / 2, v = width / 2]",
    ),
    _case(
        "group_norm_mean",
        "return F.group_norm(F.hardswish(F.conv2d(x, w, b)), 2, g, s).mean((2, 3))",
        "f32[batch, filters]",
        "; g: f32[filters]; s: f32[filters]",
        (("filters", 2),),
    ),
    _case(
        "group_norm_logsumexp",
        "y = F.conv2d(x, w, b)\nreturn torch.logsumexp(y + torch.tanh(F.group_norm(y, 2, g, s)), 1, keepdim=True)",
        "f32[batch, 1, h = height - 2, v = width - 2]",
        "; g: f32[filters]; s: f32[filters]",
        (("filters", 2),),
    ),
    _case(
        "batch_norm_pool",
        "return F.avg_pool2d(F.batch_norm(F.conv2d(x, w, b), None, None, g, s, training=True), 2) * 3",
        "f32[batch, filters, h = (height - 2) / 2, v = (width - 2) / 2]",
        "; g: f32[filters]; s: f32[filters]",
    ),
    _case(
        "batch_norm_less_mean",
        "y = F.batch_norm(F.conv2d(x, w, b), None, None, g, s, training=True)\nreturn y - y.mean((2, 3), keepdim=True)",
        "f32[batch, filters, h = height - 2, v = width - 2]",
        "; g: f32[filters]; s: f32[filters]",
    ),
    _case(
        "residual_block",
        "y = F.relu(F.batch_norm(F.conv2d(x, w * b.view(-1, 1, 1, 1), padding=1), m, v * v, b, b))\n"
        "return F.relu(F.conv2d(y, u, padding=1) + x)",
        "f32[batch, heads, height, width]",
        "; m: f32[filters]; v: f32[filters]; u: f32[heads, filters, three, three]",
    ),
    _case(
        "instance_norm",
        "return F.instance_norm(F.conv2d(x, w, b)) / 2",
        "f32[batch, filters, h = height - 2, v = width - 2]",
    ),
    _case(
        "min_sum",
        "return F.gelu(F.conv2d(x, w, b).min(1, keepdim=True)[0].sum(2, keepdim=True)) + b.view(-1, 1, 1)",
        "f32[batch, filters, 1, v = width - 2]",
    ),
    _case(
        "pools",
        "return F.max_pool2d(F.max_pool2d(F.conv2d(x, w, b, padding=1), 2), (2, 1)).sum(1, keepdim=True)",
        "f32[batch, 1, h = height / 4, v = width / 2]",
    ),
    _case(
        "two",
        "return F.conv2d(F.relu(F.conv2d(x, w, b)) + 1, u, stride=2).mean((2, 3)) @ p",
        "f32[batch, heads]",
        "; u: f32[five, filters, three, three]; p: f32[five, heads]",
    ),
    _case(
        "mean_of_windows",
        "return torch.sigmoid(F.avg_pool2d(F.conv2d(x, w, b, padding=1) * 2, (3, 4), (3, 2)) + c)",
        "f32[batch, filters, h = height / 3, v = (width - 2) / 2]",
        "; c: f32[filters, one, one]",
    ),
    _case(
        "mean_of_turned_windows",
        "return F.avg_pool2d(F.conv_transpose2d(x, t, b, (2, 3), (1, 2)), (2, 3))",
        "f32[batch, filters, h = height - 1, v = width - 1]",
        "; t: f32[heads, filters, three, five]",
    ),
    _case(
        "mean_of_all",
        "y = F.conv_transpose2d(x, t, b, 2, 1, 1) * 0.5\n"
        "return torch.logsumexp(y.mean((2, 3), keepdim=True) + b.view(-1, 1, 1), 1)",
        "f32[batch, 1, 1]",
        "; t: f32[heads, filters, three, five]",
    ),
    _case(
        "mean_of_strided",
        "return F.conv2d(x, w, b, stride=2, padding=2, dilation=2).mean((2, 3))",
        "f32[batch, filters]",
    ),
    _case(
        "mean_of_rows",
        "return torch.tanh(F.conv2d(x, w, b, padding=1).mean(2, keepdim=True))",
        "f32[batch, filters, 1, width]",
    ),
    _case(
        "mean_of_columns",
        "return F.conv_transpose2d(x, t, b, 2, 1).mean(3)",
        "f32[batch, filters, h = height * 2 - 1]",
        "; t: f32[heads, filters, three, five]",
    ),
    Placed(
        "mean_of_product",
        "return F.avg_pool1d((F.linear(x, w, b) * 2 - 1).unsqueeze(1), 4).squeeze(1).relu()",
        "x: f32[rows, cols]; w: f32[filters, cols]; b: f32[filters]",
        "f32[rows, v = filters / 4]",
        ({"rows": 5, "cols": 33, "filters": 12},),
        (("filters", 4),),
    ),
)
BY_NAME = {one.name: one for one in CASES}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mean_of_all", "most of the work is gone"),
        ("mean_of_rows", "most of the work is gone"),
        ("mean_of_windows", "whose weights are sums"),
        ("mean_of_turned_windows", "whose weights are sums"),
        ("batch_norm_pool", "what is normalised is not stored"),
        ("group_norm_mean", "what is normalised is not stored"),
        ("group_norm_logsumexp", "what is normalised is not stored"),
        ("mean_of_product", "the means of the weights"),
        ("pools", "made as one with larger windows"),
    ],
)
def test_work_that_algebra_made_disappear_is_said(name: str, said: str) -> None:
    assert any(said in one for one in BY_NAME[name].answer.structures[0].notes)


def test_a_chain_is_right(tmp_path: Path) -> None:
    case = BY_NAME["softmax_pool"]
    check_structure(case, any_graph(case.task, case.ask).draft, tmp_path, only=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_NAME)
def test_a_chain_is_right_at_odd_sizes(name: str, tmp_path: Path) -> None:
    case = BY_NAME[name]
    for step in (case.answer.draft, *case.answer.structures[:1]):
        check_structure(case, step, tmp_path)


def test_the_eps_of_a_norm_by_running_statistics_may_be_an_argument() -> None:
    def normed(x: Tensor, w: Tensor, m: Tensor, v: Tensor, eps: float) -> Tensor:
        return F.relu(F.batch_norm(F.conv2d(x, w), m, v, eps=eps))

    more = "; m: f32[filters]; v: f32[filters]"
    case = Placed(
        "normed", "", _CONV.rpartition(";")[0] + more, "f32[batch, filters, h = height - 2, u = width - 2]", ()
    )
    dimensions = tuple(replace(one, varies=one.name != "three") for one in case.task.dimensions)
    inputs = (*case.task.inputs, NumberInput("eps", ScalarType.FLOAT, 1e-5))
    task = replace(case.task, inputs=inputs, dimensions=dimensions)
    text = answer(task, lambda request: trace(normed, request)).structures[0].write(task_op_line(task))
    launch = text[text.index("//! launch") : text.index("constexpr")]
    assert "eps" in launch
