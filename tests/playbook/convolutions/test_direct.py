"""Direct convolutions on the emulator against f64."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.playbook.convolutions.written import Written

from tilewright.playbook.gemms.convolution_direct import can_write, direct_convolution
from tilewright.records import DType

_ALLOWED = {DType.F32: 2e-6, DType.F16: 1.2e-3, DType.BF16: 9e-3}

QUICK = {
    "depthwise": Written((9, 14), (3, 3), groups=3, padding=(1, 1), bias=True, activation="relu"),
    "strided_line": Written((21,), (5,), groups=4, filters=2, stride=(2,), dilation=(3,), padding=(4,)),
    "spread": Written(
        (7, 8), (3, 4), groups=3, filters=2, stride=(2, 2), padding=(1, 1), more=(1, 0), transposed=True, bias=True
    ),
    "few_channels": Written((9, 11), (3, 3), channels=3, filters=7, padding=(1, 1), residual=True, activation="mish"),
}
REST = {
    "odd_rows": Written((9, 13), (3, 3), groups=3, activation="silu"),
    "far_apart": Written((11, 17), (3, 7), groups=2, stride=(2, 3), padding=(1, 2), dilation=(2, 1), residual=True),
    "column": Written((17, 12), (3, 1), groups=5, dtype=DType.BF16),
    "volume": Written((5, 6, 7), (3, 2, 3), groups=3, padding=(1, 0, 1), stride=(2, 1, 1), dtype=DType.BF16),
    "spread_volume": Written(
        (4, 5, 6), (3, 3, 2), groups=2, stride=(2, 3, 1), padding=(1, 0, 1), transposed=True, dtype=DType.F16
    ),
    "spread_by_three": Written((40,), (5,), groups=2, stride=(3,), padding=(7,), transposed=True, more=(2,)),
    "turned": Written((9, 10), (3, 3), groups=2, transposed=True, dilation=(2, 1), activation="hardsigmoid"),
    "cropped": Written((9, 10), (2, 3), groups=2, transposed=True, padding=(2, 3), activation="sigmoid"),
    "far_apart_turned": Written(
        (5, 6), (3, 3), groups=2, transposed=True, stride=(2, 2), dilation=(2, 4), activation="hardswish"
    ),
    "groups": Written((9, 11), (3, 3), channels=3, filters=5, groups=2, transposed=True, stride=(2, 2)),
    "wide_stride": Written((31,), (2,), channels=2, filters=3, stride=(7,), padding=(1,)),
    "volume_of_channels": Written(
        (4, 5, 9), (3, 3, 3), channels=3, filters=4, padding=(1, 1, 1), bias=True, activation="gelu"
    ),
    "single": Written((1, 1), (3, 3), padding=(1, 1), batch=1),
}


@pytest.mark.parametrize("name", QUICK)
def test_direct_convolutions_are_right(name: str, tmp_path: Path) -> None:
    QUICK[name].check(direct_convolution, tmp_path, _ALLOWED[QUICK[name].dtype])


@pytest.mark.slow
@pytest.mark.parametrize("gpu", ["T4", "A100", "L4", "H200"])
@pytest.mark.parametrize("name", [*QUICK, *REST])
def test_direct_convolutions_are_right_everywhere(
    name: str, gpu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_EMULATE", gpu)
    case = (QUICK | REST)[name]
    case.check(direct_convolution, tmp_path, _ALLOWED[case.dtype])


@pytest.mark.slow
@pytest.mark.parametrize("choices", [(4, 4, 1), (2, 6, 2), (8, 2, 4)])
@pytest.mark.parametrize("name", ["depthwise", "few_channels", "turned", "far_apart"])
def test_every_size_of_patches_is_right(name: str, choices: tuple[int, int, int], tmp_path: Path) -> None:
    case = (QUICK | REST)[name]
    columns, rows, filters = choices
    case.check(direct_convolution, tmp_path, _ALLOWED[case.dtype], COLUMNS=columns, ROWS=rows, FILTERS=filters)


def test_long_windows_are_not_written() -> None:
    assert can_write(Written((200,), (128,)).convolution)
    assert not can_write(Written((30, 30), (12, 11)).convolution)
