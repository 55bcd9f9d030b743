"""Convolutions of single positions, on the emulator against f64."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from tests.playbook.convolutions.written import Written, in_runs

from tilewright.playbook.gemms.convolution_points import can_write, point_convolution
from tilewright.playbook.gemms.plan_text import Choices
from tilewright.playbook.gemms.schedules import convolution_schedules
from tilewright.records import DType, Precision

_ALLOWED = {DType.F32: 3e-3, DType.F16: 1.2e-3, DType.BF16: 9e-3}
_EXACT = Precision.STRICT


def _allowed(case: Written) -> float:
    return 2e-6 if case.precision is _EXACT else _ALLOWED[case.dtype]


QUICK = {
    "plane": Written((3, 50), (1, 1), channels=20, filters=19, bias=True, activation="relu"),
    "half_line": Written((264,), (1,), channels=40, filters=20, dtype=DType.BF16, bias=True),
}
REST = {
    "more_filters": Written((3, 50), (1, 1), channels=20, filters=35),
    "odd_groups": Written((3, 51), (1, 1), channels=9, filters=70, groups=2, residual=True),
    "exact_volume": Written((2, 5, 26), (1, 1, 1), channels=33, filters=130, precision=_EXACT, transposed=True),
    "exact_few": Written((300,), (1,), channels=3, filters=5, precision=_EXACT, bias=True, activation="gelu"),
    "turned_groups": Written((6, 28), (1, 1), channels=17, filters=9, groups=3, transposed=True),
    "even_halves": Written((5, 26), (1, 1), channels=17, filters=65, dtype=DType.F16, groups=2),
    "odd_halves": Written((5, 27), (1, 1), channels=50, filters=3, dtype=DType.F16, residual=True),
    "many_channels": Written((140,), (1,), channels=250, filters=40, batch=1),
    "single": Written((1,), (1,), channels=2, batch=3),
    "dilated": Written((4, 64), (1, 1), channels=16, filters=16, dilation=(2, 3)),
}


@pytest.mark.parametrize("name", QUICK)
def test_convolutions_of_single_positions_are_right(name: str, tmp_path: Path) -> None:
    QUICK[name].check(in_runs(point_convolution, 3), tmp_path, _allowed(QUICK[name]))


@pytest.mark.slow
@pytest.mark.parametrize("gpu", ["A100", "L4", "H200"])
@pytest.mark.parametrize("name", [*QUICK, *REST])
def test_convolutions_of_single_positions_are_right_everywhere(
    name: str, gpu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_EMULATE", gpu)
    case = (QUICK | REST)[name]
    case.check(point_convolution, tmp_path, _allowed(case))


@pytest.mark.slow
@pytest.mark.parametrize(("tiles", "lines", "stages"), [(2, 16, 2), (3, 16, 4), (100, 32, 3)])
@pytest.mark.parametrize("name", [*QUICK, "exact_volume", "odd_halves", "odd_groups"])
def test_runs_of_several_tiles_are_right(name: str, tiles: int, lines: int, stages: int, tmp_path: Path) -> None:
    case = (QUICK | REST)[name]
    case.check(in_runs(point_convolution, tiles), tmp_path, _allowed(case), LINES=lines, STAGES=stages)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["many_channels", "exact_volume"])
def test_what_leaves_no_choice_fits_a_small_gpu(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_EMULATE", "L4")
    case = REST[name]
    case.check(partial(point_convolution, choices=Choices.NONE), tmp_path, _allowed(case))


def test_windows_strides_and_many_channels_are_not_for_it() -> None:
    assert can_write(QUICK["plane"].convolution)
    assert not can_write(Written((9, 9), (3, 1), channels=3).convolution)
    assert not can_write(Written((9, 9), (1, 1), channels=3, stride=(2, 1)).convolution)
    assert not can_write(Written((9, 9), (1, 1), channels=3, padding=(0, 1)).convolution)
    assert not can_write(Written((9, 9), (1, 1), channels=3, transposed=True, more=(0, 1), stride=(2, 2)).convolution)
    assert not can_write(Written((9, 9), (1, 1), groups=4).convolution)  # depthwise
    assert not can_write(Written((9, 9), (1, 1), channels=300).convolution)


def test_it_comes_first_where_memory_bounds() -> None:
    def ids(arch: str, *channels: int) -> list[str]:
        made = (Written((128, 128), (1, 1), batch=16, channels=one, filters=one).convolution for one in channels)
        return [one.id for one in convolution_schedules(tuple(made), arch)]

    assert ids("sm_90a", 64)[:2] == ["convolution-points", "convolution-hopper"]
    assert ids("sm_80", 64)[0] == "convolution-points"
    assert "convolution-points" not in ids("sm_75", 64)
    assert "convolution-points" not in ids("sm_90a", 512)
    assert ids("sm_90a", 512, 64)[0] == "convolution-points"
