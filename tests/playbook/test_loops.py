"""Functions that no family of the playbook takes whole: written as loops, right at odd sizes, the same every time."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.playbook.agreement import check, load_structure
from tests.playbook.functions import Function, task_of
from tests.playbook.placed import ARCHITECTURES, Placed, check_structure

import tilewright
from tilewright.playbook.errors import NotSupported
from tilewright.playbook.tracing import trace
from tilewright.playbook.understanding import answer, any_graph
from tilewright.records import Layout, Task, TensorInput
from tilewright.tasks import task_op_line

_X, _Y = "x: f32[rows, cols]", "f32[rows, cols]"
_AT = ({"rows": 5, "cols": 37}, {"rows": 1, "cols": 530})
_SMALL = ({"rows": 11, "cols": 13},)
_PLANE = "x: f32[batch, heads, height, width]"
_ODD = ({"height": 9, "width": 13},)
_ROPE = """
n = (q.float() * torch.rsqrt(q.float().pow(2).mean(-1, keepdim=True) + 1e-6)).to(q.dtype) * w
a, b = n.chunk(2, -1)
return n * c[None, :, None, :] + torch.cat((-b, a), -1) * s[None, :, None, :]
"""
_CAUSAL = """
mask = torch.triu(torch.ones(x.shape[-1], x.shape[-1], dtype=torch.bool, device=x.device), 1)
return torch.softmax(x.masked_fill(mask, float("-inf")), -1)
"""
_SHIFTED = """
return F.cross_entropy(x[:, :-1].reshape(-1, x.shape[-1]), t[:, 1:].reshape(-1))
"""
_ENTROPY = """
p = torch.log_softmax(x.float(), -1)
return p.gather(-1, t[:, None])[:, 0], -(p.exp() * p).sum(-1)
"""
_MAMBA = """
kept = torch.roll(s, -1, -1)
kept[:, :, -1] = x
return F.silu((kept * w).sum(-1) + b), kept
"""
_BLOCK = """
y = F.conv2d(x, d, padding=1, groups=x.shape[1]).permute(0, 2, 3, 1)
y = F.linear(F.gelu(F.linear(F.layer_norm(y, y.shape[-1:]), u)), v)
return x + y.permute(0, 3, 1, 2)
"""
_ATTENTION = """
q = F.rms_norm(F.linear(x, u).view(x.shape[0], x.shape[1], -1, 8), (8,)).transpose(1, 2)
k = F.linear(x, v).view(x.shape[0], x.shape[1], -1, 8).transpose(1, 2)
return F.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True).transpose(1, 2).flatten(2)
"""
_KEPT = "keep = torch.arange(x.shape[1], device=x.device)[None] < n[:, None]\nreturn torch.where(keep, x, 0.0).sum(-1)"
_TOP = "v, i = torch.softmax(x @ w.t(), -1).topk(2, -1)\nreturn v / v.sum(-1, keepdim=True)"
_TABLE = "return (x - torch.tensor([0.5, 0.4, 0.3], device=x.device)) / torch.tensor([2.0, 3.0, 5.0], device=x.device)"
_ROPES = "q: bf16[batch, rows, heads, depth]; w: bf16[depth]; c: bf16[rows, depth]; s: bf16[rows, depth]"
_TWICE = "f32[batch, heads, h = height * 2, w = width * 2]"
_STATE = "x: f32[batch, rows]; s: f32[batch, rows, depth]; w: f32[rows, depth]; b: f32[rows]"
_CHANNELS = "x: f32[batch, depth, height, width]; d: f32[depth, one, three, three]"
_WEIGHTS = f"{_CHANNELS}; u: f32[words, depth]; v: f32[depth, words]"
_FILTERED = "x: f32[batch, depth, height, width]; d: f32[words, depth, three, three]"
_PROJECTED = "x: f32[batch, rows, cols]; u: f32[wide, cols]; v: f32[wide, cols]"

QUICK = (
    Placed("router", _TOP, f"{_X}; w: f32[depth, cols]", "f32[rows, 2]", ({"rows": 5, "cols": 7, "depth": 9},)),
    Placed("causal_softmax", _CAUSAL, "x: f32[batch, size, size]", "f32[batch, size, size]", ({"size": 9},)),
    Placed("triangle_softmax", "return x.tril().softmax(-1)", _X, _Y, _AT),
    Placed("kept", _KEPT, f"{_X}; n: i64[rows]", "f32[rows]", _SMALL),
    Placed("log_probabilities", _ENTROPY, f"{_X}; t: i64[rows]", "f32[rows]; f32[rows]", _SMALL),
    Placed("sorted", "v, i = x.sort(-1)\nreturn v, i.float()", _X, f"{_Y}; {_Y}", _AT),
    Placed("greatest_so_far", "return torch.cummax(x, 1)[0]", _X, _Y, _SMALL),
    Placed("scan_of_a_scan", "return torch.cumsum(torch.cumsum(x, 1), 0)", _X, _Y, _SMALL),
    Placed("normalised", _TABLE, "x: f32[rows, three]", "f32[rows, three]", _SMALL),
    Placed(
        "rotated",
        _ROPE,
        _ROPES,
        "bf16[batch, rows, heads, depth]",
        ({"rows": 3, "depth": 6},),
        (("depth", 2),),
    ),
    Placed(
        "bilinear",
        "return F.interpolate(x, scale_factor=2.0, mode='bilinear')",
        _PLANE,
        _TWICE,
        ({"height": 3, "width": 5},),
    ),
    Placed("added_up", "return torch.zeros_like(x).index_add(0, i, x)", f"{_X}; i: i64[rows]", _Y, _SMALL),
    Placed(
        "changed_rows", "return torch.relu(x).flip(0) - x.mean(0), x.roll(1, 0).amax(1)", _X, f"{_Y}; f32[rows]", _SMALL
    ),
)

LONG = (
    Placed(
        "shifted_loss", _SHIFTED, "x: f32[batch, rows, cols]; t: i64[batch, rows]", "f32[]", ({"rows": 5, "cols": 9},)
    ),
    Placed("mamba_step", _MAMBA, _STATE, "f32[batch, rows]; f32[batch, rows, depth]", ({"rows": 5, "depth": 4},)),
    Placed("block", _BLOCK, _WEIGHTS, "f32[batch, depth, height, width]", ({"depth": 6, "height": 5, "width": 7},)),
    Placed(
        "attention",
        _ATTENTION,
        _PROJECTED,
        "f32[batch, rows, wide]",
        ({"rows": 5, "cols": 9, "wide": 24},),
        (("wide", 8),),
    ),
    Placed("long_choice", "return torch.topk(x, 200)[0]", _X, "f32[rows, 200]", ({"rows": 3, "cols": 260},)),
    Placed("all_pairs_chosen", "return torch.topk(x @ x.T, 2)[0]", _X, "f32[rows, 2]", _SMALL),
    Placed(
        "pooled_twice",
        "return F.avg_pool2d(F.max_pool2d(x, 2), 2)",
        _PLANE,
        "f32[batch, heads, h = height / 4, w = width / 4]",
        _ODD,
    ),
    Placed(
        "best_places",
        "return F.max_pool2d(x, 2, return_indices=True)[1]",
        _PLANE,
        "i64[batch, heads, h = height / 2, w = width / 2]",
        _ODD,
    ),
    Placed("few_means", "return F.adaptive_avg_pool2d(x, (3, 5))", _PLANE, "f32[batch, heads, 3, 5]", _ODD),
    Placed(
        "of_every_other",
        "return x[:, ::2].softmax(-1)",
        _X,
        "f32[rows, m = cols / 2]",
        ({"rows": 3, "cols": 34},),
        (("cols", 2),),
    ),
    Placed(
        "weighted",
        "return F.cross_entropy(x, t, w, label_smoothing=0.1)",
        f"{_X}; t: i64[rows]; w: f32[cols]",
        "f32[]",
        _SMALL,
    ),
    Placed("half", "return (x.half() * 3).cumsum(1).amax(0), x.half().sum(1)", _X, "f16[cols]; f16[rows]", _SMALL),
    Placed(
        "whole",
        "return a // b, a % b, a * b, a >> 2",
        "a: i32[rows, cols]; b: i32[rows, cols]",
        "i32[rows, cols]; i32[rows, cols]; i32[rows, cols]; i32[rows, cols]",
        (),
    ),
)


@pytest.mark.parametrize("case", QUICK, ids=lambda one: one.name)
def test_it_is_right_at_odd_sizes(case: Placed, tmp_path: Path) -> None:
    (step,) = any_graph(case.task, case.ask).every
    check_structure(case, step, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("gpu", ARCHITECTURES.values(), ids=ARCHITECTURES)
@pytest.mark.parametrize("case", [*QUICK, *LONG], ids=lambda one: one.name)
def test_it_is_right_for_every_architecture(
    case: Placed, gpu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_EMULATE", gpu)
    (step,) = any_graph(case.task, case.ask).every
    check_structure(case, step, tmp_path)


@pytest.mark.parametrize("body", ["return x.softmax(-1)", "return torch.topk(x, 2)[0]", "return torch.cumsum(x, 1)"])
def test_schedules_that_match_come_after_the_baseline(body: str) -> None:
    answer = Placed("taken", body, _X, _Y, ()).answer
    assert answer.draft.id == "loops"
    assert answer.structures
    assert "loops" not in {one.id for one in answer.structures}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return x[x > 0]", "cannot follow|mask"),
        ("return torch.linalg.svdvals(x)", "no rule for .*svd"),
        ("return F.dropout(x.sort(-1)[0])", "no rule for"),
        ("return torch.fft.fft(x.sort(-1)[0]).real", "no rule for|complex"),
    ],
)
def test_what_has_no_rule_is_refused_by_name(body: str, said: str) -> None:
    with pytest.raises(NotSupported, match=said):
        _ = Placed("refused", body, _X, _Y, ()).answer


@pytest.mark.parametrize(
    "function",
    [
        Function("normed", "return x.norm(p, -1)", "x: f32[rows, cols]; p = 2.0"),
        Function("moving", "return torch.tril(x @ w, x.shape[0] - 5)", "x: f32[m, k]; w: f32[k, n]"),
        Function("scaled", "return (x * s).sort(-1)[0] / math.sqrt(x.shape[1])", "x: f32[rows, cols]; s = 2.0"),
    ],
    ids=lambda one: one.name,
)
def test_numbers_follow_sizes_and_arguments(function: Function, tmp_path: Path) -> None:
    task = task_of(function, {"m": 9, "n": 7, "k": 8, "rows": 6, "cols": 8})
    found = answer(task, lambda request: trace(function.callable, request))
    check(load_structure(found.draft, task, tmp_path), function, task, task.sizes)


@pytest.mark.parametrize(
    "body",
    [
        "return x * max(x.shape[1] // 2, 1) ** -0.5",
        "return x * (x.shape[0] + x.shape[1]) ** -0.5",
        "return x * 2 / math.sqrt(x.shape[0] * x.shape[1] - 1)",
    ],
)
def test_roots_of_sizes_are_followed(body: str, tmp_path: Path) -> None:
    case = Placed("rooted", body, _X, _Y, _AT)
    (step,) = any_graph(case.task, case.ask).every
    check_structure(case, step, tmp_path)


def test_one_dimension_may_be_longer_than_another(tmp_path: Path) -> None:
    """A test that holds at every traced size, since those of one dimension all were the smaller ones, is kept."""
    body = "return torch.cat([x, w], 1)[:, : x.shape[0]]"
    case = Placed("cut", body, f"{_X}; w: f32[rows, wide]", "f32[rows, rows]", ())
    (step,) = any_graph(case.task, case.ask).every
    op = load_structure(step, case.task, tmp_path)
    for rows, cols, wide in ((9, 5, 7), (5, 9, 1), (3, 1, 2)):
        x, w = torch.randn(rows, cols), torch.randn(rows, wide)
        assert torch.equal(op(x, w), torch.cat([x, w], 1)[:, :rows])


def test_what_is_another_number_at_size_1_is_not_written_for_it(tmp_path: Path) -> None:
    case = Placed("spaced", "return x / max(x.shape[1] - 1, 1)", _X, _Y, ({"rows": 3, "cols": 2},))
    (step,) = any_graph(case.task, case.ask).every
    check_structure(case, step, tmp_path)
    assert "x.shape[1] >= 2" in (tmp_path / "spaced.cu").read_text()


@pytest.mark.parametrize(
    ("body", "need"),
    [
        ("return torch.diagonal(x).exp().sum()", "x.shape[0] <= x.shape[1]"),
        ("return torch.diagonal(x.t(), -1).sum()", "x.shape[0] + 1 <= x.shape[1]"),
        ("return x[:, : x.shape[0]].sum()", "x.shape[0] <= x.shape[1]"),
        ("return x[: x.shape[1]].sum()", "x.shape[0] <= x.shape[1]"),
        ("return x[:, : -x.shape[0]].sum()", "x.shape[0] <= x.shape[1]"),
    ],
)
def test_what_is_read_of_a_dimension_lies_in_it(body: str, need: str) -> None:
    """Where one dimension was the shorter one in every traced call, it has to be."""
    case = Placed("within", body, _X, "f32[]", ())
    (step,) = any_graph(case.task, case.ask).every
    assert f"//! need    {need}" in _plan(step.write(task_op_line(case.task)))


def _plan(text: str) -> str:
    """The plan with its lets in their places."""
    for name, value in reversed(re.findall(r"(\bn\d+) = ([^,\n]+)", text)):
        text = re.sub(rf"\b{name}\b", value, text)
    return text


def test_what_squeeze_leaves_in_place_is_not_taken_at_size_1() -> None:
    case = Placed("squeezed", "return F.rms_norm(x.squeeze(), x.squeeze().shape[-1:]).square().sum()", _X, "f32[]", ())
    (step,) = any_graph(case.task, case.ask).every
    text = step.write(task_op_line(case.task))
    assert "x.shape[0] >= 2" in text
    assert "x.shape[1] >= 2" in text


def test_pytorch_s_own_casts_do_not_round() -> None:
    """The greatest of log-probabilities is not sought among ties that only a cast inside of log_softmax makes."""
    case = Placed("likeliest", "return torch.log_softmax(x, -1).argmax(-1)", "x: f16[rows, cols]", "i64[rows]", ())
    (step,) = any_graph(case.task, case.ask).every
    assert "(__float2half(" not in step.write(task_op_line(case.task)).rpartition("using index_t")[2]


def test_whole_numbers_are_compared_as_pytorch_casts_them(tmp_path: Path) -> None:
    """A number and a tensor of no dimensions are cast to the dtype of a tensor that has some."""
    body = "return (x.to(torch.int64) * 100000).sum() > x, x.to(torch.int8) < 300"
    case = Placed("compared", body, "x: i32[rows]", "bool[rows]; bool[rows]", ())
    (step,) = any_graph(case.task, case.ask).every
    x = torch.tensor([29000, 5, 200, -4], dtype=torch.int32)
    for found, wanted in zip(load_structure(step, case.task, tmp_path)(x), case.function.callable(x), strict=True):
        assert torch.equal(found, wanted)


def test_a_filter_may_be_of_any_size(tmp_path: Path) -> None:
    case = Placed(
        "filtered",
        "return F.conv2d(x, d, padding=1)",
        _FILTERED,
        "f32[batch, words, h = height - three + 3, w = width - three + 3]",
        (),
    )
    (step,) = any_graph(case.task, case.ask).every
    op = load_structure(step, case.task, tmp_path)
    for size in (1, 2, 5):
        x, d = torch.randn(2, 3, 6, 7), torch.randn(4, 3, size, size)
        assert torch.allclose(op(x, d), torch.nn.functional.conv2d(x, d, padding=1), atol=1e-5)


# -- strides --

_IN_MEMORY = {
    "turned": lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2),
    "packed": lambda x: torch.cat((x, x, x), -1)[..., x.shape[-1] : 2 * x.shape[-1]],
    "expanded": lambda x: x[:1].expand_as(x),
}
_STRIDED = (
    ("return F.gelu(x) * w, x.sum(-1)", _X + "; w: f32[cols]", f"{_Y}; f32[rows]"),
    ("return x @ w.t()", f"{_X}; w: f32[wide, cols]", "f32[rows, wide]"),
    ("return F.scaled_dot_product_attention(x, w, w, is_causal=True)", f"{_X}; w: f32[rows, cols]", _Y),
)
_CHANGED = (
    "x.mul_(2).add_(w)",
    "x.sub_(x.mean(-1, keepdim=True))",
    "x.copy_(x.cumsum(1) + w)",
    "x.copy_(x @ torch.tril(torch.ones(x.shape[1], x.shape[1])) + w)",
    "x.copy_(x.flip(0) + w)",
    "x.index_copy_(0, torch.arange(2), w.expand(2, -1))",
)


def _laid_out(case: Placed, how: str, in_place: tuple[str, ...] = ()) -> Task:
    """The task with all matrices in memory like this."""

    def one(given: TensorInput) -> TensorInput:
        matrix = len(given.dimensions) == 2
        order = (1, 0) if how == "turned" and matrix else ()
        layout = Layout.PADDED if how != "turned" and matrix else Layout.DENSE
        return replace(given, memory_order=order, layout=layout, in_place=given.name in in_place)

    return replace(case.task, inputs=tuple(one(given) for given in case.task.tensors))


@pytest.mark.parametrize("how", _IN_MEMORY)
@pytest.mark.parametrize("function", _STRIDED, ids=["rows", "product", "attention"])
def test_tensors_may_have_any_strides(function: tuple[str, str, str], how: str, tmp_path: Path) -> None:
    case = Placed("laid", *function, ())
    task = _laid_out(case, how)
    op = load_structure(answer(task, case.ask).draft, task, tmp_path)
    w = torch.randn([{"wide": 4, "cols": 13, "rows": 11}[name] for name in task.tensors[1].dimensions])
    given = _IN_MEMORY[how](torch.randn(11, 13)), _IN_MEMORY[how](w) if w.ndim > 1 else w
    got, want = op(*given), case.function.callable(*given)
    for one, other in zip(*((each if isinstance(each, tuple) else (each,)) for each in (got, want)), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("how", ["turned", "packed"])
@pytest.mark.parametrize("body", _CHANGED)
def test_so_may_arguments_that_are_changed(body: str, how: str, tmp_path: Path) -> None:
    case = Placed("changed", body, f"{_X}; w: f32[cols]", "f32[rows]", ())
    task = replace(_laid_out(case, how, ("x",)), outputs=())
    op = load_structure(answer(task, case.ask).draft, task, tmp_path)
    x, w = _IN_MEMORY[how](torch.randn(11, 13)), torch.randn(13)
    want = x.clone()
    case.function.callable(want, w)
    op(x, w)
    assert torch.allclose(x, want, atol=1e-5)


def test_what_is_written_at_some_places_leaves_the_rest_alone() -> None:
    """A cache is not copied for a few rows of it."""
    case = Placed("appended", "x.index_copy_(0, i, w)", f"{_X}; w: f32[words, cols]; i: i64[words]", "f32[rows]", ())
    task = replace(_laid_out(case, "dense", ("x",)), outputs=())
    text = any_graph(task, case.ask).draft.write(task_op_line(task))
    assert text.count("//! launch") == 1
    assert "scratch" not in text


@pytest.mark.slow
def test_a_kernel_is_made_for_a_slice_of_a_packed_projection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path))
    part = torch.randn(16, 9, 72)[..., 24:48].transpose(0, 1)
    source = tmp_path / "gated.py"
    source.write_text("import torch.nn.functional as F\n\n\ndef gated(q):\n    return F.silu(q) * 2\n")
    made = tilewright.make(f"{source}:gated", q=part, author="playbook", gpu="H200")
    assert torch.allclose(made(part), torch.nn.functional.silu(part) * 2, atol=1e-5)


_ROOT = Path(__file__).parents[2]
_CODE = """
from tests.playbook.test_loops import _texts
print(_texts())
"""


def _texts() -> str:
    cases = (*QUICK[:6], LONG[2], LONG[3])
    return "".join(any_graph(case.task, case.ask).draft.write(task_op_line(case.task)) for case in cases)


@pytest.mark.slow
def test_the_text_is_the_same_in_every_process() -> None:
    """No order follows from hashes, which differ from process to process."""
    command = ["env", "PYTHONHASHSEED=7", sys.executable, "-c", _CODE]
    other = subprocess.run(command, capture_output=True, text=True, check=True, cwd=_ROOT).stdout
    assert other == f"{_texts()}\n"
