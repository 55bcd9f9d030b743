"""What the Triton programs of `third_party_programs.py` are given and must give, and the records of a task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class Mapped:
    """A tensor that is given as a tensor map."""

    tensor: torch.Tensor
    box: tuple[int, ...]
    swizzle: int


Value = torch.Tensor | Mapped | int | float


@dataclass(frozen=True)
class Result:
    """A tensor the program fills; right within `tolerance` times the greatest magnitude of what is expected."""

    expected: torch.Tensor
    tolerance: float = 0.0
    start: torch.Tensor | None = None  # None: nothing is in it yet


@dataclass(frozen=True)
class Task:
    """One launch: arguments in order, numbers as `struct` packs them, results among them."""

    grid: tuple[int, int, int]
    arguments: tuple[Value | Result, ...]


def normal(name: str, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    return torch.randn(shape, generator=generator)


def _integers(name: str, low: int, high: int, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    return torch.randint(low, high, shape, generator=generator).to(dtype)


def _vector_add() -> Task:
    x, y = normal("x", 1000), normal("y", 1000)
    return Task((4, 1, 1), (x, y, Result(x + y), 1000))


def _softmax() -> Task:
    x = normal("x", 7, 1000)
    return Task((7, 1, 1), (x, Result(x.double().softmax(1).float(), 2e-6), 1000))


def _layernorm() -> Task:
    x, weight, bias = (t.bfloat16() for t in (normal("x", 5, 777), normal("w", 777), normal("b", 777)))
    expected = torch.nn.functional.layer_norm(x.double(), (777,), weight.double(), bias.double(), 1e-5)
    return Task((5, 1, 1), (x, weight, bias, Result(expected.bfloat16(), 8e-3), 777, 1e-5))


def _row_sum() -> Task:
    x = normal("x", 6, 3001)
    return Task((6, 1, 1), (x, Result(x.double().sum(1).float(), 2e-6), 3001))


def _column_sum() -> Task:
    x = normal("x", 201, 99)
    return Task((4, 1, 1), (x, Result(x.double().sum(0).float(), 2e-6), 201, 99))


def _running_sum() -> Task:
    x = normal("x", 4, 1001)
    return Task((4, 1, 1), (x, Result(x.double().cumsum(1).float(), 2e-6), 1001))


def _greatest() -> Task:
    x = _integers("x", -50, 50, torch.float32, 6, 999)  # many ties: the first counts
    best = x.max(1)
    return Task((6, 1, 1), (x, Result(best.values), Result(best.indices.int()), 999))


def _philox(seed: int, offset: np.ndarray) -> np.ndarray:
    """The first word of Philox 4x32 with ten rounds (Salmon and others, 2011)."""
    low = np.uint64(0xFFFFFFFF)
    c = [offset.astype(np.uint64), *(np.zeros_like(offset, np.uint64) for _ in range(3))]
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        first, second = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        shift = np.uint64(32)
        c = [
            (second >> shift) ^ c[1] ^ np.uint64(k0),
            second & low,
            (first >> shift) ^ c[3] ^ np.uint64(k1),
            first & low,
        ]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c[0].astype(np.uint32)


def _random_bits() -> Task:
    bits = torch.from_numpy(_philox(1234, np.arange(1000)).view(np.int32))
    return Task((4, 1, 1), (Result(bits), 1000, 1234))


def _dropout() -> Task:
    x = normal("x", 1000)
    bits = _philox(77, np.arange(1000)).view(np.int32).astype(np.int64)
    uniform = torch.from_numpy(np.where(bits < 0, -bits - 1, bits) * 4.6566127342e-10)
    return Task((4, 1, 1), (x, Result(torch.where(uniform < 0.75, x / 0.75, 0.0), 1e-6), 1000, 0.75, 77))


def _total_by_atomics() -> Task:
    x = normal("x", 2000)
    return Task((8, 1, 1), (x, Result(x.double().sum().float().reshape(1), 1e-4, torch.zeros(1)), 2000))


def _histogram() -> Task:
    x = _integers("x", 0, 64, torch.int32, 2000)
    counts = torch.bincount(x, minlength=64).int()
    return Task((4, 1, 1), (x, Result(counts, start=torch.zeros(64, dtype=torch.int32)), 2000))


def _sorted_rows() -> Task:
    x = normal("x", 3, 128)
    return Task((3, 1, 1), (x, Result(x.sort(1).values)))


def _transposed() -> Task:
    x = normal("x", 70, 45).half()
    return Task((3, 2, 1), (x, Result(x.t().contiguous()), 70, 45))


def _product(m: int, n: int, k: int, tile: int, dtype: torch.dtype, tolerance: float) -> Task:
    a, b = normal("a", m, k).to(dtype), normal("b", k, n).to(dtype)
    expected = (a.double() @ b.double()).to(dtype)
    return Task((-(-m // tile), -(-n // tile), 1), (a, b, Result(expected, tolerance), m, n, k))


def _product_i8() -> Task:
    a, b = _integers("a", -128, 128, torch.int8, 100, 160), _integers("b", -128, 128, torch.int8, 160, 80)
    expected = (a.double() @ b.double()).int()
    return Task((2, 2, 1), (a, b, Result(expected), 100, 80, 160))


def _grouped() -> Task:
    sizes, n, k = (40, 0, 33, 64, 7), 80, 96
    offsets = torch.tensor([0, *np.cumsum(sizes)], dtype=torch.int32)
    a, b = normal("a", sum(sizes), k).half(), normal("b", len(sizes), k, n).half()
    parts = [a[offsets[i] : offsets[i + 1]].double() @ b[i].double() for i in range(len(sizes))]
    return Task((3, 1, 1), (a, b, Result(torch.cat(parts).half(), 1e-3), offsets, len(sizes), n, k))


def _attention() -> Task:
    heads, length, depth = 2, 150, 64
    q, k, v = (normal(name, heads, length, depth).half() for name in "qkv")
    expected = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True)
    return Task((3, heads, 1), (q, k, v, Result(expected.half(), 2e-3), length, depth**-0.5))


TASKS: dict[str, Callable[[], Task]] = {
    "vector_add": _vector_add,
    "softmax": _softmax,
    "layernorm": _layernorm,
    "row_sum": _row_sum,
    "column_sum": _column_sum,
    "running_sum": _running_sum,
    "greatest": _greatest,
    "dropout": _dropout,
    "random_bits": _random_bits,
    "total_by_atomics": _total_by_atomics,
    "histogram": _histogram,
    "sorted_rows": _sorted_rows,
    "transposed": _transposed,
    "matmul_f16": lambda: _product(100, 77, 50, 64, torch.float16, 1e-3),
    "matmul_f16_async": lambda: _product(100, 80, 208, 64, torch.float16, 1e-3),
    "matmul_f16_8_warps": lambda: _product(200, 272, 336, 128, torch.float16, 1e-3),
    "matmul_bf16": lambda: _product(100, 80, 208, 64, torch.bfloat16, 8e-3),
    "matmul_f32": lambda: _product(50, 40, 70, 32, torch.float32, 2e-6),
    "matmul_tf32": lambda: _product(100, 80, 208, 64, torch.float32, 2e-3),
    "matmul_i8": _product_i8,
    "grouped_matmul": _grouped,
    "attention": _attention,
}
