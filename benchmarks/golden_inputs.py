"""Inputs for golden vectors: edge cases first, then random words. The same everywhere, without numpy's generators."""

from __future__ import annotations

import numpy as np
from benchmarks.golden_probe import Words
from numpy.typing import NDArray


def random_words(count: int, seed: int) -> Words:
    """64 random bits each (splitmix64)."""
    with np.errstate(over="ignore"):
        z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(
            seed * 0x632BE59BD9B4E019 % 2**64
        )
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def uniform(count: int, seed: int, low: float, high: float) -> NDArray[np.float64]:
    return low + (high - low) * (random_words(count, seed) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def bits_of_f32(values: NDArray[np.float64]) -> Words:
    with np.errstate(over="ignore"):
        return values.astype(np.float32).view(np.uint32).astype(np.uint64)


def bits_of_f16(values: NDArray[np.float64]) -> Words:
    with np.errstate(over="ignore"):
        return values.astype(np.float16).view(np.uint16).astype(np.uint64)


def bits_of_bf16(values: NDArray[np.float64]) -> Words:
    """Rounded towards zero: inputs need no better."""
    return bits_of_f32(values) >> np.uint64(16)


def shuffled(words: Words, seed: int) -> Words:
    return words[np.argsort(random_words(len(words), seed), kind="stable")]


F32_EDGES = np.array(
    [
        0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007FFFFF, 0x807FFFFF, 0x00400000, 0x00800000, 0x80800000,
        0x00800001, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0xFFC12345, 0x7FFFFFFF,
        0x3F800000, 0xBF800000, 0x3F7FFFFF, 0x3F800001, 0x3F000000, 0xBF000000, 0x3FC00000, 0x40200000, 0xC0200000,
        0x40600000, 0x3EFFFFFF, 0x3F000001, 0x4B000000, 0x4B000001, 0x4AFFFFFF, 0x4F000000, 0xCF000000, 0x4EFFFFFF,
        0xCF000001, 0x4F800000, 0x4F7FFFFF, 0x5F000000, 0xDF000000, 0x5EFFFFFF, 0x5F800000, 0x42FF0000, 0x43000000,
        0xC3000000, 0xC3010000, 0x437F0000, 0x437F8000, 0x43800000, 0x46FFFE00, 0x47000000, 0xC7000000, 0x477FFF00,
        0x477FE000, 0x477FEFFF, 0x477FF000, 0x47800000, 0x33000000, 0x33000001, 0x33800000, 0x33C00000, 0x387FC000,
        0x387FE000, 0x38800000, 0x38801000, 0x38803000, 0x3F801000, 0x3F803000, 0x3F802FFF, 0x3F808000, 0x3F818000,
        0x3F817FFF, 0x3F810000, 0x7F7F7FFF, 0x7F7F8000, 0x00008000, 0x00018000, 0x43E00000, 0x43E80000, 0x43E7FFFF,
        0x43F00000, 0x3B000000, 0x3A800000, 0x3A800001, 0x3AC00000, 0x47600000, 0x47680000, 0x47700000, 0x37000000,
        0x37800000, 0x36800000, 0x3F880000, 0x3F980000, 0x3FA00000, 0x7E800000, 0x7EFFFFFF, 0x7F000000, 0x00200000,
        0x42FE0000, 0xC2FC0000, 0xC3160000, 0xC3150000, 0x41880000, 0x40490FDB, 0x40C90FDB, 0x3FC90FDB, 0xC0490FDB,
    ],
    dtype=np.uint64,
)  # fmt: skip

F64_EDGES = np.array(
    [
        0x0000000000000000, 0x8000000000000000, 0x0000000000000001, 0x8000000000000001, 0x000FFFFFFFFFFFFF,
        0x0010000000000000, 0x7FEFFFFFFFFFFFFF, 0xFFEFFFFFFFFFFFFF, 0x7FF0000000000000, 0xFFF0000000000000,
        0x7FF8000000000000, 0xFFF8000000000000, 0x7FF0000000000001, 0x7FF8000000012345, 0x3FF0000000000000,
        0xBFF0000000000000, 0x3FE0000000000000, 0x3FF8000000000000, 0x4004000000000000, 0xC004000000000000,
        0x3FE0000000000001, 0x3FDFFFFFFFFFFFFF, 0x41DFFFFFFFC00000, 0x41E0000000000000, 0xC1E0000000000000,
        0xC1E0000000200000, 0x41EFFFFFFFE00000, 0x41F0000000000000, 0x43E0000000000000, 0xC3E0000000000000,
        0x43DFFFFFFFFFFFFF, 0x43F0000000000000, 0x43EFFFFFFFFFFFFF, 0x47EFFFFFE0000000, 0x47EFFFFFF0000000,
        0x47EFFFFFEFFFFFFF, 0x47F0000000000000, 0x3810000000000000, 0x380FFFFFFFFFFFFF, 0x36A0000000000000,
        0x3690000000000000, 0x3690000000000001, 0x3FF0000010000000, 0x3FF0000030000000, 0x3FF0000010000001,
        0x40EFFC0000000000, 0x40EFFE0000000000, 0x3E60000000000000, 0x3E70000000000000, 0x3FF0020000000000,
        0x3FF0020000000001, 0x4330000000000000, 0x4340000000000001, 0x3FF00000FFFFFFFF, 0xBFF8000000000001,
    ],
    dtype=np.uint64,
)  # fmt: skip

INTEGER_EDGES = np.array(
    [
        0, 1, 2, 127, 128, 129, 255, 256, 257, 2047, 2048, 2049, 4097, 32767, 32768, 65504, 65519, 65520, 65535, 65536,
        0xFFFFFF, 0x1000000, 0x1000001, 0x1000003, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFF80, 0xFFFFFFFF,
        0xFFFFFFFE,
        0x100000000, 0x1FFFFFFFF, 0x20000000000001, 0x20000000000003, 0x7FFFFFFFFFFFFFFF, 0x8000000000000000,
        0x8000000000000401, 0xFFFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFF80, 0xFFFFFFFFFFFFFF7F, 0xFFFFFFFFFFFF8000,
        0xFFFFFFFF80000000, 0xFFFFFFFF7FFFFFFF, 0x7F, 0xFFFFFFFFFFFFFFF0,
    ],
    dtype=np.uint64,
)  # fmt: skip


def f32_words(count: int, seed: int) -> Words:
    """Edges, then moderate numbers, then any bits."""
    rest = count - len(F32_EDGES)
    moderate = rest // 2
    values = bits_of_f32(uniform(moderate, seed, -40.0, 40.0))
    anything = random_words(rest - moderate, seed + 1) & np.uint64(0xFFFFFFFF)
    return np.concatenate([F32_EDGES, values, anything])


def f64_words(count: int, seed: int) -> Words:
    rest = count - len(F64_EDGES)
    values = uniform(rest // 2, seed, -3e5, 3e5).view(np.uint64)
    return np.concatenate([F64_EDGES, values, random_words(rest - rest // 2, seed + 1)])


def integer_words(count: int, seed: int) -> Words:
    """Edges, then random integers of every length."""
    rest = random_words(count - len(INTEGER_EDGES), seed)
    lengths = random_words(len(rest), seed + 1) & np.uint64(63)
    return np.concatenate([INTEGER_EDGES, rest >> lengths])


def half_words(count: int, seed: int) -> Words:
    """16-bit patterns: each exponent with a few mantissas, both signs, then any bits."""
    edges = np.array(
        [0, 0x8000, 1, 0x8001, 0x3FF, 0x400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7C01, 0x7E00, 0xFFFF, 0x7FFF, 0x3C00,
         0xBC00, 0x3800, 0x3E00, 0x4100, 0xC100, 0x7F80, 0xFF80, 0x7F7F, 0x7F81, 0x80, 0x3F80, 0xBF80, 0x4040],
        dtype=np.uint64,
    )  # fmt: skip
    return np.concatenate([edges, random_words(count - len(edges), seed) & np.uint64(0xFFFF)])
