"""Arguments take the type the kernel declares: every rule against a parameter table, and the table of a real build."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest

from tilewright.kernel_file import (
    Code,
    Evaluation,
    KernelFileError,
    Problem,
    bind,
    evaluate,
    pack_late,
    parse,
    settle,
)
from tilewright.records import (
    PROFILES,
    BoundPlan,
    Build,
    CompiledKernel,
    DType,
    KernelParameter,
    LateField,
    MapField,
    PackedLaunch,
    ParameterKind,
    PointeeKind,
    PointerField,
    Resources,
    TensorSpec,
    from_json,
    to_json,
)

H200 = PROFILES["H200"]
KIND = ParameterKind


def pointer(size: int, const: bool = True, pointee: PointeeKind = PointeeKind.OTHER, align: int = 0) -> KernelParameter:
    kind = KIND.CONST_POINTER if const else KIND.POINTER
    return KernelParameter(kind, 8, 8, size, align or min(size, 16), pointee)


def number(kind: ParameterKind, size: int) -> KernelParameter:
    return KernelParameter(kind, size, size)


INT, LONG = number(KIND.SIGNED, 4), number(KIND.SIGNED, 8)
FLOAT, DOUBLE = number(KIND.FLOAT, 4), number(KIND.FLOAT, 8)
BOOL = number(KIND.BOOL, 1)
MAP = KernelParameter(KIND.TENSOR_MAP, 128, 64)
STRUCT = KernelParameter(KIND.OTHER, 12, 4)

OP = "f(x, r!, m?, n: int, p: float, b: bool)"


def evaluated(arguments: str, x: str = "4x64:f32", lines: str = "", **given: Any) -> Evaluation:
    text = f"//! op {OP} -> y\n//! out y: f32[4]\n{lines}//! launch k<<<1, 32>>>({arguments}, r, y)\n"
    file = parse(text + "__global__ void k() {}\n", "k.cu")
    spec = TensorSpec.parse(x)
    values: dict[str, Any] = {"x": spec, "r": spec, "m": None, "n": 7, "p": 0.5, "b": True, **given}
    return evaluate(file, values, H200)


def built(*parameters: KernelParameter) -> Build:
    tail = (pointer(1, const=False), pointer(4, const=False))
    kernel = CompiledKernel("k", "_Z1k", (*parameters, *tail), Resources(32, 0, 0, 0, 0, 0, 0), None, None)
    return Build("key", "sm_90a", "nvrtc", b"", "", (kernel,), (), 0.0)


def bound(arguments: str, *parameters: KernelParameter, **given: Any) -> PackedLaunch:
    (step,) = bind(evaluated(arguments, **given), built(*parameters), H200).steps
    assert isinstance(step, PackedLaunch)
    return step


def refused(arguments: str, *parameters: KernelParameter, **given: Any) -> Problem:
    with pytest.raises(KernelFileError) as caught:
        bind(evaluated(arguments, **given), built(*parameters), H200)
    (problem,) = caught.value.problems
    assert problem.code is Code.ARGUMENT
    assert problem.remedy
    return problem


def first_field(packed: PackedLaunch, code: str) -> Any:
    return struct.unpack_from(code, packed.block_template, 0)[0]


# -- layout of the block --


def test_offsets_follow_alignment() -> None:
    packed = bound("x, 1, 2 == 2, 3", pointer(4), INT, BOOL, LONG)
    assert packed.parameters == ((0, 8), (8, 4), (12, 1), (16, 8), (24, 8), (32, 8))
    assert packed.pointers == (PointerField(0, "x"), PointerField(24, "r"), PointerField(32, "y"))
    assert packed.block_template == struct.pack("<qi?xxxqqq", 0, 1, True, 3, 0, 0)
    assert (packed.symbol, packed.kernel, packed.line) == ("_Z1k", "k", 3)


def test_maps_are_placed_and_absent_tensors_are_null() -> None:
    packed = bound("m, t, 5", pointer(4), MAP, INT, lines="//! map t = tiled(x, box=[4, 16])\n")
    assert packed.parameters[:3] == ((0, 8), (64, 128), (192, 4))
    assert packed.maps == (MapField(64, "t"),)
    assert [field.tensor for field in packed.pointers] == ["r", "y"]


def test_none_is_a_null_pointer_whatever_is_declared() -> None:
    packed = bound("none, none, x", pointer(4), pointer(4, const=False), pointer(4))
    assert [field.tensor for field in packed.pointers] == ["x", "r", "y"]
    assert "no pointer" in refused("none, x", INT, pointer(4)).found


def test_an_input_fits_a_pointer_that_the_code_only_reads_through() -> None:
    plain = pointer(4, const=False)
    assert bound("x", replace(plain, only_read=True)).pointers[0].tensor == "x"
    assert "is an input" in refused("x", plain).found


def test_the_plan_survives_json() -> None:
    plan = bind(evaluated("x, p, n"), built(pointer(4), FLOAT, INT), H200)
    assert from_json(BoundPlan, to_json(plan)) == plan


# -- numbers --


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_integers_must_fit(size: int) -> None:
    low, high = -(2 ** (8 * size - 1)), 2 ** (8 * size - 1) - 1
    signed, unsigned = number(KIND.SIGNED, size), number(KIND.UNSIGNED, size)
    codes = {1: "b", 2: "h", 4: "i", 8: "q"}
    literal = f"{low + 1} - 1"
    assert first_field(bound(literal, signed), f"<{codes[size]}") == low
    assert first_field(bound(str(high), signed), f"<{codes[size]}") == high
    assert first_field(bound(str(high), unsigned), f"<{codes[size].upper()}") == high
    assert "-1 is outside 0 to" in refused("-1", unsigned).found
    if size < 8:
        assert first_field(bound(str(2 * high + 1), unsigned), f"<{codes[size].upper()}") == 2 * high + 1
        problem = refused(str(high + 1), signed)
        assert (
            f"{high + 1} is outside {low} to {high}, the kernel declares a {8 * size}-bit signed integer"
            in problem.found
        )
        refused(f"{low} - 1", signed)
        refused(str(2 * high + 2), unsigned)


def test_ints_may_feed_floats_unless_divided() -> None:
    assert first_field(bound("3", FLOAT), "<f") == 3.0
    assert first_field(bound("3", DOUBLE), "<d") == 3.0
    assert first_field(bound("ceil_div(7, 2)", FLOAT), "<f") == 4.0
    assert first_field(bound("1.0 / 4", FLOAT), "<f") == 0.25
    for divided in ("7 / 2", "7 // 2", "x.numel / 4 * 2"):
        problem = refused(divided, FLOAT)
        assert "the int comes from an integer division" in problem.found
        assert "1.0 / n" in problem.remedy
    refused("h", FLOAT, lines="//! let h = x.numel / 2\n")
    assert first_field(bound("7 / 2", INT), "<i") == 3


def test_floats_only_feed_floats() -> None:
    assert first_field(bound("0.5", FLOAT), "<f") == 0.5
    for parameter in (INT, LONG, BOOL, number(KIND.UNSIGNED, 4)):
        assert "0.5 is a float, the kernel declares" in refused("0.5", parameter).found
    refused("0.5", KernelParameter(KIND.FLOAT, 2, 2))  # half is no type of a number
    assert "1e+300 is beyond the range of a float" in refused("1e300", FLOAT).found
    assert first_field(bound("1e300", DOUBLE), "<d") == 1e300


def test_bools() -> None:
    assert first_field(bound("x.ndim == 2", BOOL), "<?") is True
    assert first_field(bound("x.ndim == 2", INT), "<i") == 1
    assert first_field(bound("x.ndim == 3", number(KIND.UNSIGNED, 1)), "<B") == 0
    assert "true is a bool, the kernel declares a 32-bit float" in refused("x.ndim == 2", FLOAT).found
    assert "1 is an int, the kernel declares a bool" in refused("1", BOOL).found


@pytest.mark.parametrize("argument", ["1", "0.5", "x.ndim == 2", "n", "p", "b"])
def test_numbers_never_become_pointers_maps_or_structs(argument: str) -> None:
    for parameter, remedy in ((pointer(4), "numbers never become pointers"), (MAP, "`map`"), (STRUCT, "as numbers")):
        assert remedy in refused(argument, parameter).remedy


# -- tensors --


def test_inputs_need_const() -> None:
    problem = refused("x", pointer(4, const=False))
    assert problem.found == "argument 1 of k: x is an input, the kernel declares a pointer to elements of 4 bytes"
    assert problem.remedy == "declare it `const float*`, or pass an output: the order may differ"
    assert refused("y", INT).remedy.startswith("declare it `float*`, or pass")
    assert refused("x", INT).remedy.startswith("declare it `const float*`, or pass")
    bound("r", pointer(4, const=False))
    bound("r, y", pointer(4), pointer(4, const=False))


@pytest.mark.parametrize(
    ("x", "size", "fits"),
    [
        ("4x64:f32", 4, True),
        ("4x64:f32", 16, True),
        ("4x64:f32", 1, True),
        ("4x64:f32", 8, True),
        ("4x64:f32", 2, False),
        ("4x64:f32", 6, False),
        ("4x64:f64", 4, False),
        ("4x64:f64", 16, True),
        ("4x64:u8", 2, True),
        ("4x64:f16", 12, True),
    ],
)
def test_pointee_sizes(x: str, size: int, fits: bool) -> None:
    if fits:
        bound("x", pointer(size, align=1), x=x)
    else:
        problem = refused("x", pointer(size, align=1), x=x)
        assert f"the kernel declares a const pointer to elements of {size} bytes" in problem.found


def test_16_bit_floats_must_match() -> None:
    f16, bf16 = PointeeKind.F16, PointeeKind.BF16
    bound("x", pointer(2, pointee=f16), x="4x64:f16")
    bound("x", pointer(4, pointee=bf16), x="4x64:bf16")
    bound("x", pointer(16), x="4x64:bf16")
    bound("x", pointer(2, pointee=f16), x="4x64:i16")
    for x, pointee in (("4x64:f16", bf16), ("4x64:bf16", f16)):
        problem = refused("x", pointer(2, pointee=pointee), x=x)
        assert f"x is a tensor of {x[5:]}, the kernel declares a const pointer to {pointee.value}" in problem.found


def test_unaligned_forbids_wider_pointees() -> None:
    accept = "//! accept x: unaligned\n"
    bound("x", pointer(4), lines=accept)
    bound("x", pointer(1), lines=accept)
    assert "x is accepted unaligned" in refused("x", pointer(16), lines=accept).found
    assert "x is accepted unaligned" in refused("x", pointer(8, align=4), lines=accept).found


def test_pointees_may_not_ask_for_more_alignment_than_there_is() -> None:
    assert "aligned to 32 bytes; x is aligned to 16" in refused("x", pointer(32, align=32)).found
    bound("y", pointer(32, align=32))  # outputs are aligned to 256


def test_tensors_become_pointers_only() -> None:
    for parameter in (LONG, number(KIND.UNSIGNED, 8), MAP, STRUCT, DOUBLE):
        assert "x is a tensor of f32, the kernel declares" in refused("x", parameter).found
    assert "m is an optional tensor" in refused("m", LONG).found
    assert "m is an input" in refused("m", pointer(4, const=False)).found


def test_maps_become_maps_only() -> None:
    lines = "//! map t = tiled(x, box=[4, 16])\n"
    for parameter in (pointer(4), LONG, STRUCT):
        problem = refused("t", parameter, lines=lines)
        assert "t is a map, the kernel declares" in problem.found
        assert "__grid_constant__" in problem.remedy


# -- counts and places --


def test_counts() -> None:
    problem = refused("x, x.shape", pointer(4))
    assert problem.found == "k takes 3 arguments, 5 are passed (lists count each item)"
    assert (problem.line, problem.column) == (3, 12)
    refused("x", pointer(4), INT)


def test_a_misfit_stands_at_its_argument() -> None:
    problem = refused("x, x.shape, 2.5", pointer(4), INT, INT, INT)
    assert problem.found.startswith("argument 4 of k: 2.5 is a float")
    assert (problem.line, problem.column) == (3, len("//! launch k<<<1, 32>>>(x, x.shape, ") + 1)
    problem = refused("x, [1, x.numel / 2]", pointer(4), INT, FLOAT)
    assert problem.found.startswith("argument 3 of k: 128 is an int")


def test_every_misfit_is_reported() -> None:
    with pytest.raises(KernelFileError) as caught:
        bind(evaluated("x, 2.5, 300"), built(pointer(2), INT, number(KIND.SIGNED, 1)), H200)
    assert [problem.found.split(":")[0] for problem in caught.value.problems] == [
        "argument 1 of k",
        "argument 2 of k",
        "argument 3 of k",
    ]


def test_the_block_is_bounded() -> None:
    evaluation = evaluated("t, " * 31 + "1", lines="//! map t = tiled(x, box=[4, 16])\n")
    bind(evaluation, built(*[MAP] * 31, INT), H200)
    evaluation = evaluated("t, " * 32 + "1", lines="//! map t = tiled(x, box=[4, 16])\n")
    with pytest.raises(KernelFileError, match="take 4120 bytes, the limit is 4096"):
        bind(evaluation, built(*[MAP] * 32, INT), H200)


# -- late numbers --


def test_late_numbers_are_packed_at_the_call() -> None:
    packed = bound("n, p, b, n * 2", INT, FLOAT, BOOL, number(KIND.UNSIGNED, 1))
    assert [(field.offset, field.format, field.index) for field in packed.late] == [
        (0, "<i", 0),
        (4, "<f", 1),
        (8, "<?", 2),
        (9, "<B", 3),
    ]
    assert packed.block_template[:10] == bytes(10)
    block = bytearray(packed.block_template)
    pack_late(packed, block, (-5, 0.25, True, 255))
    assert struct.unpack_from("<if?B", block) == (-5, 0.25, True, 255)


@pytest.mark.parametrize(
    ("parameter", "value", "found"),
    [
        (INT, 2**31, "2147483648 is outside -2147483648 to 2147483647"),
        (number(KIND.UNSIGNED, 8), -1, "-1 is outside 0 to 18446744073709551615"),
        (number(KIND.SIGNED, 1), 128, "128 is outside -128 to 127"),
    ],
)
def test_late_integers_must_fit(parameter: KernelParameter, value: int, found: str) -> None:
    packed = bound("x, n", pointer(4), parameter)
    with pytest.raises(KernelFileError) as caught:
        pack_late(packed, bytearray(packed.block_template), (value,))
    (problem,) = caught.value.problems
    assert problem.found == f"argument 2 of k: {found}"
    assert (problem.code, problem.line, problem.column) == (Code.ARGUMENT, 3, 28)


def test_late_floats_must_fit() -> None:
    packed = bound("p", FLOAT)
    with pytest.raises(KernelFileError, match="1e\\+300 is beyond the range of a float"):
        pack_late(packed, bytearray(packed.block_template), (1e300,))
    block = bytearray(packed.block_template)
    pack_late(packed, block, (float("inf"),))
    assert struct.unpack_from("<f", block) == (float("inf"),)


def test_late_rules_are_those_of_numbers() -> None:
    assert "an int, the kernel declares a 32-bit float; the int comes from" in refused("n / 2", FLOAT).found
    assert "a float, the kernel declares a 32-bit signed integer" in refused("p", INT).found
    assert bound("n", FLOAT).late == (LateField(0, "<f", 0, (3, 25)),)


def test_a_settled_plan_stands_on_its_own() -> None:
    evaluation = evaluated("x, n, p")
    plan = bind(evaluation, built(pointer(4), INT, FLOAT), H200)
    settled = settle(plan, evaluation.late_values({"n": 9, "p": 0.5, "b": True}))
    (step,) = settled.steps
    assert isinstance(step, PackedLaunch)
    assert step.late == ()
    assert struct.unpack_from("<if", step.block_template, 8) == (9, 0.5)
    assert struct.unpack_from("<if", plan.steps[0].block_template, 8) == (0, 0.0)  # type: ignore[union-attr]


# -- a real build --

REAL = """\
//! op      f(x, h, m?, n: int, p: float, b: bool) -> y
//! out     y: x.dtype[x.shape]
//! tune    THREADS = 128
//! map     t = tiled(x, box=[4, 16])
//! scratch s: i32[4] zeroed
//! launch  k<THREADS, h.dtype><<<x.shape[0], THREADS>>>(x, h, m, y, s, t, x.numel, n, p, b, x.shape, 1.0 / x.numel)
template <int T, class H>
__global__ void __launch_bounds__(T) k(const float4* x, const H* h, const float* m, float* y, int* s,
    const __grid_constant__ CUtensorMap t, long long numel, unsigned n, float p, bool b, short rows, unsigned char cols,
    double inverse) {
  if (threadIdx.x == 0) { y[0] = x[0].x + p + (float)(numel + n + rows + cols) + (float)inverse + (b ? 1.f : 0.f);
    s[0] = (int)sizeof(t) + (m ? 1 : 0); }
}
"""


def test_against_a_real_build() -> None:
    from tilewright.toolchain import build

    file = parse(REAL, "real.cu")
    f32 = TensorSpec.parse("4x64:f32")
    arguments: dict[str, Any] = {"x": f32, "h": TensorSpec.parse("8:bf16"), "m": None, "n": 3, "p": 0.5, "b": True}
    evaluation = evaluate(file, arguments, H200)
    result = build(evaluation.build_request())
    assert isinstance(result, Build), str(result)
    plan = bind(evaluation, result, H200)
    (step,) = plan.steps
    assert isinstance(step, PackedLaunch)
    assert step.kernel == "k<128, __nv_bfloat16>"
    assert [field.tensor for field in step.pointers] == ["x", "h", "y", "s"]
    numel = dict(zip(range(13), step.parameters, strict=True))[6][0]
    assert struct.unpack_from("<q", step.block_template, numel) == (256,)
    assert struct.unpack_from("<hB", step.block_template, step.parameters[10][0]) == (4, 64)
    assert step.parameters[12][1] == 8
    assert [field.format for field in step.late] == ["<I", "<f", "<?"]
    wide = evaluate(file, {**arguments, "x": TensorSpec.parse("4x256:f32")}, H200)
    with pytest.raises(
        KernelFileError, match=r"real.cu:6:\d+: argument: argument 12 of k<.*>: 256 is outside 0 to 255"
    ):
        bind(wide, result, H200)
    assert DType.BF16.cpp in step.kernel
