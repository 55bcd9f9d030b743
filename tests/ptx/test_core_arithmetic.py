"""Arithmetic that the vectors recorded on a GPU do not cover: carry chains, wide integers, division, 24 bits, packs."""

from __future__ import annotations

import numpy as np
import pytest
from tests.ptx.cuda_kernels import In, clean, one_instruction

RNG = np.random.default_rng(7)
EDGES = np.array([0, 1, 2, 31, 32, 33, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFFFFFE], np.uint32)
WORDS = np.concatenate([EDGES, RNG.integers(0, 2**32, 54, dtype=np.uint32)])


def test_integers_of_128_bits() -> None:
    source = """typedef unsigned __int128 u128;
    extern "C" __global__ void k(const u128* x, u128* y) {
      int t = threadIdx.x; u128 a = x[2 * t], b = x[2 * t + 1];
      y[4 * t] = a + b; y[4 * t + 1] = a - b; y[4 * t + 2] = a * b; y[4 * t + 3] = b ? a / b : 0;
    }"""
    words = RNG.integers(0, 2**64, 128, dtype=np.uint64)
    words[::8] = 2**64 - 1
    words[3::16] = 0
    ran = clean(source, {"x": In(words), "y": np.zeros(256, np.uint64)})

    def wide(array: np.ndarray, index: int) -> int:
        return int(array[2 * index]) | int(array[2 * index + 1]) << 64

    for t in range(32):
        a, b = wide(words, 2 * t), wide(words, 2 * t + 1)
        results = [wide(ran["y"], 4 * t + k) for k in range(4)]
        expected = [a + b, a - b, a * b, a // b if b else 0]
        assert results == [value % 2**128 for value in expected]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("add.cc.u32 %0, %1, %2; addc.u32 %0, 0, 0;", lambda a, b: (a + b) >> 32),
        ("sub.cc.u32 %0, %1, %2; subc.u32 %0, 0, 0;", lambda a, b: -(a < b)),
        ("mad.lo.cc.u32 %0, %1, %2, %1; madc.hi.u32 %0, %1, %2, 0;", lambda a, b: (a * b + a) >> 32),
        ("mul24.lo.u32 %0, %1, %2;", lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF)),
        ("mul24.hi.u32 %0, %1, %2;", lambda a, b: ((a & 0xFFFFFF) * (b & 0xFFFFFF)) >> 16),
        ("mad.hi.u32 %0, %1, %2, 5;", lambda a, b: ((a * b) >> 32) + 5),
        ("div.u32 %0, %1, %2;", lambda a, b: a // b if b else 0xFFFFFFFF),
        ("rem.u32 %0, %1, %2;", lambda a, b: a % b if b else a),
        ("shl.b32 %0, %1, %2;", lambda a, b: a << b if b < 32 else 0),
        ("shr.u32 %0, %1, %2;", lambda a, b: a >> b if b < 32 else 0),
        ("sad.u32 %0, %1, %2, 3;", lambda a, b: abs(a - b) + 3),
        ("shf.l.clamp.b32 %0, %1, %2, 9;", lambda a, b: ((b << 32 | a) << 9) >> 32),
        ("shf.r.wrap.b32 %0, %1, %2, 41;", lambda a, b: (b << 32 | a) >> 9),
        ("bfi.b32 %0, %1, %2, 7, 12;", lambda a, b: (b & ~(0xFFF << 7)) | (a & 0xFFF) << 7),
        ("slct.u32.s32 %0, %1, 77, %2;", lambda a, b: a if b < 2**31 else 77),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_one_instruction(text: str, expected: object) -> None:
    a, b = WORDS, np.roll(WORDS, 5)
    arguments = {"a0": In(a), "a1": In(b), "d": np.zeros(64, np.uint32)}
    ran = clean(one_instruction(text, ("u32", "u32"), "u32"), arguments, block=(64,))
    assert callable(expected)
    assert list(ran["d"]) == [expected(int(x), int(y)) % 2**32 for x, y in zip(a, b, strict=True)]


def test_signed_division_never_traps() -> None:
    source = """extern "C" __global__ void k(const int* a, const int* b, int* y, const long long* c, long long* z) {
      int t = threadIdx.x; y[t] = a[t] / b[t]; y[32 + t] = a[t] % b[t]; z[t] = c[t] / (long long)b[t];
    }"""
    a = np.array([-(2**31), -(2**31), 7, -7, 7, -7, 0, 5] * 4, np.int32)
    b = np.array([-1, 1, 2, 2, -2, -2, 3, -3] * 4, np.int32)
    c = np.array([-(2**63), 9] * 16, np.int64)
    arguments = {"a": In(a), "b": In(b), "y": np.zeros(64, np.int32), "c": In(c), "z": np.zeros(32, np.int64)}
    ran = clean(source, arguments)

    def quotient(x: int, y: int, bits: int) -> int:
        value = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
        return (value + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)

    pairs = [(int(x), int(y)) for x, y in zip(a, b, strict=True)]
    assert list(ran["y"][:32]) == [quotient(x, y, 32) for x, y in pairs]
    assert list(ran["y"][32:]) == [x - (abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)) * y for x, y in pairs]
    assert list(ran["z"]) == [quotient(int(x), int(y), 64) for x, y in zip(c, b, strict=True)]
