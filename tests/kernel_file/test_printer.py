"""Printing: what is printed reads back as the same tree."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tilewright.kernel_file.expressions import ExpressionParser
from tilewright.kernel_file.lexer import Token, tokenize
from tilewright.kernel_file.op_line import parse_op
from tilewright.kernel_file.printer import print_expression, print_op
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
