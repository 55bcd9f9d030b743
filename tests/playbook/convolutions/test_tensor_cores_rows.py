"""Convolutions of long rows on tensor cores, on the emulator against f64."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.playbook.convolutions.written import Written

from tilewright.playbook.gemms.convolution_tensor_cores_rows import has_long_rows, long_row_convolution
from tilewright.records import DType, Precision

_EXACT = Precision.STRICT


def _allowed(case: Written) -> float:
    return 2e-6 if case.precision is _EXACT else 3e-3


_LINE = Written((390,), (5,), groups=2, channels=4, filters=6, stride=(3,), dilation=(4,), padding=(4,), residual=True)
QUICK = {
    "plane": Written((3, 110), (3, 3), channels=3, filters=35, padding=(1, 1), bias=True, activation="relu"),
    "exact_line": replace(_LINE, precision=_EXACT),
}
REST = {
    "line": _LINE,
    "exact_plane": Written((4, 113), (3, 3), channels=9, filters=70, padding=(1, 1), precision=_EXACT, bias=True),
    "odd_rows": Written((4, 113), (3, 3), channels=5, filters=6),
    "volume": Written((2, 2, 111), (3, 2, 3), channels=7, filters=5, padding=(1, 0, 1), stride=(2, 1, 1)),
    "turned": Written((2, 119), (3, 4), channels=9, filters=70, transposed=True, padding=(1, 1), bias=True),
    "turned_groups": Written((2, 101), (2, 3), channels=20, filters=130, groups=2, transposed=True, dilation=(1, 2)),
    "cropped": Written((3, 126), (2, 3), channels=3, filters=5, padding=(1, 4), transposed=True),
    "single_tap": Written((130,), (1,), channels=33, filters=40),
    "long_window": Written((2, 120), (1, 16), channels=3, filters=4, padding=(0, 8), batch=1),
    "by_four": Written((3, 512), (2, 5), channels=3, filters=4, stride=(1, 4), padding=(0, 2)),
}


@pytest.mark.parametrize("name", QUICK)
def test_convolutions_of_long_rows_are_right(name: str, tmp_path: Path) -> None:
    QUICK[name].check(long_row_convolution, tmp_path, _allowed(QUICK[name]))


@pytest.mark.slow
@pytest.mark.parametrize("gpu", ["A100", "L4", "H200"])
@pytest.mark.parametrize("name", [*QUICK, *REST])
def test_convolutions_of_long_rows_are_right_everywhere(
    name: str, gpu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_EMULATE", gpu)
    case = (QUICK | REST)[name]
    case.check(long_row_convolution, tmp_path, _allowed(case))


@pytest.mark.slow
@pytest.mark.parametrize("choices", [(8, 2), (16, 3)])
@pytest.mark.parametrize("name", ["plane", "turned_groups", "exact_plane"])
def test_every_size_of_tiles_is_right(name: str, choices: tuple[int, ...], tmp_path: Path) -> None:
    constants = dict(zip(("LINES", "STAGES"), choices, strict=True))
    case = (QUICK | REST)[name]
    case.check(long_row_convolution, tmp_path, _allowed(case), **constants)


def test_short_rows_and_halves_are_not_for_it() -> None:
    assert has_long_rows(QUICK["plane"].convolution)
    assert not has_long_rows(Written((9, 90), (3, 3), channels=3).convolution)
    assert has_long_rows(Written((9, 128), (3, 3), channels=3, precision=_EXACT).convolution)
    assert not has_long_rows(Written((9, 128), (3, 3), channels=3, dtype=DType.BF16).convolution)
    assert not has_long_rows(Written((9, 128), (3, 3), channels=3, stride=(1, 2), transposed=True).convolution)
