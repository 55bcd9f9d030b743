"""Convolutions: every structure on the emulator against PyTorch."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.playbook.placed import Placed, check_structure

_PLANE = "x: f32[batch, heads, height, width]"
_ODD = ({"height": 9, "width": 13, "filters": 6}, {"batch": 1, "height": 17, "width": 6})


def _plane(name: str, call: str, inputs: str, height: str, width: str, channels: str = "filters") -> Placed:
    results = f"f32[batch, {channels}, h = {height}, v = {width}]"
    multiples = (("heads", 2), ("filters", 2)) if "groups" in call else ()
    return Placed(name, f"return {call}", f"{_PLANE}; {inputs}", results, _ODD, multiples)


CASES = (
    _plane(
        "strided",
        "F.relu(F.conv2d(x, w, b, padding=1, stride=2)) * 2 + c",
        "w: f32[filters, heads, three, five]; b: f32[filters]; c: f32[filters, one, one]",
        "(height + 1) / 2",
        "(width - 1) / 2",
    ),
    _plane(
        "residual",
        "torch.tanh(F.conv2d(x, w, padding=(1, 2)) + x) * s",
        "w: f32[heads, heads, three, five]; s: f32[batch, heads, one, one]",
        "height",
        "width",
        "heads",
    ),
    _plane(
        "dilated_groups",
        "F.conv2d(x, w, padding=2, dilation=2, groups=2)",
        "w: f32[filters, half = heads / 2, three, three]",
        "height",
        "width",
    ),
    _plane(
        "transposed",
        "F.gelu(F.conv_transpose2d(x, w, b, stride=(2, 3), padding=1, output_padding=(1, 2), groups=2))",
        "w: f32[heads, filters, three, five]; b: f32[all_filters = filters * 2]",
        "height * 2",
        "width * 3 + 2",
        "all_filters",
    ),
    Placed(
        "line",
        "return F.conv1d(x, w, b, stride=3, padding=4, dilation=2)",
        "x: f16[batch, heads, cols]; w: f16[filters, heads, five]; b: f16[filters]",
        "f16[batch, filters, v = (cols + 2) / 3]",
        ({"cols": 40, "filters": 3}, {"cols": 37, "heads": 3}),
    ),
    Placed(
        "volume",
        "return F.conv_transpose3d(x, w, stride=2, padding=1, dilation=2)",
        "x: bf16[batch, heads, depth, height, width]; w: bf16[heads, filters, three, three, five]",
        "bf16[batch, filters, d = depth * 2 + 1, h = height * 2 + 1, v = width * 2 + 5]",
        ({"depth": 2, "height": 3, "width": 4, "filters": 3, "batch": 2},),
    ),
    Placed(
        "depthwise",
        "return F.conv2d(x, w, padding=1, groups=x.shape[1])",
        "x: f32[batch, heads, height, width]; w: f32[heads, one, three, three]",
        "f32[batch, heads, height, width]",
        _ODD,
    ),
)
BY_NAME = {one.name: one for one in CASES}


_QUICK = ("residual", "transposed", "depthwise")


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=() if one in _QUICK else pytest.mark.slow) for one in BY_NAME]
)
def test_a_convolution_is_right_at_odd_sizes(name: str, tmp_path: Path) -> None:
    case = BY_NAME[name]
    step = next(one for one in case.answer.every if one.id.startswith("convolution-direct"))
    check_structure(case, step, tmp_path)
