"""In the reference's process, on a GPU: whether PyTorch by default computes a task's f32 convolutions in true f32.

cuDNN takes TF32 for most of them and f32 for some, by their shapes. Each is made with numbers of its own, so that
operands which TF32 holds exactly hide nothing, and its first image is compared with f64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tilewright.reference.convolution_questions import ConvolutionRequest, PrecisionAnswer
from tilewright.reference.convolutions import Convolved, Lying, convolutions_of
from tilewright.verify.wide_convolution import wide_convolution

_LARGEST_F32_ERROR = 2.0**-15  # in the norm; TF32 is off by 2**-12, and f32 by 2**-20 at the most
_SEED = 7


def warm(function: Callable[..., Any], request: ConvolutionRequest) -> PrecisionAnswer:
    """Make ready what takes a second and disturbs nobody: a CUDA context, and cuDNN."""
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
    """Whatever the reference has set is not what its baselines are timed with."""
    cudnn = torch.backends.cudnn
    before = cudnn.enabled, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic
    cudnn.enabled, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic = True, True, False, False
    try:
        yield
    finally:
        cudnn.enabled, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic = before


def _is_f32(one: Convolved) -> bool:
    """With fewer images where the GPU has no room for all."""
    images = one.x.shape[0]
    while True:
        try:
            return relative_error(one, images, "cuda") < _LARGEST_F32_ERROR
        except torch.OutOfMemoryError:
            if images <= 1:
                raise
        images //= 2  # outside of the handler, which keeps what was made alive
        torch.cuda.empty_cache()


def relative_error(one: Convolved, images: int, device: str) -> float:
    """How far PyTorch's own result for the first image is from that in f64, in the norm."""
    generator = torch.Generator(device).manual_seed(_SEED)
    x, weight = (_drawn(lying, generator) for lying in (one.x, one.weight))
    x = x[:images]
    how = (None, one.stride, one.padding, one.dilation, one.transposed, one.output_padding, one.groups)
    own = torch.ops.aten.convolution.default(x, weight, *how)[:1].double()
    truth = wide_convolution(x[:1].double(), weight.double(), *how)
    return float((own - truth).norm() / truth.norm())


def _drawn(lying: Lying, generator: torch.Generator) -> torch.Tensor:
    pairs = list(zip(lying.shape, lying.stride, strict=True))
    held = 1 + sum((size - 1) * stride for size, stride in pairs if size)
    made = torch.empty(held, device=generator.device).normal_(generator=generator)
    return made.as_strided(lying.shape, lying.stride)  # elements of an expanded tensor lie in one place
