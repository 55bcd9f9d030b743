"""Losses with class indices: every structure on the emulator against PyTorch."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.playbook.placed import ARCHITECTURES, Placed, check_structure, structure

_AT = ({"rows": 19, "cols": 260}, {"rows": 3, "cols": 13}, {"rows": 1, "cols": 1100})
_X, _HALF = ("x: f32[rows, cols]; t: i64[rows]", "x: bf16[rows, cols]; t: i64[rows]")

CASES = (
    Placed("entropy", "return F.cross_entropy(x, t)", _X, "f32[]", _AT),
    Placed("ignored", "return F.cross_entropy(x, t, ignore_index=2)", _X, "f32[]", _AT[:1]),
    Placed("summed", "return F.cross_entropy(x * 2, t, reduction='sum')", _HALF, "bf16[]", _AT),
    Placed("by_row", "return F.cross_entropy(x, t, reduction='none')", _X, "f32[rows]", _AT),
    Placed("smoothed", "return F.cross_entropy(x, t, label_smoothing=0.1)", _X, "f32[]", _AT),
    Placed(
        "smoothed_rows", "return F.cross_entropy(x, t, reduction='none', label_smoothing=0.3)", _X, "f32[rows]", _AT
    ),
    Placed(
        "smoothed_in_the_middle",
        "return F.cross_entropy(x, t, label_smoothing=0.1)",
        "x: bf16[batch, words, rows]; t: i64[batch, rows]",
        "bf16[]",
        ({"batch": 2, "words": 33, "rows": 5},),
    ),
    Placed(
        "in_the_middle",
        "return F.cross_entropy(x, t)",
        "x: f32[batch, words, rows]; t: i64[batch, rows]",
        "f32[]",
        ({"batch": 2, "words": 33, "rows": 5}, {"batch": 3, "words": 12, "rows": 8}),
    ),
    Placed("likelihood", "return F.nll_loss(x, t)", _X, "f32[]", _AT),
    Placed("weighted", "return F.cross_entropy(x, t, w.abs() + 0.5)", f"{_X}; w: f32[cols]", "f32[]", _AT[:2]),
    Placed("by_hand", "return (torch.logsumexp(x, 1) - x.gather(1, t[:, None])[:, 0]).mean()", _X, "f32[]", _AT),
    Placed(
        "picked_of_embedded",
        "return torch.log_softmax(F.embedding(t, c), -1).gather(-1, u[:, None])",
        "c: f32[words, cols]; t: i64[rows]; u: i64[rows]",
        "f32[rows, 1]",
        ({"rows": 19, "words": 300, "cols": 260}, {"rows": 3, "words": 20, "cols": 13}),
    ),
    Placed("picked", "return torch.softmax(x, -1).gather(-1, t[:, None])", _X, "f32[rows, 1]", _AT),
)
BY_NAME = {one.name: one for one in CASES}


@pytest.mark.parametrize(
    ("name", "id"), [("smoothed", "loss-warps"), ("likelihood", "loops"), ("picked_of_embedded", "loss-warps")]
)
def test_losses_are_right(name: str, id: str, tmp_path: Path) -> None:
    check_structure(BY_NAME[name], structure(BY_NAME[name], id), tmp_path, 2)


@pytest.mark.slow
@pytest.mark.parametrize("gpu", ARCHITECTURES.values(), ids=ARCHITECTURES)
@pytest.mark.parametrize("case", CASES, ids=lambda one: one.name)
def test_every_structure_of_every_loss_is_right(
    case: Placed, gpu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_EMULATE", gpu)
    for step in case.answer.every:
        check_structure(case, step, tmp_path)
