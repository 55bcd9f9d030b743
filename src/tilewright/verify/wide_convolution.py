"""In the reference's process: an f64 convolution as matmuls, one for every tap of the filter.

GPUs have no fast f64 convolutions: judging a strided, dilated one of 2 G elements took an H200 100 s. Matmuls use
tensor cores.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from tilewright.reference.convolutions import F32Convolution, TensorLayout, convolutions_of
from tilewright.reference.protocol import ConvolutionRequest, PrecisionAnswer

Slices = tuple[slice, ...]

_ALL: Slices = (slice(None), slice(None))  # batch and channels


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
    """`aten.convolution`, with another order of summation."""
    dims = x.ndim - 2
    stride, padding, dilation, output_padding = (
        list(one) * dims if len(one) == 1 else list(one) for one in (stride, padding, dilation, output_padding)
    )
    spans = [step * (taps - 1) + 1 for step, taps in zip(dilation, weight.shape[2:], strict=True)]
    filters = weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], -1)
    filters = filters.transpose(1, 2) if transposed else filters
    taps = list(itertools.product(*(range(one) for one in weight.shape[2:])))

    def places(tap: tuple[int, ...], counts: Sequence[int]) -> Slices:
        """The positions that a tap reads or writes, along every dimension."""
        along = zip(tap, dilation, stride, counts, strict=True)
        return _ALL + tuple(
            slice(n * apart, n * apart + (count - 1) * step + 1, step) for n, apart, step, count in along
        )

    def products(number: int, given: torch.Tensor) -> torch.Tensor:
        """For each group, the filters at one tap times the channels."""
        one = filters[..., number]
        return one * given if one.shape[2] == 1 else torch.matmul(one, given)

    if transposed:  # every input is added where the taps put it
        ends = zip(x.shape[2:], stride, spans, output_padding, strict=True)
        lengths = [(length - 1) * step + span + more for length, step, span, more in ends]
        given = x.reshape(x.shape[0], groups, x.shape[1] // groups, -1)
        made = x.new_zeros(x.shape[0], groups * weight.shape[1], *lengths)
        for number, tap in enumerate(taps):
            made[places(tap, x.shape[2:])] += products(number, given).reshape(x.shape[0], -1, *x.shape[2:])
        cropped = (slice(pad, length - pad) for pad, length in zip(padding, lengths, strict=True))
        result = made[(*_ALL, *cropped)]
    else:  # every result is a sum over the inputs that the taps read
        wide = torch.nn.functional.pad(x, [one for pad in reversed(padding) for one in (pad, pad)])
        sizes = [(length - span) // step + 1 for length, span, step in zip(wide.shape[2:], spans, stride, strict=True)]
        made = x.new_zeros(x.shape[0], groups, filters.shape[1], math.prod(sizes))
        for number, tap in enumerate(taps):
            made += products(number, wide[places(tap, sizes)].reshape(x.shape[0], groups, weight.shape[1], -1))
        result = made.view(x.shape[0], -1, *sizes)
    if bias is not None:
        result = result + bias.view(-1, *(1 for _ in range(dims)))
    return result.contiguous()


# -- the precision of PyTorch's f32 convolutions on a GPU --

_LARGEST_F32_ERROR = 2.0**-15  # of the norm; TF32 is off by 2**-12, and f32 by at most 2**-20
_SEED = 7


def warm(function: Callable[..., Any], request: ConvolutionRequest) -> PrecisionAnswer:
    """Initialise CUDA and cuDNN, which takes a second."""
    if torch.cuda.is_available():
        torch.nn.functional.conv1d(torch.ones(1, 1, 1, device="cuda"), torch.ones(1, 1, 1, device="cuda"))
    return PrecisionAnswer(None)


def measure(function: Callable[..., Any], request: ConvolutionRequest) -> PrecisionAnswer:
    found = convolutions_of(function, request.task)
    if not found or not torch.cuda.is_available():
        return PrecisionAnswer(None)
    try:
        with torch.no_grad(), _as_by_default():
            return PrecisionAnswer(all(one.on_cpu or _is_f32(one) for one in found))
    except RuntimeError:  # too little memory for a single image, say
        return PrecisionAnswer(None)


@contextmanager
def _as_by_default() -> Iterator[None]:
    """PyTorch's default flags, with which baselines are timed, whatever the reference has set."""
    cudnn = torch.backends.cudnn
    before = cudnn.enabled, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic
    cudnn.enabled, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic = True, True, False, False
    try:
        yield
    finally:
        cudnn.enabled, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic = before


def _is_f32(one: F32Convolution) -> bool:
    """Whether the error is that of f32; with fewer images where memory is short."""
    images = one.x.shape[0]
    while True:
        try:
            return relative_error(one, images, "cuda") < _LARGEST_F32_ERROR
        except torch.OutOfMemoryError:
            if images <= 1:
                raise
        images //= 2  # outside the handler, which keeps tensors alive
        torch.cuda.empty_cache()


def relative_error(one: F32Convolution, images: int, device: str) -> float:
    """The relative error of PyTorch's result for the first image against f64, in the norm."""
    generator = torch.Generator(device).manual_seed(_SEED)
    x, weight = (_drawn(lying, generator) for lying in (one.x, one.weight))
    x = x[:images]
    how = (None, one.stride, one.padding, one.dilation, one.transposed, one.output_padding, one.groups)
    own = torch.ops.aten.convolution.default(x, weight, *how)[:1].double()
    truth = wide_convolution(x[:1].double(), weight.double(), *how)
    return float((own - truth).norm() / truth.norm())


def _drawn(lying: TensorLayout, generator: torch.Generator) -> torch.Tensor:
    pairs = list(zip(lying.shape, lying.stride, strict=True))
    held = 1 + sum((size - 1) * stride for size, stride in pairs if size)
    made = torch.empty(held, device=generator.device).normal_(generator=generator)
    return made.as_strided(lying.shape, lying.stride)  # elements of an expanded tensor share memory
