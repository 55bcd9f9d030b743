"""Matrix instructions: fragments as the tables of the PTX ISA give them, values against numpy, 8x8 matrix moves."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.ptx.native_functions import core

RNG = np.random.default_rng(21)
BITS = {
    "f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "f32": 32, "f64": 64, "s8": 8, "u8": 8, "s4": 4, "u4": 4,
    "b1": 1, "s32": 32,
}  # fmt: skip


# -- number formats, in numpy --


def encode(values: NDArray[np.float64], kind: str) -> NDArray[np.uint64]:
    """Values that the format holds exactly."""
    if kind == "f64":
        return values.view(np.uint64)
    if kind == "f16":
        return values.astype(np.float16).view(np.uint16).astype(np.uint64)
    if kind in ("f32", "tf32"):
        return values.astype(np.float32).view(np.uint32).astype(np.uint64)
    if kind == "bf16":
        return values.astype(np.float32).view(np.uint32).astype(np.uint64) >> np.uint64(16)
    if kind == "e5m2":
        return values.astype(np.float16).view(np.uint16).astype(np.uint64) >> np.uint64(8)
    if kind == "e4m3":
        table = np.array([code_value_e4m3(code) for code in range(127)])
        codes = np.searchsorted(table, np.abs(values)).astype(np.uint64)
        return codes | (np.signbit(values).astype(np.uint64) << np.uint64(7))
    return values.astype(np.int64).view(np.uint64) & np.uint64((1 << BITS[kind]) - 1)


def code_value_e4m3(code: int) -> float:
    exponent, mantissa = code >> 3, code & 7
    return (8 + mantissa) * 2.0 ** (exponent - 10) if exponent else mantissa * 2.0**-9


def decode(words: NDArray[np.uint64], kind: str) -> NDArray[np.float64]:
    if kind == "f64":
        return words.view(np.float64)
    if kind == "f16":
        return words.astype(np.uint16).view(np.float16).astype(np.float64)
    if kind == "f32":
        return words.astype(np.uint32).view(np.float32).astype(np.float64)
    return words.astype(np.uint32).view(np.int32).astype(np.float64)


# -- the tables of the PTX ISA, written per shape as it writes them --


def place_a(kind: str, shape: tuple[int, int, int]) -> Callable[[int, int], tuple[int, int]]:
    """(lane, i) -> row and column of element a_i."""
    m, _, k = shape

    def place(lane: int, i: int) -> tuple[int, int]:
        group, thread = lane >> 2, lane % 4
        if kind in ("f16", "bf16"):
            if k == 8:
                return (group if i in (0, 1) else group + 8), thread * 2 + (i & 1)
            row = group if i in (0, 1, 4, 5) else group + 8
            return row, thread * 2 + (i & 1) + (8 if i >= 4 else 0)
        if kind == "tf32":
            return (group if i % 2 == 0 else group + 8), thread + (4 if i >= 2 else 0)
        if kind == "f64":
            if m == 8:
                return group, thread
            return (group if i % 2 == 0 else group + 8), (i * 2 + thread if i % 2 == 0 else i * 2 - 2 + thread)
        per = {8: 4, 4: 8, 1: 32}[BITS[kind]]
        if m == 8:
            return group, thread * per + i
        block = i // per
        return (group if block in (0, 2) else group + 8), thread * per + i % per + (4 * per if block >= 2 else 0)

    return place


def place_b(kind: str) -> Callable[[int, int], tuple[int, int]]:
    def place(lane: int, i: int) -> tuple[int, int]:
        group, thread = lane >> 2, lane % 4
        per = 1 if BITS[kind] >= 32 else 32 // BITS[kind]
        return thread * per + i % per + 4 * per * (i // per), group

    return place


def place_c(lane: int, i: int) -> tuple[int, int]:
    return (lane >> 2) + (8 if i >= 2 else 0), (lane % 4) * 2 + (i & 1)


def to_registers(
    matrix: NDArray[np.float64], kind: str, place: Callable[[int, int], tuple[int, int]]
) -> NDArray[np.uint64]:
    """[registers, lanes]"""
    words = encode(matrix, kind)
    per = 1 if BITS[kind] >= 32 else 32 // BITS[kind]
    elements = matrix.size // 32
    registers = np.zeros((elements // per, 32), np.uint64)
    for lane in range(32):
        for i in range(elements):
            registers[i // per, lane] |= words[place(lane, i)] << np.uint64(BITS[kind] * (i % per))
    return registers


def from_registers(registers: NDArray[np.uint64], kind: str, shape: tuple[int, int]) -> NDArray[np.float64]:
    per = 1 if BITS[kind] >= 32 else 32 // BITS[kind]
    matrix = np.full(shape, np.nan)
    for lane in range(32):
        for i in range(registers.shape[0] * per):
            word = registers[i // per, lane] >> np.uint64(BITS[kind] * (i % per))
            mask = np.uint64((1 << BITS[kind]) - 1) if BITS[kind] < 64 else np.uint64(2**64 - 1)
            matrix[place_c(lane, i)] = decode(np.array([word & mask]), kind)[0]
    return matrix


@dataclass
class Mma:
    number: int

    @property
    def counts(self) -> list[int]:
        return self._ask()[0]

    @property
    def bits(self) -> list[int]:
        return self._ask()[1]

    def _ask(self) -> tuple[list[int], list[int]]:
        counts, bits = (ctypes.c_int * 4)(), (ctypes.c_int * 4)()
        core().tw_mma_registers(self.number, counts, bits)
        return list(counts), list(bits)

    def __call__(self, a: NDArray[np.uint64], b: NDArray[np.uint64], c: NDArray[np.uint64]) -> NDArray[np.uint64]:
        counts, bits = self._ask()
        assert [a.shape[0], b.shape[0], c.shape[0]] == counts[1:]
        dtypes = [np.uint64 if width == 64 else np.uint32 for width in bits]
        d = np.zeros((counts[0], 32), dtypes[0])
        kept = [d, *(np.ascontiguousarray(x, t) for x, t in zip((a, b, c), dtypes[1:], strict=True))]
        pointers = [(ctypes.c_void_p * len(x))(*(row.ctypes.data for row in x)) for x in kept]
        core().tw_mma(self.number, *pointers)
        return d.astype(np.uint64)


def find(modifiers: str) -> Mma:
    number = core().tw_mma_find(modifiers.encode())
    assert number >= 0, modifiers
    return Mma(number)


def text_of(shape: tuple[int, int, int]) -> str:
    return "m{}n{}k{}".format(*shape)


def operand(kind: str, shape: tuple[int, int]) -> NDArray[np.float64]:
    """Small whole numbers: every sum is exact."""
    low, high = {"u8": (0, 256), "s8": (-128, 128), "u4": (0, 16), "s4": (-8, 8), "b1": (0, 2)}.get(kind, (-4, 5))
    return RNG.integers(low, high, shape).astype(np.float64)


FLOATS = [
    *((shape, "f16", acc) for shape in ((16, 8, 8), (16, 8, 16)) for acc in ("f32", "f16")),
    *((shape, "bf16", "f32") for shape in ((16, 8, 8), (16, 8, 16))),
    *((shape, "tf32", "f32") for shape in ((16, 8, 4), (16, 8, 8))),
    *(
        (shape, kind, acc)
        for shape in ((16, 8, 16), (16, 8, 32))
        for kind in ("e4m3", "e5m2")
        for acc in ("f32", "f16")
    ),
    *((shape, "f64", "f64") for shape in ((8, 8, 4), (16, 8, 4), (16, 8, 8), (16, 8, 16))),
]
INTEGERS = [
    *((shape, kind) for shape in ((8, 8, 16), (16, 8, 16), (16, 8, 32)) for kind in ("s8", "u8")),
    *((shape, kind) for shape in ((8, 8, 32), (16, 8, 32), (16, 8, 64)) for kind in ("s4", "u4")),
]


@pytest.mark.parametrize(("shape", "kind", "accumulator"), FLOATS)
def test_float_products(shape: tuple[int, int, int], kind: str, accumulator: str) -> None:
    m, n, k = shape
    a, b, c = operand(kind, (m, k)), operand(kind, (k, n)), operand("f32", (m, n))
    mma = find(f"sync.aligned.{text_of(shape)}.row.col.{accumulator}.{kind}.{kind}.{accumulator}")
    d = mma(
        to_registers(a, kind, place_a(kind, shape)),
        to_registers(b, kind, place_b(kind)),
        to_registers(c, accumulator, place_c),
    )
    np.testing.assert_array_equal(from_registers(d, accumulator, (m, n)), a @ b + c)


@pytest.mark.parametrize(("shape", "kind"), INTEGERS)
def test_integer_products(shape: tuple[int, int, int], kind: str) -> None:
    m, n, k = shape
    other = ("u" if kind[0] == "s" else "s") + kind[1]
    a, b = operand(kind, (m, k)), operand(other, (k, n))
    c = RNG.integers(-(2**31), 2**31, (m, n)).astype(np.float64)
    c.flat[:8] = [2**31 - 1, -(2**31)] * 4
    registers = (
        to_registers(a, kind, place_a(kind, shape)),
        to_registers(b, other, place_b(other)),
        to_registers(c, "s32", place_c),
    )
    exact = (a @ b + c).astype(np.int64)
    wrapped = ((exact + 2**31) % 2**32 - 2**31).astype(np.float64)
    types = f"s32.{kind}.{other}.s32"
    plain = find(f"sync.aligned.{text_of(shape)}.row.col.{types}")(*registers)
    np.testing.assert_array_equal(from_registers(plain, "s32", (m, n)), wrapped)
    clamped = find(f"sync.aligned.{text_of(shape)}.row.col.satfinite.{types}")(*registers)
    np.testing.assert_array_equal(from_registers(clamped, "s32", (m, n)), np.clip(exact, -(2**31), 2**31 - 1))


@pytest.mark.parametrize("shape", [(8, 8, 128), (16, 8, 128), (16, 8, 256)])
@pytest.mark.parametrize("op", ["xor", "and"])
def test_bit_products(shape: tuple[int, int, int], op: str) -> None:
    m, n, k = shape
    a, b, c = operand("b1", (m, k)), operand("b1", (k, n)), operand("f32", (m, n))
    d = find(f"sync.aligned.{text_of(shape)}.row.col.s32.b1.b1.s32.{op}.popc")(
        to_registers(a, "b1", place_a("b1", shape)),
        to_registers(b, "b1", place_b("b1")),
        to_registers(c, "s32", place_c),
    )
    left, right = a[:, :, None].astype(int), b[None, :, :].astype(int)
    ones = (left ^ right if op == "xor" else left & right).sum(axis=1)
    np.testing.assert_array_equal(from_registers(d, "s32", (m, n)), ones + c)


def test_random_f16_products_are_close() -> None:
    a = RNG.normal(size=(16, 16)).astype(np.float16).astype(np.float64)
    b = RNG.normal(size=(16, 8)).astype(np.float16).astype(np.float64)
    c = RNG.normal(size=(16, 8)).astype(np.float32).astype(np.float64)
    shape = (16, 8, 16)
    d = find("sync.aligned.m16n8k16.row.col.f32.f16.f16.f32")(
        to_registers(a, "f16", place_a("f16", shape)),
        to_registers(b, "f16", place_b("f16")),
        to_registers(c, "f32", place_c),
    )
    bound = (np.abs(a) @ np.abs(b) + np.abs(c)) * 2.0**-22
    assert np.all(np.abs(from_registers(d, "f32", (16, 8)) - (a @ b + c)) < bound)


def test_sums_are_cut_off_as_on_hopper() -> None:
    """1 + 16 * 2^-26: each small product is below the cut at 2^-25; in f32 the exact sum would round up by 2^-22."""
    shape = (16, 8, 16)
    mma = find("sync.aligned.m16n8k16.row.col.f32.f16.f16.f32")
    c = to_registers(np.ones((16, 8)), "f32", place_c)
    for size, expected in ((2.0**-13, 1.0), (2.0**-12, 1.0 + 2.0**-20)):
        a, b = np.full((16, 16), size), np.full((16, 8), size)
        d = mma(to_registers(a, "f16", place_a("f16", shape)), to_registers(b, "f16", place_b("f16")), c)
        np.testing.assert_array_equal(from_registers(d, "f32", (16, 8)), np.full((16, 8), expected))


def test_tf32_ignores_low_bits_and_nan_is_the_hardware_one() -> None:
    a, b = np.zeros((16, 8)), np.zeros((8, 8))
    a[3, 5], b[5, 2] = 1.0 + 2.0**-20, 2.0
    shape = (16, 8, 8)
    mma = find("sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32")
    zero = to_registers(np.zeros((16, 8)), "f32", place_c)
    d = mma(to_registers(a, "tf32", place_a("tf32", shape)), to_registers(b, "tf32", place_b("tf32")), zero)
    assert from_registers(d, "f32", (16, 8))[3, 2] == 2.0
    a[3, 5] = -np.inf
    d = mma(to_registers(a, "tf32", place_a("tf32", shape)), to_registers(b, "tf32", place_b("tf32")), zero)
    assert np.isnan(from_registers(d, "f32", (16, 8))[3, 0])  # -inf * 0
    assert 0x7FFFFFFF in d.tolist()[0]


def test_the_result_may_overwrite_the_accumulator() -> None:
    shape = (16, 8, 16)
    a, b, c = operand("f16", (16, 16)), operand("f16", (16, 8)), operand("f32", (16, 8))
    mma = find("sync.aligned.m16n8k16.row.col.f32.f16.f16.f32")
    registers = [
        to_registers(a, "f16", place_a("f16", shape)).astype(np.uint32),
        to_registers(b, "f16", place_b("f16")).astype(np.uint32),
        to_registers(c, "f32", place_c).astype(np.uint32),
    ]
    pointers = [(ctypes.c_void_p * len(x))(*(row.ctypes.data for row in x)) for x in registers]
    core().tw_mma(mma.number, pointers[2], *pointers)
    np.testing.assert_array_equal(from_registers(registers[2].astype(np.uint64), "f32", (16, 8)), a @ b + c)


@pytest.mark.parametrize(
    "modifiers",
    [
        "sync.aligned.m8n8k4.row.col.f32.f16.f16.f32",
        "sync.aligned.m16n8k16.col.col.f32.f16.f16.f32",
        "sync.aligned.m16n8k16.row.col.f16.bf16.bf16.f16",
        "sync.aligned.m16n8k32.row.col.f32.f16.f16.f32",
        "sync.aligned.m16n8k16.row.col.satfinite.f32.f16.f16.f32",
        "sync.aligned.m16n8k128.row.col.s32.b1.b1.s32",
        "sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.e4m3.e4m3.f32",
        "sync.aligned.m16n8k16.row.col.f32.f16.f16",
        "sync.aligned.m16n8k16.row.col.f32.f16.f16.f32.",
        "",
    ],
)
def test_unknown_instructions_are_refused(modifiers: str) -> None:
    assert core().tw_mma_find(modifiers.encode()) == -1


# -- wmma --

BIG = ((16, 16, 16), (32, 8, 16), (8, 32, 16))
WMMA = [
    *((shape, "f16", acc, f"{acc}.{acc}") for shape in BIG for acc in ("f32", "f16")),
    *((shape, "bf16", "f32", "f32.bf16.bf16.f32") for shape in BIG),
    *((shape, kind, "s32", f"s32.{kind}.{kind}.s32") for shape in BIG for kind in ("s8", "u8")),
    ((16, 16, 8), "tf32", "f32", "f32.tf32.tf32.f32"),
    ((8, 8, 4), "f64", "f64", "f64.f64.f64.f64"),
    ((8, 8, 32), "s4", "s32", "s32.s4.s4.s32"),
]
# Registers of a, b and the accumulator, as the PTX ISA lists them.
WMMA_COUNTS = {
    ("f16", (16, 16, 16)): (8, 8), ("f16", (32, 8, 16)): (8, 8), ("f16", (8, 32, 16)): (8, 8),
    ("bf16", (16, 16, 16)): (4, 4), ("bf16", (32, 8, 16)): (8, 2), ("bf16", (8, 32, 16)): (2, 8),
    ("s8", (16, 16, 16)): (2, 2), ("s8", (32, 8, 16)): (4, 1), ("s8", (8, 32, 16)): (1, 4),
    ("u8", (16, 16, 16)): (2, 2), ("u8", (32, 8, 16)): (4, 1), ("u8", (8, 32, 16)): (1, 4),
    ("tf32", (16, 16, 8)): (4, 4), ("f64", (8, 8, 4)): (1, 1), ("s4", (8, 8, 32)): (1, 1),
}  # fmt: skip


def load_fragment(text: str, memory: NDArray[np.uint64], stride: int) -> NDArray[np.uint64]:
    fragment = core().tw_fragment_find(text.encode())
    assert fragment >= 0, text
    count, per = core().tw_fragment_registers(fragment), core().tw_fragment_elements(fragment)
    bits = core().tw_fragment_element_bits(fragment)
    registers = np.zeros((count, 32), np.uint64)
    for lane in range(32):
        for reg in range(count):
            for element in range(per):
                word = memory[core().tw_fragment_offset(fragment, lane, reg, element, stride)]
                registers[reg, lane] |= word << np.uint64(bits * element)
    return registers


def store_fragment(text: str, registers: NDArray[np.uint64], size: int, stride: int) -> NDArray[np.uint64]:
    fragment = core().tw_fragment_find(text.encode())
    assert fragment >= 0, text
    per, bits = core().tw_fragment_elements(fragment), core().tw_fragment_element_bits(fragment)
    memory = np.full(size, 0xDEAD, np.uint64)
    for lane in range(32):
        for reg in range(registers.shape[0]):
            for element in range(per):
                at = core().tw_fragment_offset(fragment, lane, reg, element, stride)
                word = registers[reg, lane] >> np.uint64(bits * element)
                memory[at] = word if bits == 64 else word & np.uint64((1 << bits) - 1)
    return memory


@pytest.mark.parametrize(("shape", "kind", "accumulator", "types"), WMMA)
@pytest.mark.parametrize("layouts", [("row", "col", "row"), ("col", "row", "col")])
def test_wmma_from_memory_to_memory(
    shape: tuple[int, int, int], kind: str, accumulator: str, types: str, layouts: tuple[str, str, str]
) -> None:
    m, n, k = shape
    name = text_of(shape)
    a, b, c = operand(kind, (m, k)), operand(kind, (k, n)), operand("f32", (m, n))
    pad = 3

    def laid_out(matrix: NDArray[np.float64], kind: str, layout: str) -> tuple[NDArray[np.uint64], int]:
        lines = encode(matrix, kind) if layout == "row" else encode(matrix, kind).T
        padded = np.zeros((lines.shape[0], lines.shape[1] + pad), np.uint64)
        padded[:, : lines.shape[1]] = lines
        return padded.ravel(), padded.shape[1]

    fa = load_fragment(f"load.a.sync.aligned.{layouts[0]}.{name}.global.{kind}", *laid_out(a, kind, layouts[0]))
    fb = load_fragment(f"load.b.sync.aligned.{layouts[1]}.{name}.shared.{kind}", *laid_out(b, kind, layouts[1]))
    fc = load_fragment(f"load.c.sync.aligned.{layouts[2]}.{name}.{accumulator}", *laid_out(c, accumulator, layouts[2]))
    assert (fa.shape[0], fb.shape[0]) == WMMA_COUNTS[kind, shape]
    rn = "rn." if kind == "f64" else ""
    number = core().tw_wmma_mma_find(f"sync.aligned.{layouts[0]}.{layouts[1]}.{name}.{rn}{types}".encode())
    assert number >= 0
    d = Mma(number)(fa, fb, fc)
    lines, length = (m, n) if layouts[2] == "row" else (n, m)
    stored = store_fragment(
        f"store.d.sync.aligned.{layouts[2]}.{name}.{accumulator}", d, lines * (length + pad), length + pad
    ).reshape(lines, length + pad)
    assert np.all(stored[:, length:] == 0xDEAD)
    result = decode(np.ascontiguousarray(stored[:, :length]), accumulator)
    np.testing.assert_array_equal(result if layouts[2] == "row" else result.T, a @ b + c)


def test_wmma_default_strides_and_refusals() -> None:
    def find_fragment(text: str) -> int:
        return int(core().tw_fragment_find(text.encode()))

    stride = core().tw_fragment_default_stride
    assert stride(find_fragment("load.a.sync.aligned.row.m32n8k16.global.f16")) == 16
    assert stride(find_fragment("load.a.sync.aligned.col.m32n8k16.global.f16")) == 32
    assert stride(find_fragment("store.d.sync.aligned.row.m8n32k16.shared.f32")) == 32
    for wrong in (
        "load.d.sync.aligned.row.m16n16k16.f32",
        "store.c.sync.aligned.row.m16n16k16.f32",
        "load.a.sync.aligned.row.m16n16k16.f32",
        "load.a.sync.aligned.m16n16k16.f16",
        "load.a.sync.aligned.row.m16n8k16.f16",
    ):
        assert find_fragment(wrong) == -1
    assert core().tw_wmma_mma_find(b"sync.aligned.row.col.m16n16k16.f32.f32") >= 0
    assert core().tw_wmma_mma_find(b"xor.popc.sync.aligned.row.col.m8n8k128.s32.b1.b1.s32") >= 0
    assert core().tw_wmma_mma_find(b"sync.aligned.row.col.m16n8k16.f32.f32") == -1


# -- 8x8 matrices --


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("transpose", [0, 1])
def test_matrices_load_and_store(count: int, transpose: int) -> None:
    rows = RNG.integers(0, 65536, (32, 8), dtype=np.uint16)
    registers = np.zeros((count, 32), np.uint32)
    pointers = (ctypes.c_void_p * count)(*(r.ctypes.data for r in registers))
    core().tw_ldmatrix(ctypes.c_void_p(rows.ctypes.data), count, transpose, pointers)
    for matrix in range(count):
        block = rows[8 * matrix : 8 * matrix + 8]
        block = block.T if transpose else block
        for lane in range(32):
            low, high = block[lane // 4, 2 * (lane % 4)], block[lane // 4, 2 * (lane % 4) + 1]
            assert registers[matrix, lane] == int(low) | int(high) << 16
    back = np.zeros_like(rows)
    core().tw_stmatrix(pointers, count, transpose, ctypes.c_void_p(back.ctypes.data))
    np.testing.assert_array_equal(back[: 8 * count], rows[: 8 * count])
    assert not back[8 * count :].any()


def test_movmatrix_transposes() -> None:
    block = RNG.integers(0, 65536, (8, 8), dtype=np.uint16)
    a = np.ascontiguousarray(block).view(np.uint32).ravel().copy()
    d = np.zeros(32, np.uint32)
    core().tw_movmatrix(ctypes.c_void_p(a.ctypes.data), ctypes.c_void_p(d.ctypes.data))
    np.testing.assert_array_equal(d, np.ascontiguousarray(block.T).view(np.uint32).ravel())


def test_wide_and_plain_multiplications_agree_bit_by_bit() -> None:
    """Called past the choice tensor.c makes, on shapes described as it describes them."""
    shape = (ctypes.c_int * 9)(16, 8, 16, 0, 0, 5, 5, 0, 0)  # f16 operands, f32 accumulators
    a, b = RNG.integers(0, 2**32, (4, 32), dtype=np.uint32), RNG.integers(0, 2**32, (2, 32), dtype=np.uint32)
    c = RNG.normal(size=(4, 32)).astype(np.float32)
    results = []
    for name in ("tw_multiply_plain", "tw_multiply_wide"):
        d = np.zeros((4, 32), np.uint32)
        pointers = [(ctypes.c_void_p * len(x))(*(row.ctypes.data for row in x)) for x in (d, a, b, c)]
        getattr(core(), name)(shape, *pointers)
        results.append(d)
    np.testing.assert_array_equal(results[0], results[1])
