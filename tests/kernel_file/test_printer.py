"""Printing: what is printed reads back as the same plan, for sample files and for made-up trees."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tilewright.kernel_file.expressions import ExpressionParser
from tilewright.kernel_file.lexer import Token, tokenize
from tilewright.kernel_file.op_line import parse_op
from tilewright.kernel_file.parser import parse
from tilewright.kernel_file.printer import print_expression, print_op, print_plan
from tilewright.kernel_file.syntax import (
    Attribute,
    Binary,
    Call,
    Compare,
    Conditional,
    Expr,
    Index,
    ListOf,
    Literal,
    Logical,
    Name,
    Slice,
    Span,
    Unary,
)
from tilewright.records import DType

PLANS = sorted((Path(__file__).parent / "plans").glob("*.cu"))
NOWHERE = Span(0, 0)


def without_places(value: Any) -> Any:
    """A parsed form with every place the same; of expressions their kind and parts."""
    if isinstance(value, Span):
        return NOWHERE
    if isinstance(value, tuple):
        kind = (type(value).__name__,) if hasattr(value, "_fields") else ()
        return (*kind, *(without_places(item) for item in value))
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{item.name: without_places(getattr(value, item.name)) for item in fields(value)})
    return value


def read(text: str) -> Expr:
    tokens = tokenize(text, 1, 1, [])
    parser = ExpressionParser([*tokens, Token("end", "", 1, len(text) + 1)])
    result = parser.expression()
    assert parser.token.kind == "end"
    return result


def code_of(text: str) -> str:
    return "".join(line + "\n" for line in text.split("\n") if not line.lstrip().startswith("//!"))


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_sample_plans_read_back(path: Path) -> None:
    text = path.read_text()
    plan = parse(text).plan
    printed = print_plan(plan)
    assert without_places(parse(printed + code_of(text)).plan) == without_places(plan)
    assert print_plan(parse(printed + code_of(text)).plan) == printed
    assert all(len(line) <= 130 for line in printed.split("\n"))


def test_canonical_text() -> None:
    text = (
        "//! op f(x,n:int=3)->y\n//! out y:f32[n,x.shape[1:]]zeroed\n//! let a=(n+1)*2,b=((n))\n"
        "//! need !(a==b)||n<3&&true\n//! tune T=1|2\n//! launch f<T><<<dim3(a),T>>>(x,y)when(a>1)pdl\n"
    )
    plan = parse("//! op f(x,n:int=3)->y\n" + text.split("\n", 1)[1].replace("pdl", "cooperative") + "void f();").plan
    assert print_plan(plan) == (
        "//! op      f(x, n: int = 3) -> y\n"
        "//! out     y: f32[n, x.shape[1:]] zeroed\n"
        "//! let     a = (n + 1) * 2\n"
        "//! let     b = n\n"
        "//! need    not a == b or n < 3 and true\n"
        "//! tune    T = 1 | 2\n"
        "//! launch  f<T><<<a, T>>>(x, y) cooperative when a > 1\n"
    )


@pytest.mark.parametrize(
    "line",
    [
        "f(x)",
        "f() -> y",
        "f(x!, w?, n: int[] = [], e: float? = none, b: bool[2] = [true, false], q: float = -1e-05) -> y, z",
    ],
)
def test_op_lines_read_back(line: str) -> None:
    assert print_op(parse_op(line)) == "op      " + line
    assert without_places(parse_op(print_op(parse_op(line)))) == without_places(parse_op(line))


def test_long_lines_are_broken_inside_brackets() -> None:
    names = ", ".join(f"argument_{i}" for i in range(30))
    lets = "".join(f"//! let argument_{i} = {i}\n" for i in range(30))
    text = (
        f"//! op f(x) -> y\n//! out y: f32[1]\n{lets}//! launch f<<<1, 32>>>(x, y, {names})\n__global__ void f() {{}}\n"
    )
    printed = print_plan(parse(text).plan)
    assert max(map(len, printed.split("\n"))) <= 130
    assert without_places(parse(printed + "void f();").plan) == without_places(parse(text).plan)


def test_very_long_conditions_and_many_lets_stay_within_the_limits() -> None:
    condition = "&&".join(["n%8==0"] * 90)
    lets = "".join(f"//! let a{i}=1,b{i}=2,c{i}=3\n" for i in range(80))
    text = f"//! op f(n:int)->y\n//! out y:f32[1]\n{lets}//! need {condition}\n//! launch f<<<1,32>>>(y)\nvoid f();\n"
    printed = print_plan(parse(text).plan)
    assert without_places(parse(printed + "void f();").plan) == without_places(parse(text).plan)


def trees() -> st.SearchStrategy[Expr]:
    numbers = st.integers(0, 2**63 - 1) | st.floats(0, 1e308, allow_nan=False) | st.booleans()
    literals = (numbers | st.sampled_from([None, *DType])).map(lambda value: Literal(value, NOWHERE))
    names = st.sampled_from(["x", "n", "rows", "device"]).map(lambda name: Name(name, NOWHERE))

    def larger(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        based = names | st.builds(ListOf, st.lists(inner, max_size=2).map(tuple), st.just(NOWHERE))
        return st.one_of(
            st.builds(Attribute, based, st.sampled_from(["shape", "dtype"]), st.just(NOWHERE)),
            st.builds(Index, based, inner, st.just(NOWHERE)),
            st.builds(Slice, based, st.none() | inner, st.none() | inner, st.just(NOWHERE)),
            st.builds(ListOf, st.lists(inner, max_size=3).map(tuple), st.just(NOWHERE)),
            st.builds(Call, st.sampled_from(["min", "has"]), st.lists(inner, max_size=3).map(tuple), st.just(NOWHERE)),
            st.builds(Unary, st.sampled_from(["-", "not"]), inner, st.just(NOWHERE)),
            st.builds(Binary, st.sampled_from(["+", "-", "*", "/", "//", "%"]), inner, inner, st.just(NOWHERE)),
            st.builds(Compare, st.sampled_from(["==", "!=", "<", "in"]), inner, inner, st.just(NOWHERE)),
            st.builds(Logical, st.sampled_from(["and", "or"]), inner, inner, st.just(NOWHERE)),
            st.builds(Conditional, inner, inner, inner, st.just(NOWHERE)),
        )

    return st.recursive(literals | names, larger, max_leaves=12)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(trees())
def test_any_tree_reads_back(tree: Expr) -> None:
    assert without_places(read(print_expression(tree))) == without_places(tree)
