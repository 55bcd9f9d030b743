"""The matrix products: tensor cores by mma.sync, CuTe, TMA and wgmma; split along K; fused with an activation.

Shapes are chosen for what can go wrong: a single row or column block, sizes just past a tile, K shorter than the
pipeline or not a multiple of its step, several tiles per block, no rows, nothing to sum, and the sizes a file must
refuse.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.nn import functional

from .cases import Arguments, Call, Case, label, normal

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
HALVES = (F16, BF16)
Sizes = tuple[int, int, int]  # M, N, K


def _product(device: torch.device, sizes: Sizes, dtype: torch.dtype) -> Arguments:
    m, n, k = sizes
    return normal(device, "a", (m, k), dtype), normal(device, "b", (k, n), dtype)


def _products(sizes: Iterable[Sizes], dtypes: Iterable[torch.dtype]) -> tuple[Call, ...]:
    def call(size: Sizes, dtype: torch.dtype) -> Call:
        return Call(label(size, dtype), lambda device: _product(device, size, dtype))

    return tuple(call(size, dtype) for size in sizes for dtype in dtypes)


def _magnitude(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.abs() @ b.abs()


# Sizes that files for 16-bit elements take: N and K are multiples of 8.
TAILS = ((1, 8, 8), (127, 136, 72), (129, 264, 200), (65, 1000, 1032), (300, 72, 24))
TILES = ((128, 128, 64), (256, 512, 512), (1024, 1024, 1024))
LONG = (64, 128, 16384)
MANY_TILES = (2048, 4352, 136)  # more tiles than a GPU has multiprocessors: persistent blocks take several
NO_ROWS = (0, 64, 64)
NO_SUM = (64, 64, 0)

ODD = (
    *_products([(16, 12, 64), (16, 64, 12)], [BF16]),  # not a multiple of 16 bytes
    *_products([(16, 16, 16)], [torch.float64]),
    Call("mixed-dtypes", lambda d: (normal(d, "a", (16, 64), F16), normal(d, "b", (64, 16), BF16))),
    Call("inner-sizes-differ", lambda d: (normal(d, "a", (16, 64), F16), normal(d, "b", (32, 16), F16))),
    Call("batched", lambda d: (normal(d, "a", (2, 16, 64), F16), normal(d, "b", (64, 16), F16))),
    Call("transposed-view", lambda d: (normal(d, "a", (64, 16), F16).t(), normal(d, "b", (64, 16), F16))),
)

MATMUL_MMA = Case(
    name="matmul_mma",
    files=("matmul_mma.cu",),
    reference=torch.matmul,
    calls=_products((*TAILS, *TILES, LONG, MANY_TILES, NO_ROWS, NO_SUM), HALVES),
    refused=ODD,
    least_cc=80,
    magnitude=_magnitude,
)

MATMUL_CUTE_SM80 = Case(
    name="matmul_cute_sm80",
    files=("matmul_cute_sm80.cu",),
    reference=torch.matmul,
    calls=_products((*TAILS, *TILES, LONG, NO_ROWS, NO_SUM), HALVES),
    refused=ODD,
    least_cc=80,
    magnitude=_magnitude,
    slow_build=True,
)

MATMUL_WGMMA_TMA = Case(
    name="matmul_wgmma_tma",
    files=("matmul_wgmma_tma.cu",),
    reference=torch.matmul,
    calls=_products((*TAILS, *TILES, LONG, MANY_TILES, (8192, 4096, 64), NO_ROWS), HALVES),
    refused=(*ODD, *_products([NO_SUM], [BF16])),
    least_cc=90,
    only_cc=90,
    magnitude=_magnitude,
)

MATMUL_CUTE_SM90 = Case(
    name="matmul_cute_sm90",
    files=("matmul_cute_sm90.cu",),
    reference=torch.matmul,
    calls=_products((*TAILS, *TILES, LONG, MANY_TILES, NO_ROWS), HALVES),
    refused=(*ODD, *_products([NO_SUM], [BF16])),
    least_cc=90,
    only_cc=90,
    magnitude=_magnitude,
    slow_build=True,
)

MATMUL_SPLITK = Case(
    name="matmul_splitk",
    files=("matmul_splitk.cu",),
    reference=torch.matmul,
    calls=_products(
        (
            (1, 4, 4),
            (127, 132, 68),
            (65, 68, 2052),
            (256, 256, 8192),
            (64, 64, 16384),
            (1030, 2052, 516),
            NO_ROWS,
            NO_SUM,
        ),
        [F32],
    ),
    refused=(*_products([(16, 6, 64), (16, 64, 6)], [F32]), *_products([(16, 16, 64)], [F16])),
    magnitude=_magnitude,
)

# Two files of one op in the order of dispatch: the second takes what the first leaves, on Hopper an empty sum.
MATMUL = Case(
    name="matmul",
    files=("matmul_wgmma_tma.cu", "matmul_mma.cu"),
    reference=torch.matmul,
    calls=_products([(129, 264, 200), MANY_TILES, NO_SUM], [BF16]),
    refused=_products([(16, 12, 64)], [BF16]),
    least_cc=80,
    magnitude=_magnitude,
)


def _linear(device: torch.device, sizes: Sizes, dtype: torch.dtype, bias: bool) -> Arguments:
    m, n, k = sizes
    x, w = normal(device, "x", (m, k), dtype), normal(device, "w", (n, k), dtype, deviation=0.25)
    return x, w, normal(device, "bias", (n,), dtype) if bias else None


def _linears(sizes: Iterable[Sizes], dtypes: Iterable[torch.dtype], bias: bool) -> tuple[Call, ...]:
    def call(size: Sizes, dtype: torch.dtype) -> Call:
        name = label(size, dtype) if bias else label(size, dtype, "no-bias")
        return Call(name, lambda device: _linear(device, size, dtype, bias))

    return tuple(call(size, dtype) for size in sizes for dtype in dtypes)


def _bias_silu(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return functional.silu(functional.linear(x, w, bias))


def _linear_magnitude(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return functional.linear(x.abs(), w.abs(), None if bias is None else bias.abs())


MATMUL_BIAS_SILU = Case(
    name="matmul_bias_silu",
    files=("matmul_bias_silu.cu",),
    reference=_bias_silu,
    calls=(
        *_linears((*TAILS, *TILES, MANY_TILES, NO_ROWS, NO_SUM), HALVES, bias=True),
        *_linears([(129, 264, 200), NO_SUM], HALVES, bias=False),
    ),
    refused=(
        *_linears([(16, 12, 64), (16, 64, 12)], [BF16], bias=True),
        *_linears([(16, 16, 16)], [F32], bias=True),
        Call(
            "bias-of-another-length",
            lambda d: (*_linear(d, (16, 16, 16), F16, False)[:2], normal(d, "bias", (8,), F16)),
        ),
        Call(
            "bias-of-another-dtype",
            lambda d: (*_linear(d, (16, 16, 16), F16, False)[:2], normal(d, "bias", (16,), F32)),
        ),
    ),
    least_cc=80,
    magnitude=_linear_magnitude,
)


def _linear_gelu(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return functional.gelu(functional.linear(x, w, bias))


def _deeper(device: torch.device) -> Arguments:
    x, w, bias = _linear(device, (6, 64, 32), F16, True)
    return x.view(2, 3, 32), w, bias


LINEAR_GELU_LIBRARY = Case(
    name="linear_gelu_library",
    files=("linear_gelu_library.cu",),
    reference=_linear_gelu,
    calls=(
        *_linears(
            [(1, 8, 3), (127, 136, 72), (300, 2056, 65), (1024, 1024, 1024), NO_ROWS, NO_SUM], (F32, *HALVES), bias=True
        ),
        Call("2x3x32-f16", _deeper),
    ),
    refused=(
        *_linears([(16, 12, 64)], [BF16], bias=True),
        Call(
            "bias-of-another-length",
            lambda d: (*_linear(d, (16, 16, 16), F16, False)[:2], normal(d, "bias", (8,), F16)),
        ),
    ),
    magnitude=_linear_magnitude,
    library=True,
)

CASES: tuple[Case, ...] = (
    MATMUL_MMA,
    MATMUL_CUTE_SM80,
    MATMUL_WGMMA_TMA,
    MATMUL_CUTE_SM90,
    MATMUL_SPLITK,
    MATMUL,
    MATMUL_BIAS_SILU,
    LINEAR_GELU_LIBRARY,
)
