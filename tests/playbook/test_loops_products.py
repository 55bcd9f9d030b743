"""Products and attention of the loops on tensor cores: every way to read an operand, odd sizes, split sums, masks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.playbook.agreement import load_structure
from tests.playbook.placed import ARCHITECTURES, Placed, check_structure

from tilewright.playbook.understanding import any_graph
from tilewright.tasks import task_op_line

_AB = "x: {0}[m, k]; w: {0}[k, n]"
_ODD = ({"m": 65, "n": 136, "k": 72}, {"m": 1, "n": 1, "k": 1}, {"m": 3, "n": 5, "k": 17}, {"m": 129, "n": 65, "k": 33})
_NIBBLES = """
sh = torch.arange(0, 32, 4, device=p.device)
w = ((p[:, :, None] >> sh) & 15).view(p.shape[0], -1).float() - 8
return x @ (w * s[:, None].float()).to(x.dtype).t()
"""
_CAPPED = """
s = (q @ k.transpose(-1, -2)).float() / math.sqrt(q.shape[-1])
s = 50.0 * torch.tanh(s / 50.0)
m = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
return torch.softmax(s.masked_fill(~m, float("-inf")), -1).to(q.dtype) @ v
"""
_WINDOW = """
i = torch.arange(q.shape[2], device=q.device)
m = (i[None] <= i[:, None]) & (i[None] > i[:, None] - 20)
return F.scaled_dot_product_attention(q, k, v, attn_mask=m)
"""
_BIASED = """
s = torch.einsum('bhid,bhjd->bhij', q, k) * 0.125 + b
return torch.einsum('bhij,bhjd->bhid', s.softmax(-1), v)
"""
_CAUSAL = "return F.scaled_dot_product_attention(q, k, v, is_causal=True)"
_CONV = "return F.relu(F.conv2d(x, v, b, padding=1))"
_LINEAR = "x: bf16[m, k]; w: bf16[n, k]; b: bf16[n]"
_MANY = "q: {0}[batch, heads, rows, depth]; k: {0}[batch, heads, {1}, depth]; v: {0}[batch, heads, {1}, depth]"
_PER_HEAD = "{0}[batch, heads, rows, depth]"
_PLANES = "x: f16[batch, c, height, width]; v: f16[o, c, three, three]; b: f16[o]"

PRODUCTS = (
    Placed("linear", "return F.gelu(F.linear(x, w, b))", _LINEAR, "bf16[m, n]", _ODD),
    Placed("added", "return x @ w + r", f"{_AB.format('f16')}; r: f16[m, n]", "f16[m, n]", _ODD),
    Placed("singles", "return torch.relu(x @ w)", _AB.format("f32"), "f32[m, n]", _ODD),
    Placed("turned", "return x.t() @ w.t()", "x: f32[k, m]; w: f32[n, k]", "f32[m, n]", _ODD),
    Placed("halves_turned", "return x.t() @ w.t()", "x: bf16[k, m]; w: bf16[n, k]", "bf16[m, n]", _ODD),
    Placed("batched", "return x @ w", "x: f16[batch, m, k]; w: f16[batch, k, n]", "f16[batch, m, n]", _ODD[:3]),
    Placed(
        "chained",
        "return (x @ w) @ u",
        "x: bf16[long, cols]; w: bf16[cols, wide]; u: bf16[wide, keys]",
        "bf16[long, keys]",
        ({"long": 33, "cols": 24, "wide": 40, "keys": 17},),
    ),
    Placed(
        "eight_bits",
        "return x @ (w.to(torch.bfloat16) * s[:, None]).t()",
        "x: bf16[m, k]; w: i8[n, k]; s: bf16[n]",
        "bf16[m, n]",
        _ODD[:3],
    ),
    Placed(
        "four_bits",
        _NIBBLES,
        "p: i32[n, words]; s: f16[n]; x: bf16[m, k = words * 8]",
        "bf16[m, n]",
        ({"words": 5, "m": 4, "n": 70},),
    ),
    Placed("long_sums", "return F.silu(x @ w)", "x: f16[m, long]; w: f16[long, n]", "f16[m, n]", ({"m": 9, "n": 20},)),
    Placed(
        "convolved",
        _CONV,
        _PLANES,
        "f16[batch, o, height, width]",
        ({"c": 5, "height": 7, "width": 9, "o": 11}, {"c": 5, "height": 8, "width": 16, "o": 11}),
    ),
)
ATTENTION = (
    Placed(
        "capped",
        _CAPPED,
        _MANY.format("bf16", "keys"),
        _PER_HEAD.format("bf16"),
        ({"rows": 65, "keys": 130, "depth": 40}, {"rows": 3, "keys": 17, "depth": 5}),
    ),
    Placed("causal", _CAUSAL, _MANY.format("bf16", "rows"), _PER_HEAD.format("bf16"), ({"rows": 130, "depth": 24},)),
    Placed("windowed", _WINDOW, _MANY.format("bf16", "rows"), _PER_HEAD.format("bf16"), ({"rows": 200, "depth": 24},)),
    Placed(
        "biased",
        _BIASED,
        f"{_MANY.format('f16', 'keys')}; b: f16[heads, rows, keys]",
        _PER_HEAD.format("f16"),
        ({"rows": 33, "keys": 70, "depth": 136},),
    ),
)
_SLACK = {"eight_bits": 4.0, "four_bits": 4.0}  # the function itself rounds its weights, and f64 does not
_QUICK = (PRODUCTS[0], PRODUCTS[2], PRODUCTS[7], PRODUCTS[9], ATTENTION[0], ATTENTION[2])


def _text(case: Placed) -> str:
    (step,) = any_graph(case.task, case.ask).every
    return step.write(task_op_line(case.task))


@pytest.mark.parametrize("case", _QUICK, ids=lambda one: one.name)
def test_it_is_right_at_odd_sizes(case: Placed, tmp_path: Path) -> None:
    (step,) = any_graph(case.task, case.ask).every
    check_structure(case, step, tmp_path, slack=_SLACK.get(case.name, 1.0))


@pytest.mark.slow
@pytest.mark.parametrize("gpu", ARCHITECTURES.values(), ids=ARCHITECTURES)
@pytest.mark.parametrize("case", [*PRODUCTS, *ATTENTION], ids=lambda one: one.name)
def test_it_is_right_for_every_architecture(
    case: Placed, gpu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_EMULATE", gpu)
    (step,) = any_graph(case.task, case.ask).every
    check_structure(case, step, tmp_path, slack=_SLACK.get(case.name, 1.0))


@pytest.mark.parametrize("case", ATTENTION, ids=lambda one: one.name)
def test_attention_is_one_launch_without_scratch(case: Placed) -> None:
    lines = _text(case).splitlines()
    assert sum(one.startswith("//! launch") for one in lines) == 1
    assert not any(one.startswith("//! scratch") for one in lines)


@pytest.mark.parametrize(("case", "kept"), [(ATTENTION[1], "min("), (ATTENTION[2], "max(")], ids=["causal", "windowed"])
def test_keys_that_a_mask_excludes_are_passed_over(case: Placed, kept: str) -> None:
    (line,) = (one for one in _text(case).splitlines() if "keys_begin =" in one)
    assert kept in line


def test_what_lies_between_products_is_kept_in_sixteen_bits() -> None:
    scratch = [one for one in _text(PRODUCTS[6]).splitlines() if one.startswith("//! scratch scratch")]
    assert len(scratch) == 1
    assert ": bf16[" in scratch[0]


def test_few_results_of_long_sums_are_split() -> None:
    assert "k0_sum<<<" in _text(PRODUCTS[9])


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), 3e38])
def test_one_odd_number_reaches_the_results_that_it_should(odd: float, tmp_path: Path) -> None:
    (step,) = any_graph(PRODUCTS[2].task, PRODUCTS[2].ask).every
    op = load_structure(step, PRODUCTS[2].task, tmp_path)
    x, w = torch.ones(17, 33), torch.ones(33, 20)
    x[5, 7], w[7, 3] = odd, 4.0
    got, want = op(x, w), torch.relu(x @ w)
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got.isinf(), want.isinf())
    assert torch.allclose(got.nan_to_num(0, 0, 0), want.nan_to_num(0, 0, 0), rtol=2e-6)
