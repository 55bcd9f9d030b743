"""Convolutions on tensor cores, on the emulator against f64."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from tests.playbook.convolutions.written import Written

from tilewright.playbook.gemms.convolution_tensor_cores import can_write, tensor_core_convolution
from tilewright.playbook.gemms.plan_text import Choices
from tilewright.records import DType, Precision

_TF32 = 3e-3
_ALLOWED = {DType.F32: 2e-6, DType.F16: 1.2e-3, DType.BF16: 9e-3}
_EXACT = Precision.STRICT


def _allowed(case: Written) -> float:
    return _ALLOWED[case.dtype] if case.dtype is not DType.F32 or case.precision is _EXACT else _TF32


QUICK = {
    "plane": Written((9, 14), (3, 3), channels=3, filters=35, padding=(1, 1), bias=True, activation="relu"),
    "exact_line": Written(
        (21,), (5,), groups=2, channels=4, filters=6, stride=(2,), dilation=(3,), padding=(4,), precision=_EXACT
    ),
    "half_volume": Written((3, 4, 7), (3, 2, 3), channels=7, filters=5, padding=(1, 0, 1), dtype=DType.BF16),
    "spread": Written(
        (5, 6), (3, 4), groups=2, channels=5, filters=9, stride=(2, 2), padding=(1, 1), more=(1, 0), transposed=True
    ),
}
REST = {
    "many_channels": Written((5, 11), (3, 3), channels=40, filters=70, precision=_EXACT, residual=True),
    "strided_volume": Written((5, 6, 7), (3, 2, 3), channels=7, filters=5, padding=(1, 0, 1), stride=(2, 1, 1)),
    "exact_spread": Written(
        (7, 8),
        (3, 4),
        groups=2,
        channels=5,
        filters=9,
        stride=(2, 2),
        padding=(1, 1),
        transposed=True,
        precision=_EXACT,
    ),
    "half_spread": Written(
        (4, 5, 6), (3, 3, 2), channels=4, filters=3, stride=(2, 3, 1), transposed=True, dtype=DType.F16, bias=True
    ),
    "turned": Written((9, 10), (3, 3), channels=2, filters=3, groups=2, transposed=True, dilation=(2, 1)),
    "phases_without_taps": Written(
        (5, 6), (3, 3), channels=3, filters=5, transposed=True, stride=(2, 2), dilation=(2, 1), bias=True
    ),
    "phases_without_results": Written(
        (1, 1), (1, 2), channels=3, filters=5, transposed=True, stride=(3, 3), padding=(0, 0), bias=True
    ),
    "single": Written((1, 1), (3, 3), padding=(1, 1), batch=1, channels=2),
    "long_window": Written((29,), (31,), channels=2, filters=2, padding=(15,), precision=_EXACT),
    "long_window_of_halves": Written((130,), (7,), channels=33, filters=130, dtype=DType.F16, activation="gelu"),
}


@pytest.mark.parametrize("name", QUICK)
def test_convolutions_on_tensor_cores_are_right(name: str, tmp_path: Path) -> None:
    QUICK[name].check(tensor_core_convolution, tmp_path, _allowed(QUICK[name]))


@pytest.mark.slow
@pytest.mark.parametrize("gpu", ["A100", "L4", "H200"])
@pytest.mark.parametrize("name", [*QUICK, *REST])
def test_convolutions_on_tensor_cores_are_right_everywhere(
    name: str, gpu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_EMULATE", gpu)
    case = (QUICK | REST)[name]
    case.check(tensor_core_convolution, tmp_path, _allowed(case))


@pytest.mark.slow
@pytest.mark.parametrize("choices", [(128, 64, 2, 2), (64, 128, 2, 4), (32, 32, 2, 3), (64, 64, 1, 2), (32, 128, 1, 3)])
@pytest.mark.parametrize("name", ["many_channels", "half_spread", "spread", "long_window_of_halves"])
def test_every_size_of_tiles_is_right(name: str, choices: tuple[int, ...], tmp_path: Path) -> None:
    case = (QUICK | REST)[name]
    constants = dict(zip(("BM", "BN", "WARPS_M", "STAGES"), choices, strict=True))
    case.check(tensor_core_convolution, tmp_path, _allowed(case), **constants)


@pytest.mark.slow
@pytest.mark.parametrize("stride", [1, 2, 3, 4, 5, 16])
@pytest.mark.parametrize("dtype", [DType.F32, DType.F16])
def test_what_leaves_no_choice_fits_a_small_gpu(
    stride: int, dtype: DType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_EMULATE", "L4")
    case = Written((9,), (3,), channels=3, filters=99, stride=(stride,), transposed=True, dtype=dtype, precision=_EXACT)
    case.check(partial(tensor_core_convolution, choices=Choices.NONE), tmp_path, _allowed(case))


def test_a_window_of_too_many_taps_is_not_written() -> None:
    assert can_write(Written((99,), (31,)).convolution)
    assert not can_write(Written((99, 99), (16, 16)).convolution)
