"""Shapes of results in an exported package: Python text made of the `out` lines, beside the evaluator."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.runtime import plans

from tilewright.exports.torch_package import outs_function
from tilewright.exports.writing import render_template
from tilewright.kernel_file import out_specs, parse
from tilewright.runtime.specs import spec_of


def outs_of(text: str) -> Any:
    scope: dict[str, Any] = {"torch": torch}
    exec(render_template("package/_plan_words.py"), scope)
    exec(outs_function(parse(text, "k.cu")), scope)
    return scope["outs"]


@pytest.mark.parametrize("leading", [(6,), (2, 3), (), (3, 1, 2), (0, 3)])
@pytest.mark.parametrize("strided", [False, True])
def test_results_have_the_leading_dimensions_again(leading: tuple[int, ...], strided: bool) -> None:
    text = (
        plans.LEADING.replace("y: f32[rows, cols]", "y: f32[rows, cols] stride [1, rows]") if strided else plans.LEADING
    )
    call = torch.empty(*leading, 40), torch.empty(leading), torch.empty(40)
    names = ("x", "scale", "weight")
    wanted = out_specs(parse(text, "k.cu"), {name: spec_of(one) for name, one in zip(names, call, strict=True)})
    for (shape, stride, dtype), spec in zip(outs_of(text)(*call), wanted, strict=True):
        assert (tuple(shape), dtype) == (spec.shape, torch.float32)
        if stride is None:
            stride = torch.empty(shape, device="meta").stride()
        if all(spec.shape):
            assert tuple(stride) == spec.stride
