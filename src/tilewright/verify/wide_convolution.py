"""In the reference's process: a convolution in f64 as matrix products, one for every tap of the window.

A GPU is slow at convolutions in f64 as they stand: to judge a strided, dilated one of 2 G elements took an H200 100 s.
Products it does on tensor cores.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch

Slices = tuple[slice, ...]

_ALL: Slices = (slice(None), slice(None))  # images and channels


def wide_convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> torch.Tensor:
    """What `aten.convolution` gives, whose arguments these are; the sums are in another order."""
    dims = x.ndim - 2
    stride, padding, dilation, output_padding = (
        list(one) * dims if len(one) == 1 else list(one) for one in (stride, padding, dilation, output_padding)
    )
    spans = [step * (taps - 1) + 1 for step, taps in zip(dilation, weight.shape[2:], strict=True)]
    if transposed:
        made = _scattered(x, weight, stride, dilation, spans, output_padding, groups)
        lengths = [length - 2 * pad for length, pad in zip(made.shape[2:], padding, strict=True)]
        result = made[(*_ALL, *(slice(pad, pad + length) for pad, length in zip(padding, lengths, strict=True)))]
    else:
        result = _gathered(x, weight, stride, padding, dilation, spans, groups)
    if bias is not None:
        result = result + bias.view(-1, *(1 for _ in range(dims)))
    return result.contiguous()


def _gathered(
    x: torch.Tensor,
    weight: torch.Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    spans: list[int],
    groups: int,
) -> torch.Tensor:
    """Every result from the places that the taps see."""
    wide = torch.nn.functional.pad(x, [one for pad in reversed(padding) for one in (pad, pad)])
    results = [(length - span) // step + 1 for length, span, step in zip(wide.shape[2:], spans, stride, strict=True)]
    filters = weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], -1)
    made = x.new_zeros(x.shape[0], groups, filters.shape[1], math.prod(results))
    for number, tap in enumerate(_taps(weight)):
        seen = wide[(*_ALL, *_places(tap, dilation, stride, results))]
        seen = seen.reshape(x.shape[0], groups, weight.shape[1], -1)
        made += _of_channels(filters[..., number], seen)
    return made.view(x.shape[0], -1, *results)


def _scattered(
    x: torch.Tensor,
    weight: torch.Tensor,
    stride: list[int],
    dilation: list[int],
    spans: list[int],
    output_padding: list[int],
    groups: int,
) -> torch.Tensor:
    """Every element added to where the taps put it, with the padding still there."""
    ends = zip(x.shape[2:], stride, spans, output_padding, strict=True)
    lengths = [(length - 1) * step + span + more for length, step, span, more in ends]
    filters = weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], -1).transpose(1, 2)
    given = x.reshape(x.shape[0], groups, x.shape[1] // groups, -1)
    made = x.new_zeros(x.shape[0], groups * weight.shape[1], *lengths)
    for number, tap in enumerate(_taps(weight)):
        part = _of_channels(filters[..., number], given)
        made[(*_ALL, *_places(tap, dilation, stride, x.shape[2:]))] += part.reshape(x.shape[0], -1, *x.shape[2:])
    return made


def _of_channels(filters: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    """Of every group its filters times its channels."""
    if filters.shape[2] == 1:
        return filters * given
    return torch.matmul(filters, given)


def _taps(weight: torch.Tensor) -> itertools.product[tuple[int, ...]]:
    return itertools.product(*(range(one) for one in weight.shape[2:]))


def _places(tap: tuple[int, ...], dilation: list[int], stride: list[int], counts: Sequence[int]) -> Slices:
    """Where a tap meets each of so many places, along every dimension."""
    along = zip(tap, dilation, stride, counts, strict=True)
    return tuple(slice(one * apart, one * apart + (count - 1) * step + 1, step) for one, apart, step, count in along)
