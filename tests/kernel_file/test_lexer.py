"""From text to statements: tokens with places, continuation, comments, and where the plan ends."""

from __future__ import annotations

from tilewright.kernel_file.lexer import Token, read_plan_text, tokenize
from tilewright.kernel_file.problems import Code, Problem


def texts(source: str) -> list[str]:
    problems: list[Problem] = []
    tokens = tokenize(source, 1, 1, problems)
    assert not problems
    return [token.text for token in tokens]


def statements(source: str) -> list[list[str]]:
    plan = read_plan_text(source)
    assert not plan.problems
    return [[token.text for token in statement.tokens[:-1]] for statement in plan.statements]


def test_tokens_are_as_long_as_can_be() -> None:
    assert texts("f<A><<<g,b>>>(x)") == ["f", "<", "A", ">", "<<<", "g", ",", "b", ">>>", "(", "x", ")"]
    assert texts("a<=b>=c!=d==e") == ["a", "<=", "b", ">=", "c", "!=", "d", "==", "e"]
    assert texts("a//b/c::d->e||f&&g") == ["a", "//", "b", "/", "c", "::", "d", "->", "e", "||", "f", "&&", "g"]


def test_numbers() -> None:
    problems: list[Problem] = []
    tokens = tokenize("1 1_000 1.5 1. 1e5 1.5e-3 x1", 1, 1, problems)
    assert [(token.kind, token.text) for token in tokens] == [
        ("int", "1"),
        ("int", "1_000"),
        ("float", "1.5"),
        ("float", "1."),
        ("float", "1e5"),
        ("float", "1.5e-3"),
        ("name", "x1"),
    ]


def test_places_are_those_of_the_file() -> None:
    plan = read_plan_text("\n  //!   let a = 1\n")
    assert plan.statements[0].tokens == [
        Token("name", "let", 2, 9),
        Token("name", "a", 2, 13),
        Token("op", "=", 2, 15),
        Token("int", "1", 2, 17),
        Token("end", "", 2, 18),
    ]


def test_comments_blank_lines_and_semicolons() -> None:
    source = "// first\n\n//!\n//! # only a comment\n//! let a = 1; # one\n/* a\n b */\n//! let b = 2\n"
    assert statements(source) == [["let", "a", "=", "1"], ["let", "b", "=", "2"]]


def test_a_directive_continues_while_a_bracket_is_open() -> None:
    source = "//! launch f<<<1,\n//!   32>>>(\n//!   a) when b\n//! need [1,\n// between\n\n//! 2]\n"
    assert statements(source) == [
        ["launch", "f", "<<<", "1", ",", "32", ">>>", "(", "a", ")", "when", "b"],
        ["need", "[", "1", ",", "2", "]"],
    ]


def test_names_of_directives_may_be_arguments() -> None:
    source = "//! launch f<<<1, 32>>>(x,\n//!   out, map)\n"
    assert len(statements(source)) == 1


def test_an_unclosed_bracket_does_not_swallow_the_next_directive() -> None:
    plan = read_plan_text("//! let a = (1\n//! need b\n//! let c = 1\n")
    assert [problem.found for problem in plan.problems] == ["unclosed ( from line 1"]
    assert [statement.word.text for statement in plan.statements] == ["let", "need", "let"]
    assert [statement.broken for statement in plan.statements] == [True, False, False]


def test_the_rest_of_an_unreadable_directive_is_not_reported_again() -> None:
    plan = read_plan_text("//! launch f<<<1, 32>>>(a ~ b,\n//!   c, d)\n//! need e\n")
    assert [problem.code for problem in plan.problems] == [Code.SYNTAX]
    assert [statement.word.text for statement in plan.statements] == ["launch", "need"]


def test_the_plan_ends_with_the_first_line_of_code() -> None:
    plan = read_plan_text("//! op f(x)\nint x;\n// fine\n//! need a\n x; //! a remark\n")
    assert [(problem.code, problem.line) for problem in plan.problems] == [(Code.PLAN_AFTER_CODE, 4)]


def test_code_behind_a_comment_ends_the_plan() -> None:
    plan = read_plan_text("/* a */ int x; /* b\n*/\n//! need a\n")
    assert [problem.code for problem in plan.problems] == [Code.PLAN_AFTER_CODE]


def test_carriage_returns_belong_to_the_line_end() -> None:
    assert statements("//! let a = 1\r\n//! let b = (2 +\r\n//!  3)\r\n") == [
        ["let", "a", "=", "1"],
        ["let", "b", "=", "(", "2", "+", "3", ")"],
    ]
