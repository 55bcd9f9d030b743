"""Every rounding against exact rational arithmetic, every 16- and 8-bit value, special values as PTX documents them."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from tests.ptx.exact_rounding import (
    BF16,
    E4M3,
    E5M2,
    F16,
    F32,
    F64,
    MODES,
    NAMES,
    RM,
    RN,
    RNA,
    Format,
    code_of,
    rounded_integer,
    value_of,
)
from tests.ptx.native_functions import Functions

RNG = np.random.default_rng(20)
ALL_HALVES = np.arange(65536, dtype=np.uint16)
INF, NAN = float("inf"), float("nan")
NAN_F32 = 0x7FFFFFFF
F32_EDGES = np.array(
    [0, 1 << 31, 1, 0x80000001, 0x7FFFFF, 0x800000, 0x7F7FFFFF, 0xFF7FFFFF, 0x3F800000, 0xBF800000, 0x3F800001,
     0x3F7FFFFF, 0x7F000000, 0x00400000, 0x33800000, 0x477FF000, 0x477FEFFF, 0x3F801000, 0x3F818000, 0x4B800001],
    dtype=np.uint32,
)  # fmt: skip


@pytest.fixture(params=[pytest.param(False, id="any processor"), pytest.param(True, id="wide", marks=pytest.mark.slow)])
def functions(request: pytest.FixtureRequest) -> Functions:
    return Functions(request.param)


def finite_f32(count: int) -> np.ndarray:
    """Random bits without NaN and infinity, some near each other so that sums cancel, and the edges."""
    bits = RNG.integers(0, 2**32, count, dtype=np.uint32)
    close = RNG.integers(0x3F000000, 0x41000000, count, dtype=np.uint32) | (bits & 0x80000000)
    words = np.concatenate([F32_EDGES, np.where(RNG.random(count) < 0.5, bits, close)])
    return words[(words & 0x7F800000) != 0x7F800000].view(np.float32)


def finite_f64(count: int) -> np.ndarray:
    words = RNG.integers(0, 2**64, count, dtype=np.uint64)
    ends = np.array(
        [0, 1 << 63, 1, (1 << 63) + 1, 0xFFFFFFFFFFFFF, 1 << 52, F64.largest, F64.largest | 1 << 63], np.uint64
    )
    near = RNG.normal(size=count).view(np.uint64)
    words = np.concatenate([ends, np.where(RNG.random(count) < 0.5, words, near)])
    return words[(words & np.uint64(0x7FF << 52)) != np.uint64(0x7FF << 52)].view(np.float64)


def exact(value: float) -> Fraction:
    return Fraction(float(value))


# -- widening --


@pytest.mark.slow
def test_every_f16_widens_exactly(functions: Functions) -> None:
    expected = ALL_HALVES.view(np.float16).astype(np.float32)
    bits = np.where(np.isnan(expected), NAN_F32, expected.view(np.uint32))
    np.testing.assert_array_equal(functions("f16_to_f32", ALL_HALVES).view(np.uint32), bits)


def test_every_bf16_widens_exactly(functions: Functions) -> None:
    np.testing.assert_array_equal(
        functions("bf16_to_f32", ALL_HALVES).view(np.uint32), ALL_HALVES.astype(np.uint32) << 16
    )


@pytest.mark.parametrize(("name", "form"), [("e4m3", E4M3), ("e5m2", E5M2)])
def test_every_fp8_widens_exactly(functions: Functions, name: str, form: Format) -> None:
    codes = np.arange(256, dtype=np.uint8)
    actual = functions(f"{name}_to_f32", codes)
    for code, value in zip(codes.tolist(), actual.tolist(), strict=True):
        if code & 0x7F <= form.largest:
            assert Fraction(value) == value_of(code, form)
            assert math.copysign(1, value) == (-1 if code & 0x80 else 1)
        elif name == "e5m2" and code & 0x7F == 0x7C:
            assert math.isinf(value)
        else:
            assert math.isnan(value)


# -- narrowing --


def test_every_f16_survives_the_way_through_f32(functions: Functions) -> None:
    back = functions("f32_to_f16", functions("f16_to_f32", ALL_HALVES))
    nan = np.isnan(ALL_HALVES.view(np.float16))
    np.testing.assert_array_equal(back, np.where(nan, 0x7FFF, ALL_HALVES))


def neighbours_of_ties(codes: np.ndarray) -> np.ndarray:
    """For each adjacent pair of values: their middle in f32, and the f32 on either side of it."""
    values = codes.astype(np.float64)
    middle = ((values[:-1] + values[1:]) / 2).astype(np.float32)
    return np.concatenate([middle, np.nextafter(middle, np.float32(-INF)), np.nextafter(middle, np.float32(INF))])


def test_ties_of_every_f16_pair_go_to_even(functions: Functions) -> None:
    inputs = neighbours_of_ties(np.arange(0x7C00, dtype=np.uint16).view(np.float16))
    inputs = np.concatenate([inputs, -inputs, np.array([65519.996, 65520, 1e9, INF, -INF], np.float32)])
    with np.errstate(over="ignore"):
        expected = inputs.astype(np.float16).view(np.uint16)
    np.testing.assert_array_equal(functions("f32_to_f16", inputs), expected)
    np.testing.assert_array_equal(functions("f32_to_f16_mode", inputs, RN, 0), expected)
    np.testing.assert_array_equal(functions("f64_to_f16", inputs.astype(np.float64)), expected)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("name", "form"), [("f16", F16), ("bf16", BF16)])
@pytest.mark.parametrize("saturate", [0, 1])
def test_narrowing_in_every_mode(functions: Functions, name: str, form: Format, mode: int, saturate: int) -> None:
    inputs = finite_f32(1500)
    actual = functions(f"f32_to_{name}_mode", inputs, mode, saturate)
    expected = [code_of(exact(v), form, mode, bool(saturate), bool(np.signbit(v))) for v in inputs]
    np.testing.assert_array_equal(actual, np.array(expected, np.uint16))
    if mode == RN and not saturate:
        np.testing.assert_array_equal(functions(f"f32_to_{name}", inputs), actual)


@pytest.mark.parametrize(("name", "form"), [("e4m3", E4M3), ("e5m2", E5M2)])
def test_fp8_narrowing_saturates(functions: Functions, name: str, form: Format) -> None:
    inputs = np.concatenate(
        [finite_f32(2000), RNG.normal(0, 300, 500).astype(np.float32), np.array([INF, -INF, NAN], np.float32)]
    )
    expected = [code_of(exact(v), form, RN, True, bool(np.signbit(v))) for v in inputs[:-3]]
    expected += [form.largest, form.largest | 0x80, 0x7F]
    np.testing.assert_array_equal(functions(f"f32_to_{name}", inputs), np.array(expected, np.uint8))


def test_tf32_rounds_ties_away(functions: Functions) -> None:
    inputs = finite_f32(3000)
    tf32 = Format(10, 127, 0x3FBFF, 1 << 18)
    expected = [code_of(exact(v), tf32, RNA, False, bool(np.signbit(v))) << 13 for v in inputs]
    np.testing.assert_array_equal(functions("f32_to_tf32_rna", inputs), np.array(expected, np.uint32))
    specials = np.array([0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC12345, 0x7F800001], np.uint32).view(np.float32)
    # Recorded on hardware: special values lose their low bits, so that the last NaN becomes an infinity.
    truncated = [0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC12000, 0x7F800000]
    assert functions("f32_to_tf32_rna", specials).tolist() == truncated
    assert functions.convert("rna.tf32.f32", words_of(specials)).tolist() == truncated
    assert functions.convert("rn.tf32.f32", words_of(specials)).tolist()[2:] == [0x7FFFE000] * 3


@pytest.mark.parametrize("mode", MODES)
def test_f64_to_f32(functions: Functions, mode: int) -> None:
    inputs = np.concatenate([finite_f64(800), finite_f32(800).astype(np.float64) * (1 + 2.0**-30)])
    expected = [code_of(exact(v), F32, mode, False, bool(np.signbit(v))) for v in inputs]
    actual = functions("f64_to_f32_mode", inputs, mode).view(np.uint32)
    np.testing.assert_array_equal(actual, np.array(expected, np.uint32))


# -- f16 and bf16 arithmetic --


def finite_halves(form: Format, count: int) -> np.ndarray:
    codes = RNG.integers(0, form.largest + 1, count) | (RNG.integers(0, 2, count) << 15)
    ends = np.array([0, 0x8000, 1, 0x8001, form.largest, form.largest | 0x8000, 1 << form.mantissa_bits])
    close = (form.bias << form.mantissa_bits) + RNG.integers(-300, 300, count)
    return np.concatenate([ends, np.where(RNG.random(count) < 0.5, codes, close)]).astype(np.uint16)


def half_code(value: Fraction, form: Format, negative_zero: bool) -> int:
    return code_of(value, form, RN, False, negative_zero)


@pytest.mark.parametrize(("name", "form"), [("f16", F16), ("bf16", BF16)])
def test_half_arithmetic_rounds_once(functions: Functions, name: str, form: Format) -> None:
    a, b = finite_halves(form, 1500), RNG.permutation(finite_halves(form, 1500))
    c = RNG.permutation(finite_halves(form, 1500))
    for op in ("add", "sub", "mul"):
        expected = []
        for x, y in zip(a.tolist(), b.tolist(), strict=True):
            left, right = value_of(x, form), value_of(y, form)
            right = -right if op == "sub" else right
            flipped = y ^ 0x8000 if op == "sub" else y
            if op == "mul":
                expected.append(half_code(left * right, form, bool((x ^ y) & 0x8000)))
            else:
                expected.append(half_code(left + right, form, bool(x & flipped & 0x8000)))
        np.testing.assert_array_equal(functions(f"{op}_{name}", a, b), np.array(expected, np.uint16), err_msg=op)
    expected = []
    for x, y, z in zip(a.tolist(), b.tolist(), c.tolist(), strict=True):
        product = value_of(x, form) * value_of(y, form)
        expected.append(half_code(product + value_of(z, form), form, bool((x ^ y) & z & 0x8000)))
    np.testing.assert_array_equal(functions(f"fma_{name}", a, b, c), np.array(expected, np.uint16))


def test_bf16_fma_sees_an_addend_far_below_a_tie(functions: Functions) -> None:
    # 1.0078125 * 1.5 = 1.51171875 lies between two bf16; the addend 2^-133 decides nothing a double could hold.
    a, b = np.array([0x3F81, 0x3F81], np.uint16), np.array([0x3FC0, 0x3FC0], np.uint16)
    tiny = np.array([0x0001, 0x8001], np.uint16)
    assert functions("fma_bf16", a, b, tiny).tolist() == [0x3FC2, 0x3FC1]


@pytest.mark.parametrize(("name", "form"), [("f16", F16), ("bf16", BF16)])
def test_half_minimum_and_maximum(functions: Functions, name: str, form: Format) -> None:
    infinity, nan = form.infinity, form.infinity + 1
    a = np.array([0, 0x8000, nan, 0x3C00, nan, 0x8001, infinity, infinity | 0x8000], np.uint16)
    b = np.array([0x8000, 0, 0x3C00, nan, nan | 0x8000, 0x0001, 0x3C00, 0x3C00], np.uint16)
    assert functions(f"min_{name}", a, b).tolist() == [
        0x8000, 0x8000, 0x3C00, 0x3C00, 0x7FFF, 0x8001, 0x3C00, infinity | 0x8000,
    ]  # fmt: skip
    assert functions(f"max_{name}", a, b).tolist() == [0, 0, 0x3C00, 0x3C00, 0x7FFF, 1, infinity, 0x3C00]
    assert functions(f"min_nan_{name}", a, b).tolist()[2:5] == [0x7FFF] * 3
    assert functions(f"max_nan_{name}", a, b).tolist()[2:5] == [0x7FFF] * 3
    assert functions(f"relu_{name}", a).tolist() == [0, 0, 0x7FFF, 0x3C00, 0x7FFF, 0, infinity, 0]


def test_half_sum_of_infinities_is_the_hardware_nan(functions: Functions) -> None:
    assert functions("add_f16", np.array([0x7C00], np.uint16), np.array([0xFC00], np.uint16)).tolist() == [0x7FFF]
    assert functions("add_bf16", np.array([0x7F80], np.uint16), np.array([0xFF80], np.uint16)).tolist() == [0x7FFF]


# -- f32 and f64 in every rounding --


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("kind", "form"), [("f32", F32), ("f64", F64)])
def test_sums_and_products(functions: Functions, kind: str, form: Format, mode: int) -> None:
    make = finite_f32 if kind == "f32" else finite_f64
    a = make(700)
    b, c = RNG.permutation(a), RNG.permutation(a)
    words = np.uint32 if kind == "f32" else np.uint64

    def compare(name: str, expected: list[int], *operands: np.ndarray) -> None:
        actual = functions(f"{name}_{kind}_mode", *operands, mode).view(words)
        np.testing.assert_array_equal(actual, np.array(expected, words), err_msg=name)

    def zero_sign(first: bool, second: bool) -> bool:
        return first if first == second else mode == RM

    sums, differences, products, fused, quotients = [], [], [], [], []
    for x, y, z in zip(a, b, c, strict=True):
        ex, ey, ez = exact(x), exact(y), exact(z)
        sx, sy, sz = (bool(np.signbit(v)) for v in (x, y, z))
        sums.append(code_of(ex + ey, form, mode, negative_zero=zero_sign(sx, sy)))
        differences.append(code_of(ex - ey, form, mode, negative_zero=zero_sign(sx, not sy)))
        products.append(code_of(ex * ey, form, mode, negative_zero=sx != sy))
        fused.append(code_of(ex * ey + ez, form, mode, negative_zero=zero_sign(sx != sy, sz)))
        if ey:
            quotients.append(code_of(ex / ey, form, mode, negative_zero=sx != sy))
    compare("add", sums, a, b)
    compare("sub", differences, a, b)
    compare("mul", products, a, b)
    compare("fma", fused, a, b, c)
    compare("div", quotients, a[b != 0], b[b != 0])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("kind", "form"), [("f32", F32), ("f64", F64)])
def test_roots_and_reciprocals(functions: Functions, kind: str, form: Format, mode: int) -> None:
    inputs = np.abs(finite_f32(500) if kind == "f32" else finite_f64(500))
    inputs = np.concatenate([inputs[inputs > 0], np.arange(1, 200, dtype=inputs.dtype) ** 2])
    words = np.uint32 if kind == "f32" else np.uint64
    roots = []
    for value in inputs:
        number = exact(value)
        # A root with 200 bits, and one more unit where bits are lost: no rounding to 53 bits can tell the difference.
        scale = 400 + 2 * number.denominator.bit_length()
        scale += scale % 2
        shifted = number * 2**scale
        floor = math.isqrt(int(shifted))
        inexact = floor * floor != shifted
        roots.append(code_of(Fraction(2 * floor + inexact, 2 ** (scale // 2 + 1)), form, mode))
    actual = functions(f"sqrt_{kind}_mode", inputs, mode).view(words)
    np.testing.assert_array_equal(actual, np.array(roots, words))
    reciprocals = [code_of(1 / exact(v), form, mode) for v in inputs]
    actual = functions(f"rcp_{kind}_mode", inputs, mode).view(words)
    np.testing.assert_array_equal(actual, np.array(reciprocals, words))


def test_nearest_f32_agrees_with_the_slow_way(functions: Functions) -> None:
    a = finite_f32(5000)
    b, c = RNG.permutation(a), RNG.permutation(a)
    for op in ("add", "sub", "mul"):
        np.testing.assert_array_equal(
            functions(f"{op}_f32", a, b).view(np.uint32), functions(f"{op}_f32_mode", a, b, RN).view(np.uint32)
        )
    np.testing.assert_array_equal(
        functions("fma_f32", a, b, c).view(np.uint32), functions("fma_f32_mode", a, b, c, RN).view(np.uint32)
    )


def test_f32_nan_is_the_hardware_one(functions: Functions) -> None:
    a = np.array([INF, 0.0, NAN, -1.0], np.float32)
    b = np.array([-INF, INF, 1.0, NAN], np.float32)
    assert functions("add_f32", a, b).view(np.uint32).tolist()[0] == NAN_F32
    assert functions("mul_f32", a, b).view(np.uint32).tolist()[1:] == [NAN_F32] * 3
    for mode in MODES:
        assert functions("mul_f32_mode", a, b, mode).view(np.uint32).tolist()[1:] == [NAN_F32] * 3


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_minimum_and_maximum(functions: Functions, kind: str) -> None:
    dtype = np.float32 if kind == "f32" else np.float64
    a = np.array([0.0, -0.0, NAN, 1.0, 2.0, -INF], dtype)
    b = np.array([-0.0, 0.0, 3.0, NAN, 1.0, 5.0], dtype)
    least, most = functions(f"min_{kind}", a, b), functions(f"max_{kind}", a, b)
    assert np.signbit(least).tolist()[:2] == [True, True]
    assert np.signbit(most).tolist()[:2] == [False, False]
    assert least.tolist()[2:] == [3.0, 1.0, 1.0, -INF]
    assert most.tolist()[2:] == [3.0, 1.0, 2.0, 5.0]
    assert np.isnan(functions(f"min_nan_{kind}", a, b)).tolist() == [False, False, True, True, False, False]
    assert np.isnan(functions(f"max_nan_{kind}", a, b)).tolist() == [False, False, True, True, False, False]


def test_saturation_and_flushing(functions: Functions) -> None:
    values = np.array([-1.0, -0.0, 0.25, 1.5, NAN, INF, -INF, 1e-40, -1e-40], np.float32)
    assert functions("saturate_f32", values).tolist()[:7] == [0.0, 0.0, 0.25, 1.0, 0.0, 1.0, 0.0]
    flushed = functions("flush_f32", values)
    assert flushed.view(np.uint32).tolist()[7:] == [0, 0x80000000]
    assert flushed.tolist()[2] == 0.25
    halves = np.array([0xBC00, 0x3800, 0x4000, 0x7FFF, 0x7C00, 0x8000], np.uint16)
    assert functions("saturate_f16", halves).tolist() == [0, 0x3800, 0x3C00, 0, 0x3C00, 0]


# -- cvt by its modifiers --

_INTEGERS = {
    "u8": (0, 2**8 - 1), "s8": (-(2**7), 2**7 - 1), "u16": (0, 2**16 - 1), "s16": (-(2**15), 2**15 - 1),
    "u32": (0, 2**32 - 1), "s32": (-(2**31), 2**31 - 1), "u64": (0, 2**64 - 1), "s64": (-(2**63), 2**63 - 1),
}  # fmt: skip


def words_of(values: np.ndarray) -> np.ndarray:
    return values.view({2: np.uint16, 4: np.uint32, 8: np.uint64}[values.dtype.itemsize]).astype(np.uint64)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("to", list(_INTEGERS))
def test_floats_to_integers_clamp(mode: int, to: str) -> None:
    functions = Functions(False)
    low, high = _INTEGERS[to]
    mask = (1 << int(to[1:])) - 1
    f32 = np.concatenate([finite_f32(300), np.linspace(-300, 300, 241).astype(np.float32) / 2])
    f32 = np.concatenate([f32, np.array([low, high, 2.0**31, 2.0**63, 2.0**64], np.float32)])
    f16 = ALL_HALVES[::37].view(np.float16)
    for source, values in (("f32", f32), ("f64", f32.astype(np.float64) * (1 + 2.0**-40)), ("f16", f16)):
        values = values[np.isfinite(values)]
        actual = functions.convert(f"{NAMES[mode]}i.{to}.{source}", words_of(values))
        expected = [min(max(rounded_integer(exact(v), mode), low), high) & mask for v in values]
        np.testing.assert_array_equal(actual, np.array(expected, np.uint64), err_msg=source)


def test_what_a_nan_becomes_as_an_integer() -> None:
    functions = Functions(False)
    nan32, nan64 = np.array([0x7FC00000], np.uint64), np.array([0x7FF8000000000000], np.uint64)
    for to in _INTEGERS:
        bits = int(to[1:])
        assert functions.convert(f"rzi.{to}.f32", nan32).tolist() == [1 << 63 if bits == 64 else 0]
        assert functions.convert(f"rzi.{to}.f64", nan64).tolist() == [1 << (bits - 1)]
        infinities = np.array([0x7F800000, 0xFF800000], np.uint64)
        low, high = _INTEGERS[to]
        assert functions.convert(f"rni.{to}.f32", infinities).tolist() == [high, low & (1 << bits) - 1]


def test_quick_truncation_agrees(functions: Functions) -> None:
    values = np.concatenate(
        [finite_f32(3000), np.array([NAN, INF, -INF, 2.0**31, -(2.0**31), 2147483520.0], np.float32)]
    )
    expected = functions.convert("rzi.s32.f32", words_of(values)).astype(np.uint32).view(np.int32)
    np.testing.assert_array_equal(functions("f32_to_s32_rz", values), expected)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("to", "form"), [("f16", F16), ("bf16", BF16), ("f32", F32), ("f64", F64)])
def test_integers_to_floats(mode: int, to: str, form: Format) -> None:
    functions = Functions(False)
    for source, (low, high) in _INTEGERS.items():
        bits = int(source[1:])
        raw = RNG.integers(0, 2**64, 150, dtype=np.uint64) >> RNG.integers(0, 64, 150).astype(np.uint64)
        values = [((int(v) - low) % (high - low + 1)) + low for v in raw] + [
            low,
            high,
            0,
            min(high, 2049),
            min(high, 65519),
        ]
        words = np.array([v & (1 << bits) - 1 for v in values], np.uint64)
        actual = functions.convert(f"{NAMES[mode]}.{to}.{source}", words)
        expected = [code_of(Fraction(v), form, mode) for v in values]
        np.testing.assert_array_equal(actual, np.array(expected, np.uint64), err_msg=source)


def test_integers_to_integers() -> None:
    functions = Functions(False)
    raw = np.concatenate(
        [RNG.integers(0, 2**64, 200, dtype=np.uint64), np.array([0, 127, 128, 255, 2**31, 2**63], np.uint64)]
    )
    for source, (low, high) in _INTEGERS.items():
        bits = int(source[1:])
        values = [((int(v) - low) % (high - low + 1)) + low for v in raw]
        words = np.array([v & (1 << bits) - 1 for v in values], np.uint64)
        for to, (to_low, to_high) in _INTEGERS.items():
            mask = (1 << int(to[1:])) - 1
            plain = functions.convert(f"{to}.{source}", words)
            np.testing.assert_array_equal(plain, np.array([v & mask for v in values], np.uint64))
            clamped = functions.convert(f"sat.{to}.{source}", words)
            expected = np.array([min(max(v, to_low), to_high) & mask for v in values], np.uint64)
            np.testing.assert_array_equal(clamped, expected, err_msg=f"{to} {source}")


@pytest.mark.parametrize("mode", MODES)
def test_rounding_to_whole_numbers(functions: Functions, mode: int) -> None:
    values = np.concatenate([finite_f32(500), np.array([0.5, -0.5, 1.5, 2.5, -2.5, 0.49999997], np.float32)])
    by_name = functions.convert(f"{NAMES[mode]}i.f32.f32", words_of(values))
    expected = [
        code_of(Fraction(rounded_integer(exact(v), mode)), F32, RN, negative_zero=bool(np.signbit(v))) for v in values
    ]
    np.testing.assert_array_equal(by_name, np.array(expected, np.uint64))
    np.testing.assert_array_equal(functions("rint_f32", values, mode).view(np.uint32), by_name.astype(np.uint32))
    doubles = values.astype(np.float64)
    assert functions("rint_f64", doubles, mode).tolist() == [float(rounded_integer(exact(v), mode)) for v in doubles]


@pytest.mark.parametrize("mode", ["rn", "rz"])
def test_packed_conversions_put_the_first_operand_above(mode: str) -> None:
    functions = Functions(False)
    a = finite_f32(400)
    b = RNG.permutation(a)
    number = NAMES.index(mode)
    for kind in ("f16", "bf16"):
        upper = functions(f"f32_to_{kind}_mode", a, number, 0).astype(np.uint64)
        lower = functions(f"f32_to_{kind}_mode", b, number, 0).astype(np.uint64)
        actual = functions.convert(f"{mode}.{kind}x2.f32", words_of(a), words_of(b))
        np.testing.assert_array_equal(actual, upper << np.uint64(16) | lower)
        relu = functions.convert(f"{mode}.relu.{kind}x2.f32", words_of(a), words_of(b))
        zero = np.uint64(0)
        high = np.where(upper >> np.uint64(15), zero, upper)
        low = np.where(lower >> np.uint64(15), zero, lower)
        np.testing.assert_array_equal(relu, high << np.uint64(16) | low)


@pytest.mark.parametrize("kind", ["e4m3", "e5m2"])
def test_fp8_pairs_there_and_back(kind: str) -> None:
    functions = Functions(False)
    pairs = ALL_HALVES.astype(np.uint64)
    halves = functions.convert(f"rn.f16x2.{kind}x2", pairs)
    back = functions.convert(f"rn.satfinite.{kind}x2.f16x2", halves)
    # NaN codes come back as 0x7f, infinities of e5m2 as the largest finite magnitude; everything else unchanged.
    form = E4M3 if kind == "e4m3" else E5M2

    def through(byte: int) -> int:
        magnitude = byte & 0x7F
        if magnitude <= form.largest:
            return byte
        return (form.largest | byte & 0x80) if kind == "e5m2" and magnitude == 0x7C else 0x7F

    expected = [through(v >> 8) << 8 | through(v & 0xFF) for v in range(65536)]
    np.testing.assert_array_equal(back, np.array(expected, np.uint64))
    values = functions("f32_to_e4m3" if kind == "e4m3" else "f32_to_e5m2", finite_f32(300)[:300])
    assert values.dtype == np.uint8


@pytest.mark.parametrize(
    "modifiers",
    ["f32", "rn.f32", "s32.f32", "rzi.f16.f32", "rn.f64.f32", "f16.f32", "f32.s32", "rn.e4m3x2.f32", "rna.f16.f32",
     "rn.s32.s32", "rn.rz.f16.f32", "rs.f16.f32", "", "rn..f16.f32", "rn.f16.f32.", "rn.f16.f32.f64", "rn.bf16x2.f16",
     "relu.s32.u32"],
)  # fmt: skip
def test_unknown_conversions_are_refused(modifiers: str) -> None:
    assert Functions(False).native.tw_conversion_find(modifiers.encode()) == -1


def test_nan_payloads_pass_through_f64() -> None:
    functions = Functions(False)
    f32 = np.array([0x7F800001, 0xFFC12345], np.uint64)
    assert functions.convert("f64.f32", f32).tolist() == [0x7FF8000020000000, 0xFFF82468A0000000]
    assert functions.convert("ftz.f64.f32", f32).tolist() == [0x7FFFFFFFE0000000] * 2
    f64 = np.array([0xFFF8000000000000, 0x7FF0000000000001], np.uint64)
    assert functions.convert("rn.f32.f64", f64).tolist() == [0xFFC00000, 0x7FC00000]
    assert functions.convert("rn.f16.f64", f64).tolist() == [0xFE00, 0x7E00]
    assert functions.convert("f32.bf16", np.array([0x7F81], np.uint64)).tolist() == [0x7F810000]
    assert functions.convert("f32.f16", np.array([0x7C01], np.uint64)).tolist() == [NAN_F32]


def test_clamping_conversions() -> None:
    functions = Functions(False)
    values = np.array([-0.5, 0.5, 2.0, NAN, 1e-40, -INF], np.float32)
    assert functions.convert("sat.f32.f32", words_of(values)).tolist() == [
        0, 0x3F000000, 0x3F800000, 0, words_of(values)[4], 0,
    ]  # fmt: skip
    assert functions.convert("ftz.f32.f32", words_of(values)).tolist()[4] == 0
    assert functions.convert("rn.sat.f16.f32", words_of(values)).tolist() == [0, 0x3800, 0x3C00, 0, 0, 0]
    assert functions.convert("rn.ftz.f32.f64", words_of(np.array([1e-40, -1e-40]))).tolist() == [0, 0x80000000]


# -- approximations --


def ulp_error(actual: np.ndarray, truth: np.ndarray) -> float:
    unit = np.spacing(np.abs(truth).astype(np.float32)).astype(np.float64)
    return float(np.max(np.abs(actual.astype(np.float64) - truth) / unit))


def test_ex2(functions: Functions) -> None:
    x = np.concatenate([RNG.uniform(-149, 128, 20000), RNG.uniform(-1, 1, 5000)]).astype(np.float32)
    assert ulp_error(functions("ex2_f32", x), np.exp2(x.astype(np.float64))) < 2
    special = np.array([-INF, INF, NAN, 0.0, -0.0, -200.0, 128.0, -149.0, 1.0, 10.0], np.float32)
    result = functions("ex2_f32", special)
    assert result.tolist()[:2] == [0.0, INF]
    assert result.view(np.uint32)[2] == NAN_F32
    assert result.tolist()[3:] == [1.0, 1.0, 0.0, INF, 2.0**-149, 2.0, 1024.0]
    flushed = functions("ex2_ftz_f32", np.array([-130.0, -126.0, 1e-40], np.float32))
    assert flushed.tolist() == [0.0, 2.0**-126, 1.0]


def test_lg2(functions: Functions) -> None:
    x = np.abs(finite_f32(20000))
    x = np.concatenate([x[x > 0], RNG.uniform(0.4, 2.5, 5000).astype(np.float32)])
    truth = np.log2(x.astype(np.float64))
    error = np.abs(functions("lg2_f32", x) - truth)
    assert np.all(error <= np.maximum(2.0**-22, np.abs(truth) * 2.0**-22))
    near = (np.abs(x - 1) < 2.0**-10) & (x != 1)
    assert np.max(error[near] / np.abs(truth[near])) > 2.0**-13  # right to 22 bits behind the point, as the hardware
    special = functions("lg2_f32", np.array([0.0, -0.0, INF, 1.0, 8.0, -1.0, NAN, -INF], np.float32))
    assert special.tolist()[:5] == [-INF, -INF, INF, 0.0, 3.0]
    assert special.view(np.uint32).tolist()[5:] == [NAN_F32] * 3
    assert functions("lg2_ftz_f32", np.array([1e-40], np.float32)).tolist() == [-INF]


def test_sine_and_cosine(functions: Functions) -> None:
    x = RNG.uniform(-math.pi, math.pi, 20000).astype(np.float32)
    assert np.max(np.abs(functions("sin_f32", x) - np.sin(x.astype(np.float64)))) < 2.0**-20.5
    # The angles an H200 was given, and what it said.
    small = np.array([8.940696716308594e-08, 8.699186651028867e-07, -1.6527764046259108e-06, 6.1e-05], np.float32)
    assert np.allclose(
        functions("sin_f32", small), [0.0, 7.490453e-07, -1.4980906e-06, 6.085993e-05], rtol=1e-4, atol=0
    )
    assert np.max(np.abs(functions("cos_f32", x) - np.cos(x.astype(np.float64)))) < 2.0**-20.5
    far = RNG.uniform(-300, 300, 20000).astype(np.float32)
    assert np.max(np.abs(functions("sin_f32", far) - np.sin(far.astype(np.float64)))) < 2.0**-14.7
    special = np.array([0.0, -0.0, INF, NAN, 1e38], np.float32)
    sine, cosine = functions("sin_f32", special), functions("cos_f32", special)
    assert sine.view(np.uint32).tolist()[:4] == [0, 0x80000000, NAN_F32, NAN_F32]
    assert cosine.tolist()[:2] == [1.0, 1.0]
    assert abs(sine[4]) <= 1


def test_tanh(functions: Functions) -> None:
    x = np.concatenate([RNG.normal(0, 2, 20000), RNG.normal(0, 1e-3, 1000)]).astype(np.float32)
    truth = np.tanh(x.astype(np.float64))
    assert 2.0**-17.5 < np.max(np.abs(functions("tanh_f32", x) / truth - 1)) < 2.0**-16.5
    special = functions("tanh_f32", np.array([INF, -INF, 0.0, -0.0, NAN, 1e-40], np.float32))
    assert special.tolist()[:3] == [1.0, -1.0, 0.0]
    assert np.signbit(special[3])
    assert special.view(np.uint32)[4] == NAN_F32
    assert special[5] == np.float32(1e-40)


def test_reciprocals_and_roots(functions: Functions) -> None:
    x = np.abs(finite_f32(5000))
    x = x[x > 2.0**-126]
    wide = x.astype(np.float64)
    assert ulp_error(functions("rsqrt_f32", x), 1 / np.sqrt(wide)) <= 0.51
    assert ulp_error(functions("rcp_approx_f32", x), 1 / wide) <= 0.51
    assert ulp_error(functions("sqrt_approx_f32", x), np.sqrt(wide)) <= 0.51
    special = np.array([0.0, -0.0, INF, -1.0, NAN, 1e-40], np.float32)
    assert functions("rsqrt_f32", special).tolist()[:3] == [INF, -INF, 0.0]
    assert functions("rsqrt_ftz_f32", special).tolist()[5] == INF
    assert functions("rcp_approx_f32", special).tolist()[:4] == [INF, -INF, 0.0, -1.0]
    assert functions("rcp_approx_ftz_f32", np.array([1e-40, -1e-40, 3e38], np.float32)).tolist() == [INF, -INF, 0.0]
    root = functions("sqrt_approx_f32", special)
    assert root.view(np.uint32).tolist()[:4] == [0, 0x80000000, 0x7F800000, NAN_F32]


def test_approximate_division(functions: Functions) -> None:
    a = RNG.normal(size=4000).astype(np.float32)
    b = RNG.permutation(a)
    truth = a.astype(np.float64) / b.astype(np.float64)
    assert ulp_error(functions("div_approx_f32", a, b), truth) <= 2
    assert ulp_error(functions("div_full_f32", a, b), truth) <= 2
    large = np.array([2.0**127, 2.0**127, 2.0**126, 0.0], np.float32)
    top = np.array([2.0**100, INF, 2.0**126, 0.0], np.float32)
    result = functions("div_approx_ftz_f32", top, large)
    assert result.tolist()[0] == 0.0
    assert np.isnan(result[1])
    assert result[2] == 1.0
    assert np.isnan(result[3])
    assert functions("div_full_f32", top, large).tolist()[0] == 2.0**-27


def test_f64_approximations_use_upper_halves(functions: Functions) -> None:
    x = np.abs(RNG.normal(size=2000)) + 1e-3
    for name, truth in (("rcp_approx_ftz_f64", 1 / x), ("rsqrt_ftz_f64", 1 / np.sqrt(x))):
        result = functions(name, x)
        assert np.all(result.view(np.uint64) & np.uint64(0xFFFFFFFF) == 0)
        assert np.max(np.abs(result / truth - 1)) < 2.0**-18
    assert functions("rcp_approx_ftz_f64", np.array([0.0, -0.0, INF, 1e-310])).tolist() == [INF, -INF, 0.0, INF]


@pytest.mark.parametrize("name", ["ex2_f16", "tanh_f16", "ex2_ftz_bf16", "tanh_bf16"])
def test_half_approximations_on_every_value(functions: Functions, name: str) -> None:
    is_f16 = name.endswith("_f16")
    form = F16 if is_f16 else BF16
    widen = "f16_to_f32" if is_f16 else "cvt_f32_bf16"
    with np.errstate(invalid="ignore"):
        wide = functions(widen, ALL_HALVES).astype(np.float64)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        truth = np.exp2(wide) if name.startswith("ex2") else np.tanh(wide)
    result = functions(widen, functions(name, ALL_HALVES)).astype(np.float64)
    nan = np.isnan(wide)
    assert np.isnan(result[nan]).all()
    limit = float(value_of(form.largest, form))
    usable = ~nan & (np.abs(truth) < limit) & (np.abs(truth) > 2.0 ** (1 - form.bias))
    worst = np.max(np.abs(result[usable] / truth[usable] - 1))
    assert worst < 2.0 ** -(form.mantissa_bits + (0.9 if name.startswith("ex2") else 0.0))
    if name.startswith("tanh"):
        assert worst > 2.0 ** -(form.mantissa_bits + 0.9)  # as an H200's, which is no correct rounding
    assert np.all(np.abs(result[~nan & (np.abs(truth) > 2 * limit)]) == INF)
