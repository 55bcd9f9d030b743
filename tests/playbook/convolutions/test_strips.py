"""Depthwise convolutions by strips, on the emulator against f64."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.playbook.convolutions.written import Written

from tilewright.playbook.gemms.convolution_strips import can_write, strip_convolution
from tilewright.playbook.gemms.schedules import convolution_schedules
from tilewright.records import DType

_ALLOWED = 2e-6
CASES = {
    "plain": Written((21, 128), (3, 3), groups=3, batch=1),
    "padded": Written((19, 132), (3, 7), groups=2, padding=(1, 3), bias=True, activation="relu"),
    "strided": Written((37, 136), (3, 3), groups=2, stride=(2, 2), padding=(1, 1), residual=True),
    "far_apart": Written((23, 128), (3, 4), groups=2, padding=(2, 0), dilation=(2, 3), bias=True),
    "few_rows": Written((3, 128), (3, 3), groups=1, padding=(1, 1), activation="silu"),
    "odd_columns": Written((9, 160), (4, 2), groups=2, padding=(3, 0)),
}


@pytest.mark.parametrize("name", CASES)
def test_depthwise_convolutions_by_strips_are_right(name: str, tmp_path: Path) -> None:
    assert can_write(CASES[name].convolution)
    CASES[name].check(strip_convolution, tmp_path, _ALLOWED)


@pytest.mark.slow
@pytest.mark.parametrize("choices", [(1, 1024), (7, 768), (12, 1024)])
@pytest.mark.parametrize("name", CASES)
def test_every_size_of_strips_is_right(name: str, choices: tuple[int, int], tmp_path: Path) -> None:
    rows, resident = choices
    CASES[name].check(strip_convolution, tmp_path, _ALLOWED, ROWS=rows, RESIDENT=resident)


def test_strips_are_for_planes_one_by_one_on_hopper() -> None:
    plain = CASES["plain"]
    assert not can_write(replace(plain, lengths=(21, 130)).convolution)  # no whole 16 bytes
    assert not can_write(replace(plain, taps=(3, 1)).convolution)  # nothing is loaded twice
    assert not can_write(replace(plain, dtype=DType.BF16).convolution)
    assert not can_write(replace(plain, filters=2).convolution)
    assert not can_write(Written((21, 128), (3, 3), channels=3, filters=3).convolution)
    assert not can_write(replace(plain, transposed=True).convolution)
    assert not can_write(Written((300,), (3,), groups=3).convolution)
    assert convolution_schedules((plain.convolution,), "sm_90a")[0].id == "convolution-strips"
    assert "convolution-strips" not in [one.id for one in convolution_schedules((plain.convolution,), "sm_80")]
