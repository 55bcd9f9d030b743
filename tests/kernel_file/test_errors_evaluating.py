"""Every error of the table that needs values: its code, the line and column it stands at, and what to write."""

from __future__ import annotations

from typing import Any

import pytest

from tilewright.kernel_file import Code, DoesNotApply, Evaluation, KernelFileError, Problem, bind, evaluate, parse
from tilewright.records import PROFILES, Build, TensorSpec
from tilewright.toolchain import build

H200, T4 = PROFILES["H200"], PROFILES["T4"]
HEAD = "//! op      f(x, m?, s: float?, n: int, p: float) -> y\n//! out     y: f32[4]\n"
CODE = """\
template <int T> __global__ void t(const float* x, float* y) {}
__global__ void __launch_bounds__(128) k(const float* x, float* y) { y[0] = x[0]; }
__global__ void three(const float* x, float* y, int n) {}
"""


def evaluated(lines: str, x: str = "4x6:f32", gpu: Any = H200, **given: Any) -> Evaluation:
    file = parse(HEAD + lines + "\n" + CODE, "k.cu")
    values: dict[str, Any] = {"x": TensorSpec.parse(x), "m": None, "s": None, "n": 3, "p": 0.5, **given}
    return evaluate(file, values, gpu)


def error(lines: str, **given: Any) -> Problem:
    with pytest.raises(KernelFileError) as caught:
        evaluated(lines, **given)
    assert str(caught.value).startswith("k.cu:")
    (problem,) = caught.value.problems
    return problem


# A line below the head, the code, the text the column points at, what is found, what to write.
STEP_ERRORS: list[tuple[Code, str, str, str, str]] = [
    (
        Code.VALUE,
        "//! launch k<<<1, 32>>>(x, y, 8 / (n - 3))",
        "/",
        "`8 / (n - 3)` divides by zero, with n = 3",
        "need",
    ),
    (Code.VALUE, "//! launch k<<<1, 32>>>(x, y, (n - 9) / 2)", "/ 2", "divides a negative integer", "non-negative"),
    (Code.VALUE, "//! launch k<<<1, 32>>>(x, y, 9223372036854775807 * n)", "* n", "overflows a 64-bit", "need"),
    (Code.VALUE, "//! launch k<<<1, 32>>>(x, y, 1e308 * 1e308)", "* 1e", "overflows a float", "need"),
    (Code.VALUE, "//! launch k<<<x.shape[2], 32>>>(x, y)", "[2]", "index 2 is outside the list: it has 2", "need"),
    (Code.VALUE, "//! launch k<<<m.numel, 32>>>(x, y)", "m.numel", "`m` was not given", "has(m)"),
    (Code.VALUE, "//! launch k<<<1, 32>>>(x, y, s)", "s)", "`s` was not given", "has(s)"),
    (Code.VALUE, "//! launch k<<<1 - n, 32>>>(x, y)", "1 - n", "`1 - n` is -2, for the grid", "0 or more"),
    (Code.VALUE, "//! launch k<<<1, 32, 1 - n>>>(x, y)", "1 - n", "is -2, for the shared memory", "0 or more"),
    (Code.VALUE, "//! scratch a: f32[n - 9]\n//! launch k<<<1, 32>>>(x, y, a)", "a:", "negative size in [-6]", "need"),
    (Code.VALUE, "//! scratch a: f64[4611686018427387904]\n//! launch k<<<1, 1>>>(x, y, a)", "a:", "overflows", "need"),
    (Code.VALUE, "//! const C = 8 / (n - 3)\n//! launch t<C><<<1, 32>>>(x, y)", "/ (", "divides by zero", "need"),
    (Code.LIMIT, "//! launch k<<<dim3(1, 70000), 32>>>(x, y)", "1, 7", "y is 70000, the limit is 65535", "`need`"),
    (Code.LIMIT, "//! launch k<<<2147483648, 32>>>(x, y)", "2147", "x is 2147483648, the limit is", "`need`"),
    (Code.LIMIT, "//! launch k<<<1, 1056>>>(x, y)", "1056", "x is 1056, it must be 1 to 1024", "`need`"),
    (Code.LIMIT, "//! launch k<<<1, n - 3>>>(x, y)", "n - 3", "x is 0, it must be 1 to 1024", "`need`"),
    (Code.LIMIT, "//! launch k<<<1, dim3(64, 32)>>>(x, y)", "64, 3", "has 2048 threads, the limit is 1024", "`need`"),
    (Code.LIMIT, "//! launch k<<<1, 32, 300000>>>(x, y)", "300000", "the limit on H200 is 232448", "device.smem_block"),
    (Code.LIMIT, "//! launch k<<<3, 32>>>(x, y) cluster(2)", "2)", "does not divide grid (3, 1, 1)", "round_up"),
    (Code.LIMIT, "//! launch k<<<32, 32>>>(x, y) cluster(32)", "32)", "the limit on H200 is 16", "`need`"),
    (Code.LIMIT, "//! scratch a: u8[n * 100000000000]\n//! launch k<<<1, 1>>>(x, y, a)", "a:", "(32 GiB)", "`need`"),
    (Code.LIMIT, "//! scratch a: i32[n * 9999] counter\n//! launch k<<<1, 1>>>(x, y, a)", "a:", "is 65536", "`need`"),
    (
        Code.MAP,
        "//! map t0 = tiled(x, shape=[6, 4], box=[4, 3])\n//! launch k<<<1, 1>>>(t0, y)",
        "[4, 3]",
        "12 bytes",
        "outermost",
    ),
    (
        Code.MAP,
        "//! map t0 = tiled(x, box=[4, 4])\n//! launch k<<<1, 1>>>(t0, y, x)",
        "t0 =",
        "24 bytes",
        "multiples of 16",
    ),
    (
        Code.MAP,
        "//! map t0 = tiled(x, box=[4, 4], shape=[9, 8])\n//! launch k<<<1, 1>>>(t0, y)",
        "[9",
        "leaves",
        "element",
    ),
    (
        Code.MAP,
        "//! map t0 = tiled(m, box=[4, 4])\n//! launch k<<<1, 1>>>(t0, y, x)",
        "t0 =",
        "m was not given",
        "has(m)",
    ),
]


@pytest.mark.parametrize(
    ("code", "lines", "at", "found", "remedy"), STEP_ERRORS, ids=[row[1][4:50] for row in STEP_ERRORS]
)
def test_error_in_a_step(code: Code, lines: str, at: str, found: str, remedy: str) -> None:
    problem = error(lines)
    line, text = next((i, text) for i, text in enumerate(lines.split("\n"), 3) if at in text)
    assert (problem.code, problem.line, problem.column) == (code, line, text.index(at, 5) + 1)
    assert found in problem.found
    assert remedy in problem.remedy


def test_maps_over_unaligned_tensors() -> None:
    problem = error("//! accept x: unaligned\n//! map t0 = tiled(x, box=[4, 4])\n//! launch k<<<1, 1>>>(t0, y, x)")
    assert (problem.code, problem.line, problem.column) == (Code.MAP, 4, 9)
    assert "a map needs 16-byte alignment" in problem.found


def test_strides_of_an_output_are_dense() -> None:
    head = "//! op f(x) -> y\n//! out y: f32[2, 3] stride [STRIDE]\n//! launch k<<<1, 1>>>(x, y)\n" + CODE
    for stride, found in (
        ("4, 1", "has gaps or overlaps"),
        ("1, 1", "has gaps or overlaps"),
        ("3", "stride [3] for sizes"),
    ):
        with pytest.raises(KernelFileError) as caught:
            evaluate(parse(head.replace("STRIDE", stride), "k.cu"), {"x": TensorSpec.parse("1:f32")}, H200)
        (problem,) = caught.value.problems
        assert (problem.code, problem.line, problem.column) == (Code.OUT, 2, 9)
        assert found in problem.found
    for stride in ("3, 1", "1, 2"):
        evaluate(parse(head.replace("STRIDE", stride), "k.cu"), {"x": TensorSpec.parse("1:f32")}, H200)


def test_an_error_in_a_skipped_step_is_none() -> None:
    lines = "//! launch k<<<1, 8 / (n - 3)>>>(x, y) when n != 3\n//! launch k<<<n - 3, m.numel>>>(x, y, m.shape[9])\n"
    lines += "//! map t0 = tiled(x, box=[4, 3])\n//! launch k<<<0, 32>>>(t0, y)"
    assert evaluated(lines).steps == ()
    assert evaluated(lines).maps == ()


# -- does not apply --

REFUSALS: list[tuple[str, str, str]] = [
    (
        "//! need x.dtype == f16\n//! launch k<<<1, 32>>>(x, y)",
        "x.dtype",
        "`x.dtype == f16` is false, with x.dtype = f32",
    ),
    ("//! need n == 3 and n > 4\n//! launch k<<<1, 32>>>(x, y)", "n > 4", "`n > 4` is false, with n = 3"),
    ("//! need has(m)\n//! launch k<<<1, 32>>>(x, y)", "has", "`has(m)` is false, with has(m) = false"),
    ("//! need x.shape[2] > 4\n//! launch k<<<1, 32>>>(x, y)", "[2]", "index 2 is outside the list"),
    ("//! let c = 8 / (n - 3)\n//! launch k<<<1, 32>>>(x, y, c)", "/ (", "divides by zero, with n = 3"),
    ("//! let c = m.shape[0]\n//! launch k<<<1, 32>>>(x, y, c)", "m.", "`m` was not given"),
    ("//! const C = 8 / (n - 3)\n//! need C > 1\n//! launch t<C><<<1, 32>>>(x, y)", "/ (", "divides by zero"),
    ("//! tune A = 1 | 2\n//! need A > n\n//! launch t<A><<<1, 32>>>(x, y)", "A > n", "no other choice of A is taken"),
]


@pytest.mark.parametrize(("lines", "at", "found"), REFUSALS, ids=[row[0][4:40] for row in REFUSALS])
def test_refusal(lines: str, at: str, found: str) -> None:
    with pytest.raises(DoesNotApply) as caught:
        evaluated(lines)
    problem = caught.value.problem
    line, text = next((i, text) for i, text in enumerate(lines.split("\n"), 3) if at in text)
    assert (problem.code, problem.line, problem.column) == (Code.DOES_NOT_APPLY, line, text.index(at, 5) + 1)
    assert found in problem.found
    assert problem.remedy


def test_a_constant_that_fails_matters_only_when_the_needs_hold() -> None:
    lines = "//! const C = x.shape[2]\n//! need x.ndim == 3\n//! launch t<C><<<1, 32>>>(x, y)"
    with pytest.raises(DoesNotApply, match=r"`x.ndim == 3` is false"):
        evaluated(lines)
    assert evaluated(lines, x="2x2x7:f32").constants == (("C", 7),)


def test_the_furthest_line_is_the_reason() -> None:
    lines = "//! tune A = 1 | 2 | 4\n//! need A > 1\n//! need A * n > 99\n//! launch t<A><<<1, 32>>>(x, y)"
    with pytest.raises(DoesNotApply) as caught:
        evaluated(lines)
    assert caught.value.problem.line == 5
    assert "`A * n > 99` is false, with A = 2, n = 3" in caught.value.problem.found


# -- against the build --


@pytest.fixture(scope="module")
def compiled() -> Build:
    lines = "//! launch k<<<1, 1>>>(x, y)\n//! launch three<<<1, 1>>>(x, y, 1)"
    result = build(evaluated(lines).build_request())
    assert isinstance(result, Build), str(result)
    return result


BUILD_ERRORS: list[tuple[Code, str, str, str]] = [
    (Code.ARGUMENT, "//! launch three<<<1, 32>>>(x, y)", "three", "three takes 3 arguments, 2 are passed"),
    (Code.ARGUMENT, "//! launch k<<<1, 32>>>(y, x)", "x)", "argument 2 of k: x is an input"),
    (Code.ARGUMENT, "//! launch three<<<1, 32>>>(x, y, 1.5)", "1.5", "argument 3 of three: 1.5 is a float"),
    (Code.ARGUMENT, "//! launch three<<<1, 32>>>(x, y, 3000000000)", "30", "is outside -2147483648 to 2147483647"),
    (Code.ARGUMENT, "//! launch three<<<1, 32>>>(x, y, x)", "x)", "argument 3 of three: x is a tensor of f32"),
    (Code.LIMIT, "//! launch k<<<1, 129>>>(x, y)", "k<", "129 threads, __launch_bounds__ of k allows 128"),
    (Code.LIMIT, "//! launch k<<<9999, 128>>>(x, y) cooperative", "k<", "a cooperative grid of 9999 blocks"),
]


@pytest.mark.parametrize(("code", "lines", "at", "found"), BUILD_ERRORS, ids=[row[1][11:] for row in BUILD_ERRORS])
def test_error_against_the_build(compiled: Build, code: Code, lines: str, at: str, found: str) -> None:
    with pytest.raises(KernelFileError) as caught:
        bind(evaluated(lines), compiled, H200)
    (problem,) = caught.value.problems
    assert (problem.code, problem.line, problem.column) == (code, 3, lines.index(at, 11) + 1)
    assert found in problem.found
    assert problem.remedy
