"""Expressions compiled once to Python closures, with what each depends on.

Nothing is ever given to `eval`: a closure calls the operations of `values`, so an expression can do nothing else. A
closure that fails raises `Failure`, which knows the expression, its place and the values involved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tilewright.kernel_file import words
from tilewright.kernel_file.explain import children, show, start, values_of
from tilewright.kernel_file.problems import Code, KernelFileError, Problem
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
    Unary,
)
from tilewright.kernel_file.values import (
    BINARY,
    DEVICE_ATTRIBUTES,
    FUNCTIONS,
    TENSOR_ATTRIBUTES,
    Fault,
    Tensor,
    checked_int,
    cut,
    index,
    negate,
    spliced,
    type_name,
)

# A closure calls those of its parts, so this bounds the stack. `parse` refuses more already.
MAX_DEPTH = words.MAX_EXPRESSION_HEIGHT + 20


class Failure(Exception):
    """An expression without a value, located."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(str(problem))


class Environment(dict[str, Any]):
    """The values of names. A name whose own line failed raises that line's failure when it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: dict[str, Failure] = {}

    def __missing__(self, name: str) -> Any:
        failure = self.failures.get(name)
        if failure is not None:
            raise failure
        raise KeyError(name)

    def fail(self, name: str, failure: Failure) -> None:
        self.pop(name, None)
        self.failures[name] = failure


Values = dict[str, Any]  # an Environment, or plain values where every line is known to hold
Closure = Callable[[Values], Any]


@dataclass(frozen=True)
class Compiled:
    """A compiled expression, and the facts about it that need no values."""

    expression: Expr
    run: Closure
    names: frozenset[str]  # names whose value it reads; `has(x)` reads none
    divided: bool  # an integer made by an integer division
    is_list: bool
    is_opaque: bool  # a tensor or a map


@dataclass
class Scope:
    """What is known, without values, of the names defined so far."""

    optional: set[str] = field(default_factory=set)
    divided: set[str] = field(default_factory=set)
    lists: set[str] = field(default_factory=set)
    opaque: set[str] = field(default_factory=set)

    def define(self, name: str, compiled: Compiled) -> None:
        if compiled.divided:
            self.divided.add(name)
        if compiled.is_list:
            self.lists.add(name)
        if compiled.is_opaque:
            self.opaque.add(name)


def compile_expression(expression: Expr, scope: Scope, allow_absent: bool = False) -> Compiled:
    """`allow_absent`: an optional that was not given may be passed on as such (arguments of steps)."""
    _check_depth(expression)
    names: set[str] = set()
    if allow_absent and isinstance(expression, Name):
        names.add(expression.id)
        run = _lookup(expression.id)
    else:
        run = _compile(expression, scope, names)
    return Compiled(
        expression,
        run,
        frozenset(names),
        _is_divided(expression, scope),
        _is_list(expression, scope),
        _is_opaque(expression, scope),
    )


def _check_depth(expression: Expr) -> None:
    pending = [(expression, 1)]
    while pending:
        node, depth = pending.pop()
        if depth > MAX_DEPTH:
            place = start(expression)
            remedy = "name the parts with `let` lines"
            found = f"an expression of more than {MAX_DEPTH} levels"
            raise KernelFileError((Problem(Code.LIMIT, place.line, place.column, found, remedy),))
        pending.extend((child, depth + 1) for child in children(node))


# -- facts that need no values --


def _is_divided(node: Expr, scope: Scope) -> bool:
    match node:
        case Name(id=name):
            return name in scope.divided
        case Binary(operator=operator, left=left, right=right):
            return operator in ("/", "//") or _is_divided(left, scope) or _is_divided(right, scope)
        case Unary(operand=operand):
            return _is_divided(operand, scope)
        case Conditional(then=then, otherwise=otherwise):
            return _is_divided(then, scope) or _is_divided(otherwise, scope)
        case Call(function="has" | "len" | "sizeof" | "sqrt"):
            return False
        case Call(arguments=items) | ListOf(items=items):
            return any(_is_divided(item, scope) for item in items)
        case Index(base=base) | Slice(base=base):
            return _is_divided(base, scope)
    return False


def _is_list(node: Expr, scope: Scope) -> bool:
    match node:
        case Name(id=name):
            return name in scope.lists
        case Slice() | ListOf() | Attribute(name="shape" | "stride"):
            return True
        case Conditional(then=then, otherwise=otherwise):
            return _is_list(then, scope) or _is_list(otherwise, scope)
    return False


def _is_opaque(node: Expr, scope: Scope) -> bool:
    match node:
        case Name(id=name):
            return name in scope.opaque
        case Conditional(then=then, otherwise=otherwise):
            return _is_opaque(then, scope) or _is_opaque(otherwise, scope)
    return False


# -- closures --


def _failure(node: Expr, fault: Fault, environment: Values) -> Failure:
    # The operator's own words first, then the expression with its values, as a person would check it by hand.
    values = values_of(node, environment)
    found = f"`{show(node)}` {fault.found}" + (f", with {values}" if values else "")
    return Failure(Problem(fault.code, node.at.line, node.at.column, found, fault.remedy))


def _lookup(name: str) -> Closure:
    def run(environment: Values) -> Any:
        return environment[name]

    return run


def _compile(node: Expr, scope: Scope, names: set[str]) -> Closure:
    match node:
        case Literal():
            return _compile_literal(node)
        case Name():
            return _compile_name(node, scope, names)
        case Attribute():
            return _compile_attribute(node, scope, names)
        case Index():
            base, position = _compile(node.base, scope, names), _compile(node.index, scope, names)
            return _applied(node, index, base, position)
        case Slice():
            low = _constant(None) if node.low is None else _compile(node.low, scope, names)
            high = _constant(None) if node.high is None else _compile(node.high, scope, names)
            return _applied(node, cut, _compile(node.base, scope, names), low, high)
        case ListOf():
            return _compile_list(node, scope, names)
        case Call():
            return _compile_call(node, scope, names)
        case Unary(operator="-"):
            return _applied(node, negate, _compile(node.operand, scope, names))
        case Unary():
            operand = _compile_bool(node.operand, "not", scope, names)
            return lambda environment: not operand(environment)
        case Binary() | Compare():
            left, right = _compile(node.left, scope, names), _compile(node.right, scope, names)
            return _applied(node, BINARY[node.operator], left, right)
        case Logical():
            return _compile_logical(node, scope, names)
        case Conditional():
            return _compile_conditional(node, scope, names)


def _constant(value: Any) -> Closure:
    return lambda environment: value


def _compile_literal(node: Literal) -> Closure:
    value = node.value
    if type(value) is int:
        try:
            checked_int(value)
        except Fault as fault:
            found = f"{value} {fault.found}"
            raise KernelFileError((Problem(Code.VALUE, *node.at[:2], found, "write a smaller number"),)) from None
    return _constant(value)


def _compile_name(node: Name, scope: Scope, names: set[str]) -> Closure:
    name = node.id
    names.add(name)
    if name not in scope.optional:
        return _lookup(name)

    def run(environment: Values) -> Any:
        value = environment[name]
        if value is None:
            found = f"`{name}` was not given"
            remedy = f"guard it: `... if has({name}) else ...`, or `need has({name})`"
            raise Failure(Problem(Code.VALUE, node.at.line, node.at.column, found, remedy))
        return value

    return run


def _compile_attribute(node: Attribute, scope: Scope, names: set[str]) -> Closure:
    if isinstance(node.base, Name) and node.base.id == "device" and node.name in DEVICE_ATTRIBUTES:
        names.add("device")
        attribute = node.name
        return lambda environment: getattr(environment["device"], attribute)
    read = TENSOR_ATTRIBUTES.get(node.name)

    def attribute_of(value: Any) -> Any:
        if read is None or type(value) is not Tensor:
            raise Fault(f"{type_name(value)} has no attribute {node.name}", "use one a tensor has", Code.TYPE)
        return read(value)

    return _applied(node, attribute_of, _compile(node.base, scope, names))


def _compile_list(node: ListOf, scope: Scope, names: set[str]) -> Closure:
    items = tuple(_compile(item, scope, names) for item in node.items)

    def run(environment: Values) -> Any:
        values = tuple(item(environment) for item in items)
        try:
            return spliced(values)
        except Fault as fault:
            raise _failure(node, fault, environment) from None

    return run


def _compile_call(node: Call, scope: Scope, names: set[str]) -> Closure:
    if node.function == "has":
        return _compile_has(node)
    function, count = FUNCTIONS[node.function]
    if count not in (None, len(node.arguments)) or not node.arguments:
        found = f"{node.function} is given {len(node.arguments)} values"
        remedy = f"give it {count or 'at least one'}"
        raise KernelFileError((Problem(Code.TYPE, node.at.line, node.at.column, found, remedy),))
    return _applied(node, function, *(_compile(argument, scope, names) for argument in node.arguments))


def _compile_has(node: Call) -> Closure:
    target = node.arguments[0] if len(node.arguments) == 1 else None
    if not isinstance(target, Name):
        problem = Problem(Code.TYPE, *node.at[:2], f"`{show(node)}`", "has() takes the name of an optional parameter")
        raise KernelFileError((problem,))
    name = target.id
    return lambda environment: environment[name] is not None


def _compile_bool(node: Expr, operator: str, scope: Scope, names: set[str]) -> Closure:
    inner = _compile(node, scope, names)

    def run(environment: Values) -> bool:
        value = inner(environment)
        if type(value) is bool:
            return value
        fault = Fault(f"is {type_name(value)}, where `{operator}` takes a bool", "write a comparison", Code.TYPE)
        raise _failure(node, fault, environment)

    return run


def _compile_logical(node: Logical, scope: Scope, names: set[str]) -> Closure:
    left = _compile_bool(node.left, node.operator, scope, names)
    right = _compile_bool(node.right, node.operator, scope, names)
    if node.operator == "and":
        return lambda environment: left(environment) and right(environment)
    return lambda environment: left(environment) or right(environment)


def _compile_conditional(node: Conditional, scope: Scope, names: set[str]) -> Closure:
    condition = _compile_bool(node.condition, "if", scope, names)
    then, otherwise = _compile(node.then, scope, names), _compile(node.otherwise, scope, names)
    return lambda environment: then(environment) if condition(environment) else otherwise(environment)


def _applied(node: Expr, operation: Callable[..., Any], *operands: Closure) -> Closure:
    """A closure that applies an operation of `values` and places its faults."""
    if len(operands) == 1:
        (single,) = operands

        def run_one(environment: Values) -> Any:
            value = single(environment)
            try:
                return operation(value)
            except Fault as fault:
                raise _failure(node, fault, environment) from None

        return run_one
    if len(operands) == 2:
        first, second = operands

        def run_two(environment: Values) -> Any:
            a, b = first(environment), second(environment)
            try:
                return operation(a, b)
            except Fault as fault:
                raise _failure(node, fault, environment) from None

        return run_two

    def run_all(environment: Values) -> Any:
        values = [operand(environment) for operand in operands]
        try:
            return operation(*values)
        except Fault as fault:
            raise _failure(node, fault, environment) from None

    return run_all
