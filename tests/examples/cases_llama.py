"""What a Llama block is made of besides its products: RMSNorm, rotary embedding and SwiGLU, with their gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from .cases import Arguments, Call, Case, Results, accumulator, label, normal

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
HALVES = (F16, BF16)
Shape = tuple[int, ...]
ROWS = [(1, 8), (3, 40), (130, 64), (2, 7, 512), (5, 1000), (300, 2048), (256, 4096), (0, 128)]


def _calls(shapes: list[Shape], make: Callable[[torch.device, Shape, torch.dtype], Arguments]) -> tuple[Call, ...]:
    def call(shape: Shape, dtype: torch.dtype) -> Call:
        return Call(label(shape, dtype), lambda device: make(device, shape, dtype))

    return tuple(call(shape, dtype) for shape in shapes for dtype in HALVES)


def _rmsnorm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    wide = x.to(accumulator(x))
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def _norm_arguments(device: torch.device, shape: Shape, dtype: torch.dtype) -> Arguments:
    weight = normal(device, "weight", shape[-1:], dtype, mean=1.0, deviation=0.2)
    return normal(device, "x", shape, dtype, deviation=2.0), weight, 1e-6


RMSNORM = Case(
    name="rmsnorm",
    files=("rmsnorm.cu",),
    reference=_rmsnorm,
    calls=_calls([*ROWS, (3, 1025), (2, 16384)], _norm_arguments),
    refused=(Call("f32", lambda d: _norm_arguments(d, (4, 64), F32)),),
)


def _gradients(forward: Callable[..., torch.Tensor | Results], inputs: Results, arriving: Results) -> Results:
    """What autograd says, in the dtype of the inputs."""
    with torch.enable_grad():
        leaves = [one.detach().requires_grad_() for one in inputs]
        results = forward(*leaves)
        return torch.autograd.grad(results, leaves, arriving)


def _rmsnorm_backward(grad_y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> Results:
    return _gradients(lambda x, weight: _rmsnorm(x, weight, eps), (x, weight), (grad_y,))


def _norm_backward_arguments(device: torch.device, shape: Shape, dtype: torch.dtype) -> Arguments:
    return normal(device, "grad_y", shape, dtype), *_norm_arguments(device, shape, dtype)


def _norm_backward_terms(grad_y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Results:
    """Both gradients are sums whose terms cancel."""
    scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    arriving = (grad_y * weight).abs()
    along = x.abs() * scale**2 * (arriving * x.abs()).mean(-1, keepdim=True)
    by_column = (grad_y * x * scale).abs().flatten(0, -2).sum(0)
    return scale * (arriving + along), by_column


RMSNORM_BACKWARD = Case(
    name="rmsnorm_backward",
    files=("rmsnorm_backward.cu",),
    reference=_rmsnorm_backward,
    calls=_calls(ROWS, _norm_backward_arguments),
    refused=_calls([(4, 65), (2, 16392)], _norm_backward_arguments),
    magnitude=_norm_backward_terms,
)


def _swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(gate) * up


def _gate_and_up(device: torch.device, shape: Shape, dtype: torch.dtype) -> Arguments:
    return normal(device, "gate", shape, dtype, deviation=3.0), normal(device, "up", shape, dtype)


def _gate_backward(device: torch.device, shape: Shape, dtype: torch.dtype) -> Arguments:
    return normal(device, "grad_y", shape, dtype), *_gate_and_up(device, shape, dtype)


def _swiglu_backward(grad_y: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> Results:
    return _gradients(_swiglu, (gate, up), (grad_y,))


GATES = [(1,), (7, 9), (2, 5, 64), (3, 1021), (64, 1376), (0, 8)]
SWIGLU = Case("swiglu", ("swiglu.cu",), _swiglu, _calls(GATES, _gate_and_up))
SWIGLU_BACKWARD = Case("swiglu_backward", ("swiglu_backward.cu",), _swiglu_backward, _calls(GATES, _gate_backward))


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    low, high = x.chunk(2, -1)
    return x * cos.unsqueeze(1) + torch.cat((-high, low), -1) * sin.unsqueeze(1)


def _rotary(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Results:
    return _rotated(q, cos, sin), _rotated(k, cos, sin)


def _rotary_backward(grad_q: torch.Tensor, grad_k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Results:
    arriving = (grad_q, grad_k)  # it is linear, so where the gradient is taken is free
    return _gradients(lambda q, k: _rotary(q, k, cos, sin), arriving, arriving)


def _rotary_call(shape: Shape, dtype: torch.dtype, angles: int = 1) -> Call:
    """`shape`: batch, tokens, heads, heads of keys, width."""
    batch, tokens, heads, key_heads, width = shape

    def make(device: torch.device) -> Arguments:
        def projected(name: str, heads: int) -> torch.Tensor:
            return normal(device, name, (batch, tokens, heads, width), dtype).transpose(1, 2)

        # Nothing is asked of the angles: the two halves of a table may differ.
        cos, sin = (normal(device, name, (angles, tokens, width), dtype) for name in ("cos", "sin"))
        return projected("q", heads), projected("k", key_heads), cos, sin

    return Call(f"{label(shape, dtype)}-{angles}", make)


def _rotary_terms(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Results:
    """The two terms of each element, whichever half's sine is meant."""

    def terms(one: torch.Tensor) -> torch.Tensor:
        sines = sin.abs().unsqueeze(1)
        other = one.abs().roll(one.shape[-1] // 2, -1)
        return one.abs() * cos.abs().unsqueeze(1) + other * torch.maximum(sines, sines.roll(sines.shape[-1] // 2, -1))

    return terms(q), terms(k)


ROTARY = Case(
    name="rotary",
    files=("rotary.cu",),
    reference=_rotary,
    calls=(
        _rotary_call((1, 5, 2, 1, 16), BF16),
        _rotary_call((2, 7, 3, 3, 64), F16),
        _rotary_call((2, 33, 2, 1, 128), F16),
        _rotary_call((2, 9, 4, 2, 32), BF16, angles=2),
        _rotary_call((1, 256, 32, 8, 128), BF16),
        _rotary_call((0, 4, 2, 1, 16), BF16),
    ),
    refused=(_rotary_call((1, 5, 2, 1, 24), BF16), _rotary_call((1, 5, 2, 1, 16), F32)),
    magnitude=_rotary_terms,
)
ROTARY_BACKWARD = replace(ROTARY, name="rotary_backward", files=("rotary_backward.cu",), reference=_rotary_backward)

CASES: tuple[Case, ...] = (RMSNORM, RMSNORM_BACKWARD, SWIGLU, SWIGLU_BACKWARD, ROTARY, ROTARY_BACKWARD)
