"""Static rules that are about what is allowed: types, dependencies and uses that must pass."""

from __future__ import annotations

import pytest

from tilewright.kernel_file.compiled_plan import DefinitionLine
from tilewright.kernel_file.expression_analysis import Analysed, Analysis, DefinedName, NameTable
from tilewright.kernel_file.expression_values import BOOL, DTYPE, FLOAT, INT, INT_LIST, NONE, TENSOR, Type, TypeKind
from tilewright.kernel_file.expressions import ExpressionParser
from tilewright.kernel_file.lexer import Token, tokenize
from tilewright.kernel_file.parser import parse
from tilewright.kernel_file.problems import Problem

NAMES = {
    "x": TENSOR,
    "mask": Type(TypeKind.TENSOR, optional=True),
    "n": INT,
    "e": FLOAT,
    "flag": BOOL,
    "scale": Type(TypeKind.FLOAT, optional=True),
    "pads": INT_LIST,
    "scales": Type(TypeKind.FLOAT, is_list=True),
}


def analysed(text: str) -> tuple[Analysed, list[Problem]]:
    tokens = tokenize(text, 1, 1, [])
    expression = ExpressionParser([*tokens, Token("end", "", 1, len(text) + 1)]).expression()
    problems: list[Problem] = []
    names = NameTable({name: DefinedName(type_, 0, frozenset({name})) for name, type_ in NAMES.items()})
    return Analysis(names, problems).analyse(expression), problems


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
        ("[f16, bf16]", Type(TypeKind.DTYPE, is_list=True)),
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
    found, problems = analysed(text)
    assert found.type == type_
    assert not problems


def test_an_unknown_name_is_a_problem_of_unknown_type() -> None:
    found, problems = analysed("y + 1")
    assert found.type.is_unknown
    assert [problem.found for problem in problems] == ["unknown name `y`"]


@pytest.mark.parametrize(
    ("text", "names", "divided"),
    [
        ("x.shape[n] / 4 if has(mask) else device.sms", {"x", "n", "device"}, True),  # has() reads no value
        ("x.shape[n / 4]", {"x", "n"}, False),
        ("ceil_div(n, 4)", {"n"}, False),
        ("max(n // 4, 1) + 2", {"n"}, True),
        ("-(n / 4)", {"n"}, True),
        ("[1, n / 4][0]", {"n"}, True),
        ("2 if flag else n / 4", {"n", "flag"}, True),
        ("len([n / 4])", {"n"}, False),
        ("n % 4", {"n"}, False),
        ("n / 2.0", {"n"}, False),
    ],
)
def test_names_and_division(text: str, names: set[str], divided: bool) -> None:
    found, _ = analysed(text)
    assert found.names == names
    assert found.type.divided == divided


def test_origins_go_through_other_lines() -> None:
    text = plan("tune A = 1 | 2", "let k = n * A", "let m = k + x.numel", "launch f<<<m, 32>>>(y)")
    lines = {line.directive.name: line for line in parse(text).compiled.lines if isinstance(line, DefinitionLine)}
    assert lines["m"].value.names == {"k", "x"}
    assert lines["m"].origins == {"n", "A", "x"}
    assert lines["m"].tunes == 1


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
