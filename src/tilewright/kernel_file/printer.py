"""Prints op lines and expressions. Parsing the text gives the same tree except for spans."""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.kernel_file import syntax
from tilewright.kernel_file.syntax import Expr, Infix, Op, Parameter
from tilewright.records import DType

# Precedence; operands of lower precedence get parentheses.
_CONDITIONAL, _OR, _AND, _NOT, _COMPARE, _SUM, _PRODUCT, _MINUS, _POSTFIX = range(9)
_BINDING = {"or": _OR, "and": _AND, "+": _SUM, "-": _SUM, "*": _PRODUCT, "/": _PRODUCT, "//": _PRODUCT, "%": _PRODUCT}


def print_op(op: Op) -> str:
    """`op      f(x, eps: float) -> y`, without the `//!`."""
    text = f"op      {op.name}({', '.join(_print_parameter(parameter) for parameter in op.parameters)})"
    return f"{text} -> {', '.join(op.results)}" if op.results else text


def print_expression(expression: Expr) -> str:
    return _expression(expression, _CONDITIONAL)


# -- expressions --


def _expression(expression: Expr, place: int) -> str:
    """The text of an expression, in parentheses if its precedence is below `place`."""
    text, binding = _bound(expression)
    return f"({text})" if binding < place else text


def _bound(expression: Expr) -> tuple[str, int]:
    if isinstance(expression, syntax.Compare):
        return _infix(expression, _SUM, _SUM), _COMPARE
    if isinstance(expression, Infix):
        binding = _BINDING[expression.operator]
        return _infix(expression, binding, binding + 1), binding
    if isinstance(expression, syntax.Conditional):
        then = _expression(expression.then, _OR)
        condition = _expression(expression.condition, _OR)
        return f"{then} if {condition} else {_expression(expression.otherwise, _CONDITIONAL)}", _CONDITIONAL
    if isinstance(expression, syntax.Unary):
        if expression.operator == "not":
            return f"not {_expression(expression.operand, _NOT)}", _NOT
        return f"-{_expression(expression.operand, _MINUS)}", _MINUS
    return _postfix(expression), _POSTFIX


def _infix(expression: Infix, left: int, right: int) -> str:
    return f"{_expression(expression.left, left)} {expression.operator} {_expression(expression.right, right)}"


def _postfix(expression: Expr) -> str:
    match expression:
        case syntax.Literal(value=value):
            return _literal(value)
        case syntax.Name(id=name):
            return name
        case syntax.Attribute(base=base, name=name):
            return f"{_expression(base, _POSTFIX)}.{name}"
        case syntax.Index(base=base, position=position):
            return f"{_expression(base, _POSTFIX)}[{print_expression(position)}]"
        case syntax.Slice(base=base, low=low, high=high):
            ends = ("" if end is None else print_expression(end) for end in (low, high))
            return f"{_expression(base, _POSTFIX)}[{':'.join(ends)}]"
        case syntax.ListOf(items=items):
            return f"[{_list(items)}]"
        case syntax.Call(function=function, arguments=arguments):
            return f"{function}({_list(arguments)})"
    raise AssertionError(f"no postfix form: {expression!r}")


def _list(expressions: Iterable[Expr]) -> str:
    return ", ".join(print_expression(expression) for expression in expressions)


def _literal(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, DType):
        return value.value
    return repr(value)


# -- op lines --


def _print_parameter(parameter: Parameter) -> str:
    if parameter.scalar is None:
        return parameter.name + ("!" if parameter.in_place else "?" if parameter.optional else "")
    text = f"{parameter.name}: {parameter.scalar.value}"
    if parameter.is_list:
        text += f"[{'' if parameter.length is None else parameter.length}]"
    text += "?" if parameter.optional else ""
    if not parameter.has_default:
        return text
    default = parameter.default
    if isinstance(default, tuple):
        return f"{text} = [{', '.join(_literal(item) for item in default)}]"
    return f"{text} = {_literal(default)}"
