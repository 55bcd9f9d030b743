"""Top-k: every structure on the emulator against PyTorch."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.playbook.placed import ARCHITECTURES, Placed, check_structure, structure

_AT = ({"rows": 3, "cols": 260}, {"rows": 5, "cols": 13}, {"rows": 2, "cols": 1100})
_X, _BOTH = "x: f32[rows, cols]", "f32[rows, {0}]; i64[rows, {0}]"

CASES = (
    Placed("best", "return torch.topk(x, 5)", _X, _BOTH.format(5), _AT),
    Placed("one", "return torch.topk(x, 1)", _X, _BOTH.format(1), _AT),
    Placed("least", "v, i = torch.topk(x * 2, 8, largest=False)\nreturn v", _X, "f32[rows, 8]", _AT),
    Placed("where", "return torch.topk(x.abs(), 3)[1]", _X, "i64[rows, 3]", _AT),
    Placed("down", "return torch.topk(x, 4, dim=0)", _X, "f32[4, cols]; i64[4, cols]", ({"rows": 40, "cols": 9},)),
)
BY_NAME = {one.name: one for one in CASES}


def test_the_best_are_right(tmp_path: Path) -> None:
    check_structure(BY_NAME["best"], structure(BY_NAME["best"], "top-lists"), tmp_path, 2)


@pytest.mark.slow
@pytest.mark.parametrize("gpu", ARCHITECTURES.values(), ids=ARCHITECTURES)
@pytest.mark.parametrize("case", CASES, ids=lambda one: one.name)
def test_every_structure_of_every_choice_is_right(
    case: Placed, gpu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_EMULATE", gpu)
    for step in case.answer.every:
        check_structure(case, step, tmp_path)
