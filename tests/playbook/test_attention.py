"""Attention: what is read from graphs, and every structure on the emulator against PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.playbook.agreement import load_structure
from tests.playbook.attention_cases import CASES
from tests.playbook.placed import ARCHITECTURES, Placed, check_structure

from tilewright.playbook.attention.program import Attention, attention_program
from tilewright.playbook.tracing import TraceRequest, Traces, trace
from tilewright.playbook.understanding import traced_task
from tilewright.reference import ReferenceProblem

# Weights are rounded to 16 bits before they are added up, as in every fused kernel; tensor cores cut bits off.
_SLACK = 4.0


def _read(case: Placed) -> Attention:
    made = case.function.callable

    def ask(request: TraceRequest) -> Traces:
        try:
            return trace(made, request)
        except (RuntimeError, ValueError) as error:
            raise ReferenceProblem(str(error)) from error

    return attention_program(traced_task(case.task, ask))


@pytest.mark.parametrize(
    ("name", "scale", "causal"),
    [
        ("plain", "1.0 / sqrt(q.shape[3])", None),
        ("scaled", "0.3", None),
        ("causal", "1.0 / sqrt(q.shape[3])", "0"),
        ("by_hand_shifted", "1.0 / sqrt(q.shape[3])", "k.shape[2] - q.shape[2]"),
    ],
)
def test_scale_and_mask_are_recognised(name: str, scale: str, causal: str | None) -> None:
    made = _read(CASES[name])
    assert made.scores.value is None
    assert made.scores.scale == scale
    assert (made.scores.causal.text if made.scores.causal else None) == causal
    assert made.zero_where_masked == (name != "by_hand_shifted")


def test_heads_that_share_keys_are_one_unit() -> None:
    made = _read(CASES["grouped_causal"])
    assert [one.size.own for one in made.units] == [3]
    assert [one.size.own for one in made.sharing] == [2]


def test_heads_side_by_side_are_strides() -> None:
    made = _read(CASES["side_by_side"])
    factors = {one.size.own: made.key.place.factor(one) for one in (*made.units, made.along)}
    assert {size: factor.own for size, factor in factors.items() if factor} == {3: 70 * 128, 2: 64, 70: 128}
    assert made.is_plain


def test_more_than_attention_is_left_to_others() -> None:
    body = "s = torch.softmax(q @ k.mT, -1)\nreturn (s * s) @ v"
    case = Placed(
        "squared", body, "q: f32[rows, size]; k: f32[keys, size]; v: f32[keys, size]", "f32[rows, size]", ({},)
    )
    assert not any(one.id.startswith("attention") for one in case.answer.every)
    wide = "q: f32[rows, wide]; k: f32[keys, wide]; v: f32[keys, wide]"
    case = Placed("wide", "return torch.softmax(q @ k.mT, -1) @ v", wide, "f32[rows, wide]", ({},))
    assert not any(one.id.startswith("attention") for one in case.answer.every)


def test_a_small_one_runs(tmp_path: Path) -> None:
    case = CASES["by_hand"]
    (step,) = [one for one in case.answer.structures if one.id == "attention-flash"]
    at = ({"batch": 1, "heads": 1, "rows": 5, "keys": 7, "size": 8},)
    check_structure(Placed(case.name, case.body, case.inputs, case.results, at), step, tmp_path, slack=_SLACK)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("name", CASES)
def test_every_structure_computes_what_the_reference_does(
    name: str, arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_GPU", ARCHITECTURES[arch])
    case = CASES[name]
    for step in case.answer.every:
        if "hopper" in step.id and arch != "sm_90a":
            continue
        folder = tmp_path / step.id
        folder.mkdir()
        check_structure(case, step, folder, slack=_SLACK)


@pytest.mark.slow
@pytest.mark.parametrize("id", ["attention-hopper-parts", "attention-flash-parts"])
def test_f32_is_as_exact_as_f32_whatever_the_values_are(id: str, tmp_path: Path) -> None:
    case = CASES["plain_f32"]
    (step,) = [one for one in case.answer.every if one.id == id]
    op = load_structure(step, case.task, tmp_path)
    made = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, count, 64, generator=made) for count in (70, 130, 130))
    far_apart = v * torch.exp(8 * torch.randn(1, 2, 130, 64, generator=made))
    one_large = torch.cat([v[:, :, :1] * 1e12, v[:, :, 1:]], 2)
    without_number = v.clone()
    without_number[0, 0, 3, 5] = float("nan")
    columns = v * 10 ** torch.linspace(-8, 8, 64)
    for given in ((q, k, v), (q, k, far_apart), (q, k, columns), (q, k, one_large), (100 * q, 100 * k, v)):
        _check_exact(op, *given)
    _check_exact(op, q * 1e-20, k * 1e-20, v * 1e-30)
    _check_exact(op, q, k, without_number)


def _check_exact(op: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Beside f32's own error: of each column the greatest of both."""
    wanted = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double())
    own = (torch.nn.functional.scaled_dot_product_attention(q, k, v).double() - wanted).abs()
    off = (op(q, k, v).double() - wanted).abs()
    assert torch.equal(off.isnan(), wanted.isnan())
    allowed = 4 * own.nan_to_num().amax(2) + 1e-6 * wanted.nan_to_num().abs().amax(2)
    assert (off.nan_to_num().amax(2) <= allowed).all()


LONG_HEADS = Placed(
    "long_heads",
    "return F.scaled_dot_product_attention(q, k, v)",
    "q: f32[batch, heads, rows, wide]; k: f32[batch, heads, cols, wide]; v: f32[batch, heads, cols, long]",
    "f32[batch, heads, rows, long]",
    (
        {"batch": 1, "rows": 140, "cols": 300, "wide": 100, "long": 264},  # two blocks of a cluster
        {"batch": 1, "rows": 20, "cols": 68, "wide": 36, "long": 8},
    ),
)


def test_a_softmax_between_two_products_is_done_by_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_GPU", "H200")
    step = LONG_HEADS.answer.structures[0]
    assert step.id == "product-hopper-fused-softmax"
    check_structure(LONG_HEADS, step, tmp_path, slack=_SLACK)


@pytest.mark.parametrize(
    ("case", "id", "sizes"),
    [
        (CASES["plain_f32"], "loops", (5, 37, 16, 16)),
        (CASES["plain_f32"], "attention-flash-parts", (5, 37, 16, 16)),
        (LONG_HEADS, "loops", (9, 68, 36, 8)),
        (LONG_HEADS, "product-hopper-fused-softmax", (20, 68, 36, 8)),
        pytest.param(CASES["plain_f32"], "attention-hopper-parts", (70, 130, 64, 64), marks=pytest.mark.slow),
        pytest.param(LONG_HEADS, "product-hopper-fused-then-lanes", (20, 68, 36, 8), marks=pytest.mark.slow),
        pytest.param(LONG_HEADS, "product-hopper-parts-then-draft-rows", (20, 68, 36, 8), marks=pytest.mark.slow),
        pytest.param(LONG_HEADS, "product-tensor-cores-then-lanes", (20, 68, 36, 8), marks=pytest.mark.slow),
    ],
)
def test_rows_of_minus_infinities_are_zeros(
    case: Placed,
    id: str,
    sizes: tuple[int, int, int, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All scores of a row are minus infinity though nothing is masked: zeros, as PyTorch has it; others are as ever,
    and a row with a NaN among them is NaN."""
    monkeypatch.setenv("TILEWRIGHT_GPU", "H200")
    rows, keys, wide, long = sizes
    made = torch.Generator().manual_seed(0)
    q, k = torch.randn(1, 2, rows, wide, generator=made), torch.rand(1, 2, keys, wide, generator=made) + 0.1
    v = torch.randn(1, 2, keys, long, generator=made)
    q[0, 0, 1], q[0, 1, 2] = -torch.inf, -torch.inf
    k[0, 1, 3, 0] = torch.nan
    (step,) = [one for one in case.answer.every if one.id == id]
    got = load_structure(step, case.task, tmp_path)(q, k, v)
    wanted = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double())
    assert (wanted[0, 0, 1] == 0).all()
    assert wanted[0, 1].isnan().all()
    torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_a_softmax_before_a_vector_is_left_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product with a vector is written as one, which makes no weights of scores."""
    monkeypatch.setenv("TILEWRIGHT_GPU", "H200")
    inputs = "q: f32[heads, rows, wide]; k: f32[heads, cols, wide]; v: f32[heads, cols, one]"
    case = Placed("vector", "return torch.softmax(q @ k.mT, -1) @ v", inputs, "f32[heads, rows, one]", ({},))
    assert "product-hopper-fused-softmax" not in [one.id for one in case.answer.every]


def test_what_is_done_before_and_after_two_such_products_is_written_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A softmax between two products is theirs; keys that are moved before, and rows after them, stay as they are."""
    monkeypatch.setenv("TILEWRIGHT_GPU", "H200")
    inputs = "q: f32[rows, wide]; k: f32[cols, wide]; v: f32[cols, long]"
    body = "return F.scaled_dot_product_attention(q, k, v).softmax(-1)"
    case = Placed("around", body, inputs, "f32[rows, long]", ({"rows": 20, "cols": 68, "wide": 36, "long": 8},))
    step = next(one for one in case.answer.every if one.id.startswith("product-hopper-fused-softmax"))
    check_structure(case, step, tmp_path, slack=_SLACK)


@pytest.mark.slow
def test_weights_of_long_heads_are_as_exact_as_f32_whatever_the_values_are(tmp_path: Path) -> None:
    """Scores far below the others, rows and columns that parts do not hold, infinities and NaN."""
    (step,) = [one for one in LONG_HEADS.answer.every if one.id == "product-hopper-fused-softmax"]
    op = load_structure(step, LONG_HEADS.task, tmp_path)
    made = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 2, count, 68, generator=made) for count in (140, 132))
    v = torch.randn(1, 2, 132, 72, generator=made)
    one_large, far_apart, infinite, none = k.clone(), v.clone(), q.clone(), v.clone()
    one_large[:, :, 5, 3], infinite[0, 1, 7, 3], none[0, 0, 3, 5] = 1e12, torch.inf, torch.nan
    far_apart *= torch.exp(8 * torch.randn(far_apart.shape, generator=made))
    for given in ((q, k, v), (q, k, far_apart), (q, one_large, v), (30 * q, k, v), (q - 1000, k, v), (q, k, none)):
        _check_exact(op, *given)
    _check_exact(op, infinite, k, v)
    nothing = q.clone()
    nothing[0, 0, 5] = -torch.inf  # all of whose scores are minus infinity, beside what parts do not hold
    _check_exact(op, nothing, k.abs() + 0.1, far_apart)
