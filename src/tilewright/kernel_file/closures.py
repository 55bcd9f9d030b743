"""Evaluation of expressions: closures over a name environment, and error messages.

There is no `eval`: closures only call the operations of `expression_values`. `expression_analysis` builds them. A
failing closure raises `EvaluationFailure` with the expression, its location and the values involved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tilewright.kernel_file import syntax, words
from tilewright.kernel_file.expression_values import TENSOR_ATTRIBUTES, OperationFault, Tensor, index, show_value
from tilewright.kernel_file.printer import print_expression
from tilewright.kernel_file.problems import Code, Problem
from tilewright.kernel_file.syntax import Expr, Span

MAX_VALUES = 8
MAX_TEXT = 200


class EvaluationFailure(Exception):
    """An expression that could not be evaluated, with its location."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(str(problem))

    @classmethod
    def at(cls, span: Span, code: Code, found: str, remedy: str) -> EvaluationFailure:
        return cls(Problem.at(span, code, found, remedy))


class Bindings(dict[str, Any]):
    """The name environment. Reading a name whose line failed raises that failure."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: dict[str, EvaluationFailure] = {}

    def __missing__(self, name: str) -> Any:
        failure = self.failures.get(name)
        if failure is not None:
            raise failure
        raise KeyError(name)

    def compute(self, name: str, value: Callable[[Bindings], Any]) -> EvaluationFailure | None:
        """Bind a name to a value, or to the failure of computing it."""
        try:
            self[name] = value(self)
        except EvaluationFailure as failure:
            self.pop(name, None)
            self.failures[name] = failure
            return failure
        self.failures.pop(name, None)
        return None


Values = dict[str, Any]  # Bindings, or a plain dict where no line can fail
Closure = Callable[[Any], Any]  # of Values


# -- closures --


def constant(value: Any) -> Closure:
    return lambda values: value


def lookup(name: str) -> Closure:
    return lambda values: values[name]


def guarded_lookup(node: syntax.Name) -> Closure:
    """The value of an optional; raises where it was not given."""
    name = node.id

    def run(values: Values) -> Any:
        value = values[name]
        if value is None:
            remedy = f"guard it: `... if has({name}) else ...`, or `need has({name})`"
            raise EvaluationFailure.at(node.at, Code.VALUE, f"`{name}` was not given", remedy)
        return value

    return run


def applied(node: Expr, operation: Callable[..., Any], *operands: Closure) -> Closure:
    """A closure that applies an operation and adds the location to its faults."""

    def run(values: Values) -> Any:
        given = [operand(values) for operand in operands]
        try:
            return operation(*given)
        except OperationFault as fault:
            found = described(node, fault.found, values)
            raise EvaluationFailure.at(node.at, fault.code, found, fault.remedy) from None

    return run


# -- messages --


def described(node: Expr, state: str, values: Mapping[str, Any]) -> str:
    """`K % 2 == 0` is false, with K = 3."""
    shown = values_of(node, values)
    return f"`{show(node)}` {state}" + (f", with {shown}" if shown else "")


def show(node: Expr) -> str:
    """The expression in plan syntax, shortened if very long."""
    text = print_expression(node)
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 4] + " ..."


def values_of(node: Expr, values: Mapping[str, Any]) -> str:
    """`K = 32, x.dtype = f16`: the names in an expression with their values, each once."""
    shown: dict[str, str] = {}
    pending = [node]
    while pending and len(shown) < MAX_VALUES:
        current = pending.pop()
        if isinstance(current, syntax.Call) and current.function == "has":
            (target,) = current.arguments
            given = isinstance(target, syntax.Name) and values.get(target.id) is not None
            shown.setdefault(show(current), show_value(given))
            continue
        if isinstance(current, (syntax.Name, syntax.Attribute, syntax.Index)):
            known, value = _peek(current, values)
            if known:
                shown.setdefault(show(current), show_value(value))
                continue
        pending.extend(reversed(syntax.children(current)))
    return ", ".join(f"{text} = {value}" for text, value in shown.items())


def _peek(node: Expr, values: Mapping[str, Any]) -> tuple[bool, Any]:
    """Whether a reference has a value, and the value; never raises."""
    try:
        match node:
            case syntax.Name(id=name):
                return values.get(name) is not None, values.get(name)
            case syntax.Attribute(base=syntax.Name(id="device"), name=name):
                return name in words.DEVICE_ATTRIBUTES, getattr(values.get("device"), name, None)
            case syntax.Attribute(base=syntax.Name(id=owner), name=name):
                tensor = values.get(owner)
                if isinstance(tensor, Tensor):
                    return True, TENSOR_ATTRIBUTES[name][1](tensor)
            case syntax.Index(base=base, position=position):
                known, value = _peek(base, values)
                match position:
                    case syntax.Literal(value=int(number)):
                        return (True, index(value, number)) if known else (False, None)
                    case syntax.Unary(operand=syntax.Literal(value=int(number))):
                        return (True, index(value, -number)) if known else (False, None)
    except OperationFault:
        pass
    return False, None
