"""Operators and functions of the plan's expressions, by value; and expressions in words."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tilewright.kernel_file import Code, parse
from tilewright.kernel_file.closures import Bindings, EvaluationFailure, show, values_of
from tilewright.kernel_file.compiled_plan import DefinitionLine
from tilewright.kernel_file.expression_analysis import Analysed
from tilewright.kernel_file.expression_values import Tensor
from tilewright.records import PROFILES, DType, TensorSpec

INT_MAX = 2**63 - 1
OP = "f(x, m?, s: float?, n: int, k: int, p: float, q: float, b: bool, l: int[], e: int[]) -> y"


def analysed(text: str) -> Analysed:
    plan = f"//! op {OP}\n//! out y: f32[1]\n//! let v = {text}\n//! launch g<<<1, 1>>>(y)\n"
    plan += "__global__ void g(float* y) {}\n"
    return next(line.value for line in parse(plan).compiled.lines if isinstance(line, DefinitionLine))


def bindings() -> Bindings:
    values = Bindings()
    values.update(
        x=Tensor("x", TensorSpec(DType.BF16, (2, 3, 5), (20, 5, 1))),
        m=None,
        s=None,
        n=7,
        k=-3,
        p=0.5,
        q=float("inf"),
        b=True,
        l=(4, 5, 6),
        e=(),
        device=PROFILES["H200"],
    )
    return values


def value_of(text: str) -> Any:
    return analysed(text).run(bindings())


VALUES: list[tuple[str, object]] = [
    # literals
    ("3", 3),
    ("2.5", 2.5),
    ("true", True),
    ("false", False),
    ("bf16", DType.BF16),
    ("9223372036854775807", INT_MAX),
    # arithmetic
    ("n + 2", 9),
    ("n - 10", -3),
    ("n * 6", 42),
    ("-n", -7),
    ("- -n", 7),
    ("n + p", 7.5),
    ("p - 1", -0.5),
    ("p * 4", 2.0),
    ("2 + 3 * 4", 14),
    ("(2 + 3) * 4", 20),
    ("10 - 3 - 2", 5),
    ("100 / 7 / 2", 7),
    # division
    ("7 / 2", 3),
    ("7 // 2", 3),
    ("7 % 4", 3),
    ("0 / 5", 0),
    ("7 / 2.0", 3.5),
    ("1.0 / n", 1.0 / 7),
    ("n / 2 * 2", 6),
    # comparison
    ("n == 7", True),
    ("n != 7", False),
    ("n < 8", True),
    ("n <= 7", True),
    ("n > 7", False),
    ("n >= 8", False),
    ("n < 7.5", True),
    ("p == 0.5", True),
    ("x.dtype == bf16", True),
    ("x.dtype != f32", True),
    ("b == true", True),
    ("x.shape == [2, 3, 5]", True),
    ("x.shape == [2, 3]", False),
    ("x.shape != [2, 3, 4]", True),
    ("x.dtype in [f16, bf16]", True),
    ("n in [1, 2]", False),
    ("5 in x.shape", True),
    ("n in e", False),
    # logic evaluates only what it needs
    ("b and n == 7", True),
    ("not b or n == 8", False),
    ("not (b and n == 8)", True),
    ("b or 1 / 0 == 1", True),
    ("not b and 1 / 0 == 1", False),
    ("1 if b else 1 / 0", 1),
    ("1 / 0 if not b else 2", 2),
    ("1 if not b else 2 if n == 8 else 3", 3),
    # tensors and lists
    ("x.shape", (2, 3, 5)),
    ("x.stride", (20, 5, 1)),
    ("x.numel", 30),
    ("x.ndim", 3),
    ("x.itemsize", 2),
    ("x.shape[0]", 2),
    ("x.shape[-1]", 5),
    ("x.shape[-3]", 2),
    ("x.shape[:-1]", (2, 3)),
    ("x.shape[1:]", (3, 5)),
    ("x.shape[1:2]", (3,)),
    ("x.shape[:]", (2, 3, 5)),
    ("x.shape[5:]", ()),
    ("x.shape[-9:1]", (2,)),
    ("[x.shape[:-1], 1]", (2, 3, 1)),
    ("[l, n, e]", (4, 5, 6, 7)),
    ("[]", ()),
    ("[n, 2][1]", 2),
    ("l[x.ndim - 1]", 6),
    # functions
    ("ceil_div(7, 2)", 4),
    ("ceil_div(8, 2)", 4),
    ("ceil_div(0, 2)", 0),
    ("round_up(7, 4)", 8),
    ("round_up(8, 4)", 8),
    ("min(n, 3)", 3),
    ("min(n)", 7),
    ("max(n, 3, 9)", 9),
    ("max(n, 7.5)", 7.5),
    ("max(n, 0.5)", 7.0),
    ("prod(x.shape)", 30),
    ("prod(e)", 1),
    ("len(x.shape)", 3),
    ("len(e)", 0),
    ("log2(1)", 0),
    ("log2(7)", 2),
    ("log2(8)", 3),
    ("log2(9223372036854775807)", 62),
    ("next_pow2(1)", 1),
    ("next_pow2(5)", 8),
    ("next_pow2(8)", 8),
    ("next_pow2(4611686018427387904)", 2**62),
    ("sqrt(16)", 4.0),
    ("sqrt(0.25)", 0.5),
    ("sizeof(f64)", 8),
    ("sizeof(x.dtype)", 2),
    ("has(m)", False),
    ("s if has(s) else 1.5", 1.5),
    # the device
    ("device.sms", 132),
    ("device.cc", 90),
    ("device.smem_block", 227 * 1024),
    ("device.smem_sm", 228 * 1024),
    ("device.l2", 60 << 20),
    # infinities that were given travel on
    ("q * 2", math.inf),
]


@pytest.mark.parametrize(("text", "expected"), VALUES, ids=[text for text, _ in VALUES])
def test_value(text: str, expected: object) -> None:
    value = value_of(text)
    assert value == expected
    assert type(value) is type(expected)


def test_every_dtype_has_its_size() -> None:
    sizes = {dtype.value: value_of(f"sizeof({dtype.value})") for dtype in DType}
    assert sizes == {
        "f64": 8, "f32": 4, "f16": 2, "bf16": 2, "f8e4m3": 1, "f8e5m2": 1,
        "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u8": 1, "bool": 1,
    }  # fmt: skip


FAULTS: list[tuple[str, str]] = [
    ("n / 0", "`n / 0` divides by zero, with n = 7"),
    ("n // (n - 7)", "`n // (n - 7)` divides by zero, with n = 7"),
    ("n % 0", "divides by zero"),
    ("1.0 / (p - 0.5)", "`1.0 / (p - 0.5)` divides by zero, with p = 0.5"),
    ("k / 2", "`k / 2` divides a negative integer or by one, with k = -3"),
    ("n / k", "divides a negative integer"),
    ("k % 2", "divides a negative integer"),
    ("ceil_div(k, 2)", "divides a negative integer"),
    ("round_up(n, 0)", "divides by zero"),
    ("9223372036854775807 + 1", "`9223372036854775807 + 1` overflows a 64-bit integer"),
    ("9223372036854775807 + n", "overflows a 64-bit integer, with n = 7"),
    ("-9223372036854775807 - n", "overflows a 64-bit integer"),
    ("9223372036854775807 * n", "overflows a 64-bit integer"),
    ("-(-9223372036854775807 - 1)", "overflows a 64-bit integer"),
    ("round_up(9223372036854775807, 2)", "overflows a 64-bit integer"),
    ("next_pow2(9223372036854775807)", "overflows a 64-bit integer"),
    ("prod([9223372036854775807, 2])", "overflows a 64-bit integer"),
    ("1e308 * 10", "overflows a float"),
    ("1e308 / p * 2 + 1e308", "overflows a float"),
    ("log2(0)", "log2 of 0"),
    ("log2(k)", "log2 of -3"),
    ("next_pow2(0)", "next_pow2 of 0"),
    ("sqrt(k)", "sqrt of -3"),
    ("sqrt(0.0 - p)", "sqrt of -0.5"),
    ("x.shape[3]", "`x.shape[3]` index 3 is outside the list: it has 3 items, with x.shape = [2, 3, 5]"),
    ("x.shape[-4]", "index -4 is outside the list"),
    ("e[0]", "it is empty"),
    ("m.shape[0]", "`m` was not given"),
    ("s * 2.0", "`s` was not given"),
]


@pytest.mark.parametrize(("text", "found"), FAULTS, ids=[text for text, _ in FAULTS])
def test_fault_names_the_expression_and_its_values(text: str, found: str) -> None:
    with pytest.raises(EvaluationFailure) as caught:
        value_of(text)
    problem = caught.value.problem
    assert problem.code is Code.VALUE
    assert found in problem.found
    assert problem.line == 3
    assert problem.remedy


def test_a_fault_stands_at_its_own_operator() -> None:
    with pytest.raises(EvaluationFailure) as caught:
        value_of("1 + 2 * (n / (n - 7))")
    # `//! let v = ` is 12 characters
    assert caught.value.problem.column == 12 + "1 + 2 * (n /".index("/") + 1


def test_long_lists_are_refused() -> None:
    values = bindings()
    values["l"] = tuple(range(1000))
    with pytest.raises(EvaluationFailure) as caught:
        analysed("len([l, l])").run(values)
    assert caught.value.problem.code is Code.LIMIT


def test_text_and_place() -> None:
    found = analysed("(n + k) * 2 - x.shape[-1]")
    assert show(found.expression) == "(n + k) * 2 - x.shape[-1]"
    assert found.start.column == 14  # of `n`: brackets are not part of the tree
    assert values_of(found.expression, bindings()) == "n = 7, k = -3, x.shape[-1] = 5"
    assert len(show(analysed("+".join(["1000000"] * 90)).expression)) <= 200
