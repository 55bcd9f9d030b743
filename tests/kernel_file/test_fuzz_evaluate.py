"""Random expressions and plans: no crash, no hang, no growth; and what is remembered equals what is computed anew."""

from __future__ import annotations

import functools
import gc
import itertools
import math
import tracemalloc
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tilewright.kernel_file import (
    Code,
    ConstantSets,
    Dispatcher,
    DoesNotApply,
    Evaluation,
    KernelFile,
    KernelFileError,
    NoneApplies,
    Problem,
    Selected,
    combinations,
    evaluate,
    expression_values,
    parse,
    words,
)
from tilewright.kernel_file.closures import Bindings, EvaluationFailure
from tilewright.kernel_file.expression_analysis import Analysed, Analysis, DefinedName, NameTable
from tilewright.kernel_file.expression_values import INT_MAX, INT_MIN, MAX_LIST_LENGTH, MapName, Tensor, Type, TypeKind
from tilewright.kernel_file.expressions import ExpressionParser
from tilewright.kernel_file.lexer import Token, tokenize
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
from tilewright.records import PROFILES, DType, LateArgument, Launch, ScalarArgument, TensorSpec

H200 = PROFILES["H200"]
AT = Span(1, 1)
QUICK = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
FEW = settings(
    max_examples=settings.default.max_examples // 2, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)

# -- what the static pass lets through --

NAMES = {
    "x": expression_values.TENSOR,
    "m": Type(TypeKind.TENSOR, optional=True),
    "s": Type(TypeKind.FLOAT, optional=True),
    "n": expression_values.INT,
    "p": expression_values.FLOAT,
    "b": expression_values.BOOL,
    "l": expression_values.INT_LIST,
    "t": expression_values.MAP,
}
ATTRIBUTES = (*words.TENSOR_ATTRIBUTES, "sms", "cc", "smem_block", "__class__")


def literals() -> st.SearchStrategy[Expr]:
    values = st.one_of(
        st.integers(-4, 12),
        st.sampled_from([0, INT_MAX, INT_MIN, 2**62]),
        st.floats(),
        st.booleans(),
        st.sampled_from(DType),
        st.none(),
    )
    return values.map(lambda value: Literal(value, AT))


def larger(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    several = st.lists(inner, max_size=3).map(tuple)
    optional = st.one_of(st.none(), inner)
    return st.one_of(
        st.builds(Attribute, inner, st.sampled_from(ATTRIBUTES), st.just(AT)),
        st.builds(Index, inner, inner, st.just(AT)),
        st.builds(Slice, inner, optional, optional, st.just(AT)),
        st.builds(ListOf, several, st.just(AT)),
        st.builds(Call, st.sampled_from(words.FUNCTIONS), several, st.just(AT)),
        st.builds(Unary, st.sampled_from(["-", "not"]), inner, st.just(AT)),
        st.builds(Binary, st.sampled_from(["+", "-", "*", "/", "//", "%"]), inner, inner, st.just(AT)),
        st.builds(Compare, st.sampled_from(["==", "!=", "<", "<=", ">", ">=", "in"]), inner, inner, st.just(AT)),
        st.builds(Logical, st.sampled_from(["and", "or"]), inner, inner, st.just(AT)),
        st.builds(Conditional, inner, inner, inner, st.just(AT)),
    )


LEAVES = st.one_of(literals(), st.sampled_from([*NAMES, "device"]).map(lambda name: Name(name, AT)))
TREES = st.recursive(LEAVES, larger, max_leaves=25)


@functools.cache
def typed(kind: str, depth: int = 4) -> st.SearchStrategy[str]:
    """The text of an expression that has a type, so that what passes the static pass is seen often."""
    base = {
        "int": ["n", "3", "0", "9223372036854775807", "x.numel", "x.ndim", "device.sms", "m.itemsize"],
        "float": ["p", "s", "0.5", "1e308"],
        "bool": ["b", "true", "has(m)", "has(s)"],
        "dtype": ["f32", "x.dtype", "m.dtype"],
        "list": ["l", "x.shape", "x.stride", "[]", "m.shape"],
    }[kind]
    if depth == 0:
        return st.sampled_from(base)
    a, b = typed(kind, depth - 1), typed(kind, depth - 1)
    integer, flag = typed("int", depth - 1), typed("bool", depth - 1)
    forms = [st.sampled_from(base), st.tuples(a, flag, b).map(lambda p: f"({p[0]} if {p[1]} else {p[2]})")]
    if kind in ("int", "float"):
        signs = st.sampled_from("+-*/" if kind == "float" else "+-*/%")
        number = st.one_of(a, integer) if kind == "float" else a
        forms += [
            st.tuples(a, signs, number).map(lambda p: f"({p[0]} {p[1]} {p[2]})"),
            st.tuples(st.sampled_from(["min", "max"]), a, number).map(lambda p: f"{p[0]}({p[1]}, {p[2]})"),
            a.map(lambda text: f"-{text}"),
        ]
    if kind == "int":
        lists = typed("list", depth - 1)
        functions = st.sampled_from(["log2", "next_pow2"])
        forms += [
            st.tuples(st.sampled_from(["ceil_div", "round_up"]), a, b).map(lambda p: f"{p[0]}({p[1]}, {p[2]})"),
            st.tuples(functions, a).map(lambda p: f"{p[0]}({p[1]})"),
            st.tuples(st.sampled_from(["prod", "len"]), lists).map(lambda p: f"{p[0]}({p[1]})"),
            st.tuples(lists, a).map(lambda p: f"{p[0]}[{p[1]}]"),
            typed("dtype", depth - 1).map(lambda text: f"sizeof({text})"),
        ]
    elif kind == "float":
        forms.append(st.one_of(a, integer).map(lambda text: f"sqrt({text})"))
    elif kind == "bool":
        signs = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])
        any_number = st.one_of(integer, typed("float", depth - 1))
        dtypes, lists = typed("dtype", depth - 1), typed("list", depth - 1)
        forms += [
            st.tuples(a, st.sampled_from(["and", "or", "==", "!="]), b).map(lambda p: f"(({p[0]}) {p[1]} ({p[2]}))"),
            a.map(lambda text: f"(not {text})"),
            st.tuples(any_number, signs, any_number).map(lambda p: f"({p[0]} {p[1]} {p[2]})"),
            st.tuples(dtypes, dtypes, dtypes).map(lambda p: f"({p[0]} in [{p[1]}, {p[2]}])"),
            st.tuples(lists, lists).map(lambda p: f"({p[0]} == {p[1]})"),
            st.tuples(integer, lists).map(lambda p: f"({p[0]} in {p[1]})"),
        ]
    elif kind == "list":
        forms += [
            st.tuples(a, integer, integer).map(lambda p: f"{p[0]}[{p[1]}:{p[2]}]"),
            st.tuples(a, integer).map(lambda p: f"[{p[0]}, {p[1]}]"),
        ]
    return st.one_of(forms)


def analysed(tree: Expr) -> tuple[Analysed, list[Problem]]:
    problems: list[Problem] = []
    names = NameTable({name: DefinedName(type_, 1) for name, type_ in NAMES.items()})
    return Analysis(names, problems).analyse(tree), problems


def bindings() -> Bindings:
    values = Bindings()
    x = Tensor("x", TensorSpec.contiguous(DType.F16, (4, 0, 9)))
    values.update(x=x, m=None, s=None, n=5, p=0.25, b=True, l=(1, 2, 3), t=MapName("t"), device=H200)
    return values


PYTHON_TYPES = {
    TypeKind.INT: int,
    TypeKind.FLOAT: (float, int),  # the product of an empty list is 1
    TypeKind.BOOL: bool,
    TypeKind.DTYPE: DType,
    TypeKind.NONE: type(None),
    TypeKind.TENSOR: Tensor,
    TypeKind.MAP: MapName,
}


def check_value(value: Any, type_: Type) -> None:
    if type_.is_list:
        assert isinstance(value, tuple)
        assert len(value) <= MAX_LIST_LENGTH
        for item in value:
            check_value(item, type_.element)
        return
    assert isinstance(value, PYTHON_TYPES[type_.kind])
    assert isinstance(value, bool) == (type_.kind is TypeKind.BOOL)
    if isinstance(value, int):
        assert INT_MIN <= value <= INT_MAX


def check_sound(tree: Expr) -> None:
    """A tree of a known type has a value of that type, or a failure that only values can tell."""
    found, problems = analysed(tree)
    assert found.type.is_unknown <= bool(problems)
    if not problems and found.type.kind is not TypeKind.DEVICE:
        try:
            check_value(found.run(bindings()), found.type)
        except EvaluationFailure as failure:
            problems = [failure.problem]
        assert all(problem.code in (Code.VALUE, Code.LIMIT) for problem in problems)
    assert all(problem.line == 1 and problem.found and problem.remedy for problem in problems)


@QUICK
@given(TREES)
def test_any_tree_has_a_problem_or_a_value_of_its_type(tree: Expr) -> None:
    check_sound(tree)


@QUICK
@given(st.sampled_from(["int", "float", "bool", "dtype", "list"]).flatmap(typed))
def test_what_the_static_pass_lets_through_has_a_value_of_its_type(text: str) -> None:
    tokens = tokenize(text, 1, 1, [])
    tree = ExpressionParser([*tokens, Token("end", "", 1, len(text) + 1)]).expression()
    assert analysed(tree)[1] == []
    check_sound(tree)


# -- integers against Python's own --


def reference(tree: Expr) -> int | None:
    """The value by Python's unbounded integers; None where the plan's language has none."""
    if isinstance(tree, Literal):
        assert isinstance(tree.value, int)
        return tree.value
    assert isinstance(tree, (Binary, Call))
    operands = (tree.left, tree.right) if isinstance(tree, Binary) else tree.arguments
    a, b = (reference(operand) for operand in operands)
    if a is None or b is None:
        return None
    name = tree.operator if isinstance(tree, Binary) else tree.function
    if name in ("/", "//", "%", "ceil_div", "round_up") and (b == 0 or a < 0 or b < 0):
        return None
    result = {
        "+": lambda: a + b,
        "-": lambda: a - b,
        "*": lambda: a * b,
        "/": lambda: a // b,
        "//": lambda: a // b,
        "%": lambda: a % b,
        "min": lambda: min(a, b),
        "max": lambda: max(a, b),
        "ceil_div": lambda: (a + b - 1) // b,
        "round_up": lambda: (a + b - 1) // b * b,
    }[name]()
    return result if INT_MIN <= result <= INT_MAX else None


def integer_trees() -> st.SearchStrategy[Expr]:
    base = st.one_of(st.integers(-3, 40), st.sampled_from([INT_MAX, INT_MIN, 2**31, 2**40])).map(
        lambda v: Literal(v, AT)
    )

    def grow(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        pair = st.tuples(inner, inner)
        return st.one_of(
            st.builds(Binary, st.sampled_from(["+", "-", "*", "/", "//", "%"]), inner, inner, st.just(AT)),
            st.builds(Call, st.sampled_from(["min", "max", "ceil_div", "round_up"]), pair, st.just(AT)),
        )

    return st.recursive(base, grow, max_leaves=12)


@QUICK
@given(integer_trees())
def test_integers_are_exact_or_refused(tree: Expr) -> None:
    expected = reference(tree)
    try:
        value = analysed(tree)[0].run(bindings())
    except EvaluationFailure:
        assert expected is None
    else:
        assert value == expected


# -- whole plans --

INTS = (
    "n",
    "k",
    "x.shape[0]",
    "x.shape[-1]",
    "x.numel",
    "x.ndim",
    "l[0]",
    "len(l)",
    "device.sms",
    "1",
    "2",
    "3",
    "64",
    "0",
)
FLOATS = ("p", "q", "0.5", "2.0", "1.0")


def texts(base: tuple[str, ...], operators: list[str], functions: list[str]) -> st.SearchStrategy[str]:
    def grow(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        binary = st.tuples(inner, st.sampled_from(operators), inner).map(lambda p: f"({p[0]} {p[1]} {p[2]})")
        call = st.tuples(st.sampled_from(functions), inner, inner).map(lambda p: f"{p[0]}({p[1]}, {p[2]})")
        either = st.tuples(inner, inner, inner).map(lambda p: f"({p[0]} if {p[1]} < 2 else {p[2]})")
        return st.one_of(binary, call, either)

    return st.recursive(st.sampled_from(base), grow, max_leaves=4)


INT_TEXTS = texts(INTS, ["+", "-", "*", "/", "%"], ["ceil_div", "round_up", "min", "max"])
FLOAT_TEXTS = texts(FLOATS, ["+", "-", "*", "/"], ["min", "max"])
ARGUMENTS = st.fixed_dictionaries(
    {
        "x": st.lists(st.integers(0, 9), max_size=3).map(lambda shape: TensorSpec.contiguous(DType.F32, tuple(shape))),
        "n": st.integers(-2, 5),
        "k": st.integers(0, 3),
        "p": st.sampled_from([0.0, 0.5, 1.0, -2.0, 1e308]),
        "q": st.sampled_from([0.0, 1.0, 3.5]),
        "l": st.lists(st.integers(-1, 4), max_size=2).map(tuple),
    }
)


@st.composite
def plans(draw: st.DrawFn) -> KernelFile:
    lines = [
        "op f(x, n: int, k: int, p: float, q: float, l: int[]) -> y",
        "out y: f32[x.shape]",
        "tune A = 1 | 2",
        "tune B = 4 | 3",
    ]
    if draw(st.booleans()):
        sign, bound = draw(st.sampled_from(["<", ">=", "!="])), draw(st.sampled_from(["A", "B", "2"]))
        lines.append(f"need {draw(INT_TEXTS)} {sign} {bound}")
    lines.append(f"let v = {draw(INT_TEXTS)}, w = {draw(FLOAT_TEXTS)}")
    if draw(st.booleans()):
        lines.append(f"let u = v * {draw(st.sampled_from(['A', 'k', '2']))}")
        lines.append(f"need u {draw(st.sampled_from(['<', '>']))} 9")
    grid = draw(st.sampled_from(["1", "A + B", f"max({draw(INT_TEXTS)}, 1)"]))
    arguments = ["x", "y", "v", "w", "l", f"[{draw(INT_TEXTS)}, B]", draw(FLOAT_TEXTS)]
    lines.append(f"launch k<A><<<{grid}, 32 * B>>>({', '.join(arguments)})")
    return parse(
        "".join(f"//! {line}\n" for line in lines) + "template <int A> __global__ void k() { int b = B; }\n", "k.cu"
    )


def outcome(file: KernelFile, arguments: dict[str, Any]) -> Any:
    """What a call comes to, with late numbers put in."""
    try:
        evaluation = evaluate(file, arguments, H200)
        return resolved(evaluation, evaluation.late_values(arguments))
    except DoesNotApply:
        return "does not apply"
    except KernelFileError as error:
        return [problem.code for problem in error.problems]


def resolved(evaluation: Evaluation, late: tuple[Any, ...]) -> Any:
    steps = []
    for step in evaluation.steps:
        assert isinstance(step, Launch)
        values = []
        for argument in step.arguments:
            value: Any = argument
            if isinstance(argument, LateArgument):
                value = ScalarArgument(late[argument.index], argument.divided)
            values.append(repr(value))
        steps.append((step.kernel, step.grid, step.block, values))
    return evaluation.choice, evaluation.constants, evaluation.buffers, steps


@FEW
@given(plans(), st.lists(ARGUMENTS, min_size=2, max_size=6))
def test_what_is_remembered_is_what_would_be_computed(file: KernelFile, calls: list[dict[str, Any]]) -> None:
    dispatcher = Dispatcher([file], H200, constant_sets=ConstantSets(10**6))
    alike = [{**call, "x": calls[0]["x"]} for call in calls]  # so that scalars alone tell calls apart
    for arguments in (*alike, *calls, *alike):
        expected = outcome(file, arguments)
        found: Any
        try:
            selection = dispatcher.select(arguments)
        except KernelFileError as error:
            found = [problem.code for problem in error.problems]
        else:
            found = "does not apply"
            if isinstance(selection, Selected):
                found = resolved(selection.evaluation, selection.late)
            else:
                assert isinstance(selection, NoneApplies)
        assert found == expected


@FEW
@given(
    st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3, unique=True), min_size=1, max_size=4),
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 3), st.sampled_from(["<", ">", "!=", "=="]), st.integers(1, 9)),
        max_size=4,
    ),
)
def test_the_search_finds_what_trying_everything_finds(
    choices: list[list[int]], needs: list[tuple[int, int, str, int]]
) -> None:
    names = "ABCD"[: len(choices)]
    lines = ["op f(x) -> y", "out y: f32[1]"]
    lines += [f"tune {name} = {' | '.join(map(str, options))}" for name, options in zip(names, choices, strict=True)]
    conditions = [(i % len(names), j % len(names), sign, bound) for i, j, sign, bound in needs]
    lines += [f"need {names[i]} * {names[j]} {sign} {bound}" for i, j, sign, bound in conditions]
    lines.append(f"launch k<{', '.join(names)}><<<1, 1>>>(x, y)")
    file = parse("".join(f"//! {line}\n" for line in lines) + "template <int... N> __global__ void k() {}\n", "k.cu")
    compare = {"<": int.__lt__, ">": int.__gt__, "!=": int.__ne__, "==": int.__eq__}
    expected = [
        dict(zip(names, combination, strict=True))
        for combination in itertools.product(*choices)
        if all(compare[sign](combination[i] * combination[j], bound) for i, j, sign, bound in conditions)
    ]
    arguments = {"x": TensorSpec.parse("1:f32")}
    assert list(combinations(file, arguments, H200)) == expected
    if expected:
        assert evaluate(file, arguments, H200).choice == expected[0]
    else:
        with pytest.raises(DoesNotApply):
            evaluate(file, arguments, H200)


# -- bounds --


def test_4096_combinations_of_which_none_fits_end_soon() -> None:
    names = "ABCDEFGHIJKL"
    lines = ["op f(x, n: int) -> y", "out y: f32[1]", *(f"tune {name} = 1 | 2" for name in names)]
    lines += [f"let total = {' + '.join(names)}", "need total == 99", f"launch k<{', '.join(names)}><<<1, 1>>>(x, y)"]
    file = parse("".join(f"//! {line}\n" for line in lines) + "template <int... N> __global__ void k() {}\n", "k.cu")
    with pytest.raises(DoesNotApply, match="no other choice of A, B, C"):
        evaluate(file, {"x": TensorSpec.parse("1:f32"), "n": 1}, H200)
    assert math.prod(2 for _ in names) == 4096


@pytest.mark.slow
def test_memory_does_not_grow() -> None:
    text = (
        "//! op f(x, n: int) -> y\n//! out y: f32[x.shape]\n//! let a = x.numel * n\n//! launch k<<<1, 32>>>(x, y, a)\n"
    )
    text += "__global__ void k() {}\n"

    def work(start: int) -> None:
        for i in range(start, start + 40):
            file = parse(text, f"{i}.cu")
            dispatcher = Dispatcher([file], H200, capacity=8, constant_sets=ConstantSets())
            for shape in range(i % 7, 20):
                spec = TensorSpec.contiguous(DType.F32, (shape, 4))
                dispatcher.select({"x": spec, "n": i})

    work(0)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    work(40)
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 60_000
