"""The memory-bound examples: pointwise, norms, softmax, reductions, scan, layout changes.

Shapes are chosen for what can go wrong: sizes that do not divide by a vector, a warp or a tile, a single row, a single
column, no rows, several blocks, and the last size before a file must refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from torch.nn import functional

from .cases import Arguments, Call, Case, Results, accumulator, integers, label, normal

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
FLOATS = (F32, F16, BF16)
HALVES = (F16, BF16)
Shape = tuple[int, ...]


def _calls(
    shapes: Iterable[Shape],
    dtypes: Iterable[torch.dtype],
    make: Callable[[torch.device, Shape, torch.dtype], Arguments],
    suffix: str = "",
) -> tuple[Call, ...]:
    """One call per shape and dtype."""

    def call(shape: Shape, dtype: torch.dtype) -> Call:
        return Call(label(shape, dtype) + suffix, lambda device: make(device, shape, dtype))

    return tuple(call(shape, dtype) for shape in shapes for dtype in dtypes)


def _one(device: torch.device, shape: Shape, dtype: torch.dtype) -> Arguments:
    return (normal(device, "x", shape, dtype),)


def _wide_values(device: torch.device, shape: Shape, dtype: torch.dtype) -> Arguments:
    return (normal(device, "x", shape, dtype, deviation=8.0),)


# -- pointwise --

SILU = Case(
    name="silu",
    files=("silu.cu",),
    reference=functional.silu,
    calls=_calls([(1,), (7,), (4096,), (3, 1021), (2, 5, 64, 33), (), (0, 8), (1 << 20,)], FLOATS, _wide_values),
    refused=_calls([(16,)], [torch.float64, torch.int32], _one),
)


def _bias_gelu(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return functional.gelu(x + bias, approximate="tanh")


def _row_and_bias(device: torch.device, shape: Shape, dtype: torch.dtype) -> Arguments:
    return normal(device, "x", shape, dtype, deviation=3.0), normal(device, "bias", shape[-1:], dtype)


BIAS_GELU = Case(
    name="bias_gelu",
    files=("bias_gelu.cu",),
    reference=_bias_gelu,
    calls=_calls(
        [(1, 1), (5, 8), (3, 33), (7, 1000), (2, 3, 4096), (129, 65), (0, 64), (4, 0), (1000, 2048), (9,)],
        FLOATS,
        _row_and_bias,
    ),
    refused=(
        Call("bias-of-another-length", lambda d: (normal(d, "x", (4, 8), F32), normal(d, "bias", (4,), F32))),
        Call("bias-of-another-dtype", lambda d: (normal(d, "x", (4, 8), F16), normal(d, "bias", (8,), F32))),
    ),
)

# -- norms --


def _layernorm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    return functional.layer_norm(x, weight.shape, weight, bias, eps)


def _layernorm_gelu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    return functional.gelu(_layernorm(x, weight, bias, eps))


def _before_centring(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    """The size of the result's terms before the mean is subtracted: roundings of x and the mean are relative to it."""
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).square().mean(-1, keepdim=True)
    return (x.abs() + mean.abs()) * torch.rsqrt(variance + eps) * weight.abs() + bias.abs()


def _norm_arguments(device: torch.device, shape: Shape, dtype: torch.dtype) -> Arguments:
    # A mean of 32 deviations: a variance computed as E[x^2] - mean^2 would show.
    return (
        normal(device, "x", shape, dtype, mean=32.0),
        normal(device, "weight", shape[-1:], dtype, mean=1.0, deviation=0.2),
        normal(device, "bias", shape[-1:], dtype, deviation=0.5),
        1e-5,
    )


_BAD_NORM_CALLS = (
    Call(
        "weight-of-another-length",
        lambda d: (normal(d, "x", (4, 8), F32), normal(d, "w", (4,), F32), normal(d, "b", (8,), F32), 1e-5),
    ),
    Call("no-columns", lambda d: _norm_arguments(d, (4, 0), F32)),
    Call("transposed-view", lambda d: (normal(d, "x", (64, 8), F32).t(), *_norm_arguments(d, (8, 64), F32)[1:])),
)

LAYERNORM = Case(
    name="layernorm",
    files=("layernorm.cu", "layernorm_wide.cu"),
    reference=_layernorm,
    magnitude=_before_centring,
    calls=_calls(
        [
            *[(1, 1), (3, 5), (9, 32), (130, 64), (5, 100), (2, 7, 512), (0, 128)],  # one warp per row
            *[
                (6, 513),
                (4, 1024),
                (3, 1025),
                (5, 1032),
                (2, 2047),
                (3, 4096),
                (2, 16384),
                (2, 16383),
            ],  # around the border
        ],
        FLOATS,
        _norm_arguments,
    ),
    refused=(*_BAD_NORM_CALLS, Call("beyond-shared-memory", lambda d: _norm_arguments(d, (2, 131072), BF16))),
)

LAYERNORM_GELU = Case(
    name="layernorm_gelu",
    files=("layernorm_gelu.cu",),
    reference=_layernorm_gelu,
    magnitude=_before_centring,
    calls=_calls(
        [(1, 1), (3, 5), (130, 64), (2, 7, 512), (5, 1000), (3, 1025), (513, 1024), (3, 8192), (2, 16384), (0, 128)],
        FLOATS,
        _norm_arguments,
    ),
    refused=(
        *_BAD_NORM_CALLS,
        Call("columns-beyond-registers", lambda d: _norm_arguments(d, (2, 32776), BF16)),
        Call("odd-columns-beyond-registers", lambda d: _norm_arguments(d, (2, 16385), F32)),
    ),
)


def _add_rmsnorm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> Results:
    stream = x + residual
    return functional.rms_norm(stream, weight.shape, weight, eps), stream


def _residual_arguments(device: torch.device, shape: Shape, dtype: torch.dtype) -> Arguments:
    return (
        normal(device, "x", shape, dtype),
        normal(device, "residual", shape, dtype, deviation=2.0),
        normal(device, "weight", shape[-1:], dtype, mean=1.0, deviation=0.2),
        1e-6,
    )


ADD_RMSNORM = Case(
    name="add_rmsnorm",
    files=("add_rmsnorm.cu",),
    reference=_add_rmsnorm,
    calls=_calls(
        [(1, 8), (3, 5), (130, 64), (2, 7, 512), (5, 1000), (3, 1025), (256, 4096), (2, 16384), (0, 128)],
        HALVES,
        _residual_arguments,
    ),
    refused=(
        *_calls([(4, 64)], [F32], _residual_arguments),
        *_calls([(2, 16392)], [BF16], _residual_arguments),
        Call(
            "residual-of-another-shape",
            lambda d: (normal(d, "x", (4, 8), F16), *_residual_arguments(d, (2, 8), F16)[1:]),
        ),
    ),
)

# -- softmax --


def _softmax_mask(x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    return torch.softmax(x if mask is None else x + mask, dim=-1)


def _unmasked(device: torch.device, shape: Shape, dtype: torch.dtype) -> Arguments:
    return normal(device, "x", shape, dtype, deviation=4.0), None


def _causal(device: torch.device, shape: Shape, dtype: torch.dtype) -> Arguments:
    """A mask over the last two dimensions that hides what lies ahead: row 0 sees one element."""
    rows, cols = shape[-2:]
    hidden = torch.ones((rows, cols), dtype=torch.bool).triu(1)  # on "meta", a triangle takes seconds to import
    mask = torch.zeros((rows, cols), dtype=dtype).masked_fill(hidden, float("-inf"))
    return normal(device, "x", shape, dtype, deviation=4.0), mask.to(device)


def _all_hidden(device: torch.device) -> Arguments:
    """One row of the mask hides everything: softmax gives NaN there, and only there."""
    mask = torch.zeros((3, 64), dtype=F32, device=device)
    mask[1] = float("-inf")
    return normal(device, "x", (3, 64), F32), mask


def _with_nan(device: torch.device) -> Arguments:
    x = normal(device, "x", (4, 100), F32)
    x[2, 31] = float("nan")
    return x, None


def _mask_of(mask_shape: Shape) -> Call:
    return Call(
        label("mask", mask_shape), lambda d: (normal(d, "x", (2, 3, 5, 24), F16), normal(d, "mask", mask_shape, F16))
    )


SOFTMAX_MASK = Case(
    name="softmax_mask",
    files=("softmax_mask.cu",),
    reference=_softmax_mask,
    calls=(
        *_calls([(1, 1), (3, 5), (130, 64), (5, 1000), (3, 1025), (2, 16384), (0, 128)], FLOATS, _unmasked),
        *_calls([(7, 9), (2, 3, 33, 33), (2, 4, 128, 128)], FLOATS, _causal, "-causal"),
        *[_mask_of(shape) for shape in [(24,), (5, 24), (3, 5, 24), (2, 3, 5, 24)]],
        Call("all-hidden", _all_hidden),
        Call("nan", _with_nan),
    ),
    refused=(
        Call("mask-to-be-broadcast", lambda d: (normal(d, "x", (2, 5, 24), F16), normal(d, "mask", (5, 1), F16))),
        Call("bool-mask", lambda d: (normal(d, "x", (5, 24), F16), integers(d, "mask", (5, 24), torch.bool, 0, 2))),
        *_calls([(4, 16392), (3, 0)], [F32], _unmasked),
    ),
)

CLUSTER_SOFTMAX = Case(
    name="cluster_softmax",
    files=("cluster_softmax.cu",),
    reference=lambda x: torch.softmax(x, dim=-1),
    calls=(
        *_calls([(3, 8), (2, 1000), (5, 4104), (2, 131072), (0, 64), (1, 720896)], FLOATS, _wide_values),
        Call("half-hidden", lambda d: (_half_hidden(d),)),
    ),
    refused=_calls([(4, 1001), (1, 4 << 20)], [F32], _one),
    least_cc=90,
)


def _half_hidden(device: torch.device) -> torch.Tensor:
    """-inf throughout the first half: whole blocks of the cluster have nothing to add."""
    x = normal(device, "x", (2, 8192), F32)
    x[:, :4096] = float("-inf")
    return x


# -- reductions --


def _few_values(device: torch.device, shape: Shape, dtype: torch.dtype) -> Arguments:
    """Small integers: sums of them are exact in any order, and the greatest of them occurs many times."""
    return (integers(device, "x", shape, dtype, -3, 4),)


def _row_sum(x: torch.Tensor) -> torch.Tensor:
    return x.sum(-1, dtype=accumulator(x))


ROW_SUM = Case(
    name="row_sum",
    files=("row_sum.cu",),
    reference=_row_sum,
    magnitude=lambda x: x.abs().sum(-1),
    calls=_calls(
        [(1, 1), (3, 5), (130, 64), (7, 1001), (2, 3, 4096), (3, 100003), (0, 16), (4, 0), (9,)], FLOATS, _one
    ),
    refused=_calls([(3, 5)], [torch.int32], _one),
)


ROW_SUM_EXACT = replace(
    ROW_SUM,
    name="row_sum-integers",
    exact=True,
    calls=_calls([(3, 5), (130, 64), (7, 1001), (3, 100003)], FLOATS, _few_values),
    refused=(),
)


def _grid_sum(x: torch.Tensor) -> torch.Tensor:
    return x.sum(dtype=accumulator(x))


GRID_SUM = Case(
    name="grid_sum",
    files=("grid_sum.cu",),
    reference=_grid_sum,
    magnitude=lambda x: x.abs().sum(),
    calls=_calls(
        [(1,), (), (0,), (7,), (4096,), (4097,), (3, 1021), (1000, 1003), (1 << 24,), ((1 << 24) + 3,)], FLOATS, _one
    ),
    refused=_calls([(3, 5)], [torch.int64], _one),
)


GRID_SUM_EXACT = replace(
    GRID_SUM,
    name="grid_sum-integers",
    exact=True,
    calls=_calls([(7,), (4097,), (1000, 1003), ((1 << 24) + 3,)], FLOATS, _few_values),
    refused=(),
)


def _greatest(x: torch.Tensor) -> Results:
    result = torch.max(x, dim=-1)
    return result.values, result.indices


def _nan_and_infinity(device: torch.device) -> Arguments:
    x = normal(device, "x", (6, 1000), F32)
    x[0, 700] = float("nan")
    x[0, 300] = float("nan")  # the first NaN counts
    x[1, 5] = float("inf")
    x[2] = float("-inf")  # all equal: the first
    x[3, :999] = float("-inf")
    x[4, 0] = float("nan")
    return (x,)


ARGMAX = Case(
    name="argmax",
    files=("argmax.cu",),
    reference=_greatest,
    exact=True,
    calls=(
        *_calls([(1, 1), (3, 5), (130, 64), (7, 1001), (2, 3, 4096), (3, 100003), (0, 16), (9,)], FLOATS, _one),
        *_calls([(5, 64), (4, 3001), (2, 16384)], FLOATS, _few_values, "-ties"),
        Call("nan-and-infinity", _nan_and_infinity),
    ),
    refused=_calls([(3, 0), ()], [F32], _one),
)


def _bytes(device: torch.device, shape: Shape, dtype: torch.dtype) -> Arguments:
    return (integers(device, "x", shape, dtype, 0, 256),)


HISTOGRAM = Case(
    name="histogram",
    files=("histogram.cu",),
    reference=lambda x: torch.bincount(x.flatten().long(), minlength=256),
    exact=True,
    calls=(
        *_calls([(1,), (15,), (16,), (3, 5, 7), (65536,), (65537,), (0,), (1 << 22,)], [torch.uint8], _bytes),
        Call("one-value", lambda d: (torch.full((100_001,), 7, dtype=torch.uint8, device=d),)),
    ),
    refused=(Call("int8", lambda d: (integers(d, "x", (16,), torch.int8, 0, 100),)),),
)

# -- scan --

CUMSUM = Case(
    name="cumsum",
    files=("cumsum.cu",),
    reference=lambda x: torch.cumsum(x, dim=-1),
    magnitude=lambda x: torch.cumsum(x.abs(), dim=-1),
    calls=_calls(
        [
            (1, 1),
            (3, 5),
            (130, 64),
            (5, 1001),
            (3, 4096),
            (3, 4100),
            (2, 4097),
            (2, 65536),
            (2, 3, 10007),
            (0, 16),
            (4, 0),
        ],
        [F32],
        _one,
    ),
    refused=_calls([(3, 8)], [F16, torch.float64], _one),
)

CUMSUM_EXACT = replace(
    CUMSUM,
    name="cumsum-integers",
    exact=True,
    calls=_calls([(3, 5), (5, 1001), (3, 4100), (2, 65536), (2, 3, 10007)], [F32], _few_values),
    refused=(),
)

# -- layout --


def _byte_like(device: torch.device, shape: Shape, dtype: torch.dtype) -> Arguments:
    return (integers(device, "x", shape, dtype, 0, 100),)


TRANSPOSE = Case(
    name="transpose",
    files=("transpose.cu",),
    reference=lambda x: x.transpose(-1, -2).contiguous(),
    exact=True,
    calls=(
        *_calls(
            [(1, 1), (32, 32), (33, 65), (3, 257, 130), (1, 1000), (1000, 1), (0, 5), (5, 0), (2, 64, 64)], FLOATS, _one
        ),
        *_calls(
            [(37, 70), (2, 128, 65)], [torch.float64, torch.int64, torch.int8, torch.uint8, torch.bool], _byte_like
        ),
        *_calls([(72, 200), (2, 136, 24)], [torch.float64, torch.int8, BF16], _byte_like),
        Call("columns-1-to-65", lambda d: (normal(d, "x", (72, 104), BF16)[:, 1:65],)),  # chunks, but none aligned
        Call("columns-1-to-60", lambda d: (normal(d, "x", (70, 100), F32)[:, 1:60],)),
        Call("every-other-row", lambda d: (normal(d, "x", (3, 90, 66), BF16)[:, ::2],)),
        Call("expanded-batch", lambda d: (normal(d, "x", (40, 50), F32).expand(3, 40, 50),)),
    ),
    refused=(
        Call("strided-columns", lambda d: (normal(d, "x", (70, 100), F32)[:, ::2],)),
        *_calls([(2, 2, 3, 4), (5,)], [F32], _one),
    ),
)


def _bias_relu(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.relu(x + bias[:, None, None]).contiguous(memory_format=torch.channels_last)


def _image_and_bias(device: torch.device, shape: Shape, dtype: torch.dtype) -> Arguments:
    return normal(device, "x", shape, dtype), normal(device, "bias", shape[1:2], dtype)


CHANNELS_LAST_BIAS_RELU = Case(
    name="channels_last_bias_relu",
    files=("channels_last_bias_relu.cu",),
    reference=_bias_relu,
    exact=True,
    calls=_calls(
        [
            *[(1, 1, 1, 1), (2, 3, 5, 7), (3, 65, 9, 11), (1, 128, 1, 33), (0, 4, 8, 8), (2, 8, 0, 4)],
            *[(2, 64, 16, 16), (3, 72, 10, 20), (1, 256, 8, 9)],  # chunks of 16 bytes
        ],
        FLOATS,
        _image_and_bias,
    ),
    refused=(
        *_calls([(3, 4, 5)], [F32], _image_and_bias),
        Call(
            "already-channels-last",
            lambda d: (
                normal(d, "x", (2, 8, 5, 7), F32).contiguous(memory_format=torch.channels_last),
                normal(d, "bias", (8,), F32),
            ),
        ),
    ),
)

# -- two phases --


def _l2_normalize(x: torch.Tensor, eps: float = 1e-12) -> torch.Tensor:
    wide = x.to(accumulator(x))
    norm: torch.Tensor = torch.linalg.vector_norm(wide)
    return (wide / norm.clamp_min(eps)).to(x.dtype)


def _to_normalize(device: torch.device, shape: Shape, dtype: torch.dtype) -> Arguments:
    return normal(device, "x", shape, dtype), 1e-12


L2_NORMALIZE = Case(
    name="l2_normalize",
    files=("l2_normalize_coop.cu",),
    reference=_l2_normalize,
    calls=(
        *_calls([(1,), (7,), (3, 1021), (64, 64), (0, 3), (1 << 20,), (1000, 3001)], FLOATS, _to_normalize),
        Call("zeros", lambda d: (torch.zeros((4, 8), device=d), 1e-12)),
        Call("small-with-large-eps", lambda d: (normal(d, "x", (50,), F32, deviation=0.01), 10.0)),
    ),
    refused=_calls([(16,)], [torch.float64], _to_normalize),
)


def _quantize_rows(x: torch.Tensor) -> Results:
    greatest = x.abs().amax(-1).float()
    # Divided by a tensor on purpose: by a number, PyTorch on a GPU multiplies by the reciprocal.
    scale = torch.where(greatest == 0, 1.0, greatest / torch.full_like(greatest, 127.0))
    q = torch.round(x.float() / scale.unsqueeze(-1)).clamp(-127, 127).to(torch.int8)
    return q, scale


def _zero_row(device: torch.device) -> Arguments:
    x = normal(device, "x", (3, 64), BF16)
    x[1] = 0.0
    return (x,)


def _every_size(device: torch.device) -> Arguments:
    """Rows whose scales go from below the least normal number to near the greatest."""
    sizes = torch.logspace(-40, 37, 64, dtype=torch.float64, device=device)
    return ((normal(device, "x", (64, 256), F32).double() * sizes[:, None]).to(BF16),)


QUANTIZE_ROWS = Case(
    name="quantize_rows",
    files=("quantize_rows.cu",),
    reference=_quantize_rows,
    exact=True,
    calls=(
        *_calls([(1, 8), (3, 40), (130, 64), (5, 1000), (2, 3, 4096), (777, 2048), (0, 16)], [BF16], _wide_values),
        *_calls([(3, 16384), (5, 40000)], [BF16], _wide_values),  # the largest block; two launches
        Call("row-of-zeros", _zero_row),
        Call("tiny-and-huge", _every_size),
    ),
    refused=(*_calls([(3, 12), (3, 0)], [BF16], _one), *_calls([(4, 64)], [F16], _one)),
    least_cc=90,
)

CASES: tuple[Case, ...] = (
    SILU,
    BIAS_GELU,
    LAYERNORM,
    LAYERNORM_GELU,
    ADD_RMSNORM,
    SOFTMAX_MASK,
    CLUSTER_SOFTMAX,
    ROW_SUM,
    ROW_SUM_EXACT,
    GRID_SUM,
    GRID_SUM_EXACT,
    ARGMAX,
    HISTOGRAM,
    CUMSUM,
    CUMSUM_EXACT,
    TRANSPOSE,
    CHANNELS_LAST_BIAS_RELU,
    L2_NORMALIZE,
    QUANTIZE_ROWS,
)
