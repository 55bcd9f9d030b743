"""The grammar: every directive and operator to its parsed form, precedence, places, and recovery."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.kernel_file.directives import StatementParser
from tilewright.kernel_file.expressions import ExpressionParser
from tilewright.kernel_file.lexer import Token, tokenize
from tilewright.kernel_file.op_line import compare_op, parse_op
from tilewright.kernel_file.parser import parse
from tilewright.kernel_file.printer import print_expression
from tilewright.kernel_file.problems import Code, KernelFileError, Problem
from tilewright.kernel_file.syntax import (
    Accept,
    Binary,
    BufferDirective,
    Compare,
    Const,
    Expr,
    LaunchDirective,
    Let,
    LibraryDirective,
    Literal,
    MapDirective,
    Name,
    Span,
    Tune,
    Unary,
)
from tilewright.records import BufferRole, Clearing, DType, ScalarType

PLANS = Path(__file__).parent / "plans"
PLAN = "//! op f(x, n: int) -> y\n//! out y: f32[n]\n{}\n//! launch f<<<n, 32>>>(x, y)\n__global__ void f() {{}}\n"


def tokens_of(text: str) -> list[Token]:
    problems: list[Problem] = []
    tokens = tokenize(text, 1, 1, problems)
    assert not problems
    return [*tokens, Token("end", "", 1, len(text) + 1)]


def expression(text: str) -> Expr:
    parser = ExpressionParser(tokens_of(text))
    result = parser.expression()
    assert parser.token.kind == "end"
    return result


def bracketed(tree: Expr) -> str:
    """The tree with every operator in brackets."""
    if isinstance(tree, Unary):
        return f"({tree.operator} {bracketed(tree.operand)})"
    if hasattr(tree, "operator"):
        return f"({bracketed(tree.left)} {tree.operator} {bracketed(tree.right)})"
    if hasattr(tree, "condition"):
        return f"({bracketed(tree.then)} if {bracketed(tree.condition)} else {bracketed(tree.otherwise)})"
    return print_expression(tree)


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("1 + 2 * 3 - 4", "((1 + (2 * 3)) - 4)"),
        ("8 / 4 / 2 % 3 // 1", "((((8 / 4) / 2) % 3) // 1)"),
        ("-a * -b", "((- a) * (- b))"),
        ("--a", "(- (- a))"),
        ("-x.shape[0]", "(- x.shape[0])"),
        ("a or b and not c == d", "(a or (b and (not (c == d))))"),
        ("a || b && !c", "(a or (b and (not c)))"),
        ("a if b else c if d else e", "(a if b else (c if d else e))"),
        ("a or b if c else d", "((a or b) if c else d)"),
        ("(a if b else c) + 1", "((a if b else c) + 1)"),
        ("a in [1, 2] and b", "((a in [1, 2]) and b)"),
        ("a + 1 < b * 2", "((a + 1) < (b * 2))"),
        ("True and None != false", "(true and (none != false))"),
        ("x.shape[1:][-1]", "x.shape[1:][(- 1)]".replace("(- 1)", "-1")),
        ("x.shape[:d]", "x.shape[:d]"),
        ("x.shape[:]", "x.shape[:]"),
        ("min(a, max(b, 1))", "min(a, max(b, 1))"),
        ("[]", "[]"),
    ],
)
def test_precedence(text: str, tree: str) -> None:
    assert bracketed(expression(text)) == tree


def test_literals() -> None:
    assert expression("1_000") == Literal(1000, Span(1, 1, 5))
    assert expression("1.5e3") == Literal(1500.0, Span(1, 1, 5))
    assert expression("bf16") == Literal(DType.BF16, Span(1, 1, 4))
    assert expression("none") == Literal(None, Span(1, 1, 4))
    assert expression(str(2**63 - 1)) == Literal(2**63 - 1, Span(1, 1, 19))


def test_places_of_operators() -> None:
    assert expression("aa + b") == Binary("+", Name("aa", Span(1, 1, 2)), Name("b", Span(1, 6, 1)), Span(1, 4, 1))
    tree = expression("a <= b")
    assert isinstance(tree, Compare)
    assert tree.at == Span(1, 3, 2)


def directive(text: str) -> object:
    (result,) = StatementParser(tokens_of(text)).directives()
    return result


def test_buffers() -> None:
    out = directive("out y: x.dtype[n, 2] stride [1, n] zeroed")
    assert isinstance(out, BufferDirective)
    assert (out.name, out.role, out.clearing) == ("y", BufferRole.OUT, Clearing.ZEROED)
    assert out.stride is not None
    assert len(out.sizes) == len(out.stride) == 2
    scratch = directive("scratch t: i32[] counter")
    assert isinstance(scratch, BufferDirective)
    assert (scratch.role, scratch.sizes, scratch.clearing) == (BufferRole.SCRATCH, (), Clearing.COUNTER)
    named = directive("scratch t: T[1]")
    assert isinstance(named, BufferDirective)
    assert (named.dtype, named.clearing) == (Name("T", Span(1, 12, 1)), Clearing.UNDEFINED)


def test_definitions() -> None:
    parser = StatementParser(tokens_of("let a = 1, b = a"))
    assert [type(d).__name__ + d.name for d in parser.directives() if isinstance(d, Let)] == ["Leta", "Letb"]
    const = directive("const A = 1")
    assert isinstance(const, Const)
    assert directive("tune A = 4 | -1") == Tune("A", (4, -1), Span(1, 6, 1))
    assert directive("tune A = true | false") == Tune("A", (True, False), Span(1, 6, 1))
    assert directive("accept x: unaligned, strided") == Accept("x", True, True, Span(1, 8, 1))


def test_map_and_library() -> None:
    tiled = directive("map m = tiled(x, box=[64, 64], swizzle=128)")
    assert isinstance(tiled, MapDirective)
    assert (tiled.name, tiled.tensor, [key for key, _ in tiled.options]) == ("m", "x", ["box", "swizzle"])
    library = directive("library t = aten.convolution(x, none, [1, 1], false)")
    assert isinstance(library, LibraryDirective)
    assert (library.target, library.function, len(library.arguments)) == ("t", "aten.convolution", 4)


def test_launch() -> None:
    launch = directive("launch a::f<1, T><<<dim3(n, 2), 32, 48>>>(x, y) when n > 1 pdl cluster(2, 1)")
    assert isinstance(launch, LaunchDirective)
    assert (launch.kernel, launch.at) == ("a::f", Span(1, 8, 4))
    assert launch.template is not None
    assert launch.cluster is not None
    counts = (len(launch.template), len(launch.grid), len(launch.block), len(launch.arguments), len(launch.cluster))
    assert counts == (2, 2, 1, 2, 2)
    assert (launch.pdl, launch.cooperative) == (True, False)
    assert launch.when is not None
    plain = directive("launch f<<<1, 32>>>() cooperative")
    assert isinstance(plain, LaunchDirective)
    assert (plain.template, plain.smem, plain.arguments, plain.cooperative) == (None, None, (), True)


def test_op() -> None:
    op = parse_op(
        "//! op f(x!, w?, n: int, e: float = 1, s: float? = none, p: int[2] = [1, -1], q: bool[] = [true]) -> y, z;"
    )
    assert (op.name, op.results) == ("f", ("y", "z"))
    by_name = {parameter.name: parameter for parameter in op.parameters}
    assert by_name["x"].in_place
    assert by_name["w"].optional
    assert by_name["n"].scalar is ScalarType.INT
    assert by_name["e"].default == 1.0
    assert type(by_name["e"].default) is float
    assert (by_name["s"].optional, by_name["s"].has_default, by_name["s"].default) == (True, True, None)
    assert (by_name["p"].length, by_name["p"].default) == (2, (1, -1))
    assert (by_name["q"].is_list, by_name["q"].length, by_name["q"].default) == (True, None, (True,))


@pytest.mark.parametrize("text", ["f(x) -> y", "op f(x) -> y", "  //!   op f(x) -> y"])
def test_op_with_and_without_its_word(text: str) -> None:
    assert parse_op(text).name == "f"
    assert parse_op("op(x) -> y").name == "op"


@pytest.mark.parametrize(
    "text", ["", "f", "f(x", "f(x) ->", "f(x) y", "f(x) -> y\nz", "f(\xe9) -> y", "f(x: Tensor) -> y"]
)
def test_bad_op_lines(text: str) -> None:
    with pytest.raises(KernelFileError):
        parse_op(text)


@pytest.mark.parametrize(
    ("task", "found", "column", "fixable"),
    [
        ("f(x, n: int) -> y", [], 0, False),
        ("g(x, n: int) -> y", ["the op is called f, not g"], 5, True),
        ("f(x!, n: int) -> y", ["the parameter `x` is `x!` in the task"], 10, True),
        ("f(x, n: float) -> y", ["the parameter `n: int` is `n: float` in the task"], 13, True),
        ("f(x, n: int = 3) -> y", ["the parameter `n: int` is `n: int = 3` in the task"], 13, True),
        ("f(x, m: int) -> y", ["the parameter `n: int` is `m: int` in the task"], 13, False),
        ("f(x) -> y", ["2 parameters where the task has 1"], 13, False),
        ("f(x, n: int, k: int) -> y", ["2 parameters where the task has 3"], 5, False),
        ("f(x, n: int) -> z", ["the results are y, in the task z"], 5, False),
    ],
)
def test_compare_op(task: str, found: list[str], column: int, fixable: bool) -> None:
    file = parse(PLAN.format("//! need n > 0"))
    problems = compare_op(file, parse_op(task))
    assert [problem.found for problem in problems] == found
    for problem in problems:
        assert problem.code is Code.TASK_MISMATCH
        assert (problem.line, problem.column) == (1, column)
        assert problem.remedy == f"write the line as the task has it: op      {task}"
        assert (problem.autofix is not None) == fixable


def test_every_problem_is_reported_in_file_order() -> None:
    text = PLAN.format("//! let a = \n//! need 1 + true\n//! lets b = 1\n//! need b == a") + '#include "x"\n'
    with pytest.raises(KernelFileError) as caught:
        parse(text, "mine.cu")
    places = [(problem.line, problem.code) for problem in caught.value.problems]
    assert places == [(3, Code.SYNTAX), (4, Code.TYPE), (5, Code.UNKNOWN_DIRECTIVE), (9, Code.INCLUDE)]
    assert str(caught.value).startswith("mine.cu:3:")


def test_a_lost_op_line_makes_no_noise() -> None:
    text = PLAN.format("//! let a = n * 2").replace("op f(x,", "op f(x;")
    with pytest.raises(KernelFileError) as caught:
        parse(text)
    assert [problem.line for problem in caught.value.problems] == [1]


def test_library_is_refused_where_the_task_permits_none() -> None:
    text = (PLANS / "linear_gelu.cu").read_text()
    assert parse(text).plan.directives
    with pytest.raises(KernelFileError) as caught:
        parse(text, allow_library=False)
    (problem,) = caught.value.problems
    assert (problem.code, problem.line) == (Code.LIBRARY, 8)
    assert "permits no vendor steps" in problem.remedy


def test_the_file_keeps_its_text_and_identity() -> None:
    text = (PLANS / "silu.cu").read_text()
    file = parse(text, "silu.cu")
    assert (file.text, file.name) == (text, "silu.cu")
    assert file.identity == parse(text, "other.cu").identity
    assert file.identity != parse(text + "\n").identity


def test_names_that_are_only_words_in_their_place() -> None:
    text = "//! op f(map, stride: int, counter) -> out\n//! out out: f32[stride] stride [1]\n"
    parse(text + "//! launch f<<<1, 32>>>(map, stride, counter, out)\n__global__ void f() {}\n")
