"""Static rules that are about what is allowed: types, dependencies and uses that must pass."""

from __future__ import annotations

import pytest

from tilewright.kernel_file.expressions import ExpressionParser
from tilewright.kernel_file.inference import expression_type
from tilewright.kernel_file.lexer import Token, tokenize
from tilewright.kernel_file.parser import parse
from tilewright.kernel_file.problems import KernelFileError
from tilewright.kernel_file.syntax import Expr
from tilewright.kernel_file.types import BOOL, DTYPE, FLOAT, INT, INT_LIST, NONE, TENSOR, Kind, Type

NAMES = {
    "x": TENSOR,
    "mask": Type(Kind.TENSOR, optional=True),
    "n": INT,
    "e": FLOAT,
    "flag": BOOL,
    "scale": Type(Kind.FLOAT, optional=True),
    "pads": INT_LIST,
    "scales": Type(Kind.FLOAT, is_list=True),
}


def expression(text: str) -> Expr:
    tokens = tokenize(text, 1, 1, [])
    return ExpressionParser([*tokens, Token("end", "", 1, len(text) + 1)]).expression()


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        ("1", INT),
        ("1.0", FLOAT),
        ("true", BOOL),
        ("f32", DTYPE),
        ("none", NONE),
        ("n / 2", INT),
        ("n / 2.0", FLOAT),
        ("n + e", FLOAT),
        ("-e", FLOAT),
        ("n // 2 % 3", INT),
        ("x.shape", INT_LIST),
        ("x.shape[1:]", INT_LIST),
        ("x.shape[-1]", INT),
        ("x.dtype", DTYPE),
        ("mask.stride[0] if has(mask) else 0", INT),
        ("scale if has(scale) else 1.0 / sqrt(n)", FLOAT),
        ("mask.stride if has(mask) else [0, 0]", INT_LIST),
        ("[x.shape[:-1], 1]", INT_LIST),
        ("[f16, bf16]", Type(Kind.DTYPE, is_list=True)),
        ("[]", INT_LIST),
        ("x.dtype in [f16, bf16]", BOOL),
        ("e in scales", BOOL),
        ("n in scales", BOOL),
        ("pads == [1, 2]", BOOL),
        ("x.shape == []", BOOL),
        ("flag == true", BOOL),
        ("n < e", BOOL),
        ("device.sms * 2", INT),
        ("min(n, e)", FLOAT),
        ("min(n, 2, 3)", INT),
        ("prod(x.shape)", INT),
        ("prod(scales)", FLOAT),
        ("len(scales)", INT),
        ("log2(next_pow2(n))", INT),
        ("sizeof(x.dtype)", INT),
        ("has(scale)", BOOL),
        ("ceil_div(n, 2) + round_up(n, 4)", INT),
    ],
)
def test_types(text: str, type_: Type) -> None:
    assert expression_type(expression(text), NAMES) == type_


def test_expression_type_raises() -> None:
    with pytest.raises(KernelFileError, match="unknown name `y`"):
        expression_type(expression("y + 1"), NAMES)


def plan(*lines: str, op: str = "f(x, w?, n: int, e: float, s: float?) -> y", code: str = "") -> str:
    head = f"//! op {op}\n//! out y: f32[n]\n"
    return head + "".join(f"//! {line}\n" for line in lines) + "__global__ void f() {}\n" + code


ALLOWED = [
    plan("const A = has(s)", "launch f<A><<<1, 32>>>(y)"),  # whether it is given is no float
    plan("const A = 1.5", "launch f<<<1, 32>>>(y)", code="constexpr float b = A;\n"),
    plan("tune A = 1 | 2", "launch f<<<1, 32>>>(y)", code="constexpr int b = A;\n"),
    plan("tune A = 1 | 2", "launch f<<<1, 32>>>(y)", code="#define USES A\n"),
    plan("tune A = true | false", "need A or n > 3", "launch f<<<1, 32>>>(y)"),
    plan("let unused = 1", "launch f<<<1, 32>>>(y)"),
    plan("launch f<<<1, 32>>>(x, y)", "let k = n", "need k > 0", "launch f<<<1, 32>>>(y) pdl"),
    plan("scratch t: y.dtype[y.shape]", "launch f<<<1, 32>>>(t, y)"),
    plan("launch f<<<1, 32>>>(y, n, e, x.shape, true, w, s)"),
    plan("launch f<<<1, 32>>>(y if n > 1 else x)"),
    plan("map m = tiled(y, box=[1])", "launch f<<<1, 32>>>(m)"),
    plan("scratch t: f32[1]", "map m = tiled(t, box=x.shape, stride=x.stride)", "launch f<<<1, 32>>>(m, y)"),
    plan("scratch t: i64[1] counter", "launch f<<<1, 32>>>(t, y)"),
    plan("library y = aten.mm(x, x)"),
    plan("scratch t: f32[1]", "library t = aten.addmm(w, x, x, n, e)", "launch f<<<1, 32>>>(t, y)"),
    "//! op f(x!)\n//! launch f<<<1, 32>>>(x)\n__global__ void f() {}\n",
    "//! op f(x) -> y\n//! out y: x.dtype[x.shape] zeroed\n//! launch f<<<1, 32>>>(y)\n__global__ void f() {}\n",
    "//! op f(x) -> y\n//! out y: f32[1]\n//! launch f<<<1, 32>>>(y)\n#define M(n) __global__ void n##_k() {}\nM(f)\n",
]


@pytest.mark.parametrize("text", ALLOWED, ids=lambda text: text.split("\n")[2][:50])
def test_allowed(text: str) -> None:
    parse(text)
