"""Convolutions in f64 by products of taps: what PyTorch gives, in every form."""

from __future__ import annotations

import random

import pytest
import torch

from tilewright.verify.wide_convolution import wide_convolution


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_it_is_what_pytorch_gives(dims: int, transposed: bool) -> None:
    draw = random.Random(dims + 10 * transposed)
    torch.manual_seed(dims)
    for _ in range(25):
        groups = draw.choice([1, 1, 2, 3])
        channels, filters = (groups * draw.choice([1, 2, 5]) for _ in range(2))
        taps = [draw.randint(1, 4) for _ in range(dims)]
        stride, dilation = ([draw.randint(1, 3) for _ in range(dims)] for _ in range(2))
        padding = [draw.randint(0, span // 2) for span in (d * (t - 1) for d, t in zip(dilation, taps, strict=True))]
        more = [draw.randint(0, max(0, max(s, d) - 1)) * transposed for s, d in zip(stride, dilation, strict=True)]
        lengths = [d * (t - 1) + draw.randint(1, 7) for d, t in zip(dilation, taps, strict=True)]
        x = torch.randn(draw.randint(1, 3), channels, *lengths, dtype=torch.float64)
        outer, inner = (channels, filters) if transposed else (filters, channels)
        weight = torch.randn(outer, inner // groups, *taps, dtype=torch.float64)
        bias = torch.randn(filters, dtype=torch.float64) if draw.random() < 0.5 else None
        given = (x, weight, bias, stride, padding, dilation, transposed, more, groups)
        wanted = torch.ops.aten.convolution.default(*given)
        assert torch.allclose(wide_convolution(*given), wanted, rtol=1e-12, atol=1e-12), given[3:]


def test_one_number_stands_for_every_dimension() -> None:
    x, weight = torch.randn(2, 3, 9, 8, dtype=torch.float64), torch.randn(4, 3, 3, 3, dtype=torch.float64)
    wanted = torch.nn.functional.conv2d(x, weight, None, 2, 1)
    assert torch.allclose(wide_convolution(x, weight, None, [2], [1], [1], False, [0], 1), wanted)


@pytest.mark.parametrize("transposed", [False, True])
def test_operands_may_lie_in_any_order(transposed: bool) -> None:
    x = torch.randn(2, 9, 8, 4, dtype=torch.float64).permute(0, 3, 1, 2)
    weight = torch.randn(3, 3, 4, 4, dtype=torch.float64).permute(2, 3, 1, 0)
    given = (x, weight, None, [1, 2], [1, 0], [1, 1], transposed, [0, 0], 2)
    given = given if transposed else (x, weight[:, :2], *given[2:])
    assert torch.allclose(wide_convolution(*given), torch.ops.aten.convolution.default(*given))
