"""Expressions in words: their text, where they start, and the values that made them what they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tilewright.kernel_file.printer import print_expression
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
    Place,
    Slice,
    Unary,
)
from tilewright.kernel_file.values import DEVICE_ATTRIBUTES, TENSOR_ATTRIBUTES, Fault, Tensor, index, show_value

MAX_VALUES = 8
MAX_TEXT = 200


def children(node: Expr) -> tuple[Expr, ...]:
    """The expressions directly inside one, left to right."""
    match node:
        case Literal() | Name():
            return ()
        case Attribute(base=base):
            return (base,)
        case Index(base=base, index=position):
            return (base, position)
        case Slice(base=base, low=low, high=high):
            return (base, *(end for end in (low, high) if end is not None))
        case ListOf(items=items) | Call(arguments=items):
            return items
        case Unary(operand=operand):
            return (operand,)
        case Binary(left=left, right=right) | Compare(left=left, right=right) | Logical(left=left, right=right):
            return (left, right)
        case Conditional(condition=condition, then=then, otherwise=otherwise):
            return (then, condition, otherwise)


def walk(node: Expr) -> Iterator[Expr]:
    """The expression and everything inside it, left to right, without recursion."""
    pending = [node]
    while pending:
        current = pending.pop()
        yield current
        pending.extend(reversed(children(current)))


def start(node: Expr) -> Place:
    """Where an expression begins: its first character, whatever place its operator has."""
    return min((inner.at for inner in walk(node)), key=lambda place: (place.line, place.column))


def show(node: Expr) -> str:
    """The expression as the plan would write it, shortened where it is very long."""
    text = print_expression(node)
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 4] + " ..."


# -- values --


def values_of(node: Expr, values: Mapping[str, Any]) -> str:
    """`K = 32, x.dtype = f16`: the references in an expression with what they stand for, each once."""
    shown: dict[str, str] = {}
    pending = [node]
    while pending and len(shown) < MAX_VALUES:
        current = pending.pop()
        if isinstance(current, Call) and current.function == "has":
            shown.setdefault(show(current), _presence(current, values))
            continue
        if isinstance(current, (Name, Attribute, Index)):
            known, value = _peek(current, values)
            if known:
                shown.setdefault(show(current), show_value(value))
                continue
        pending.extend(reversed(children(current)))
    return ", ".join(f"{text} = {value}" for text, value in shown.items())


def _presence(call: Call, values: Mapping[str, Any]) -> str:
    target = call.arguments[0] if call.arguments else None
    return "true" if isinstance(target, Name) and values.get(target.id) is not None else "false"


def _peek(node: Expr, values: Mapping[str, Any]) -> tuple[bool, Any]:
    """Whether a reference has a value here, and the value; never raises."""
    match node:
        case Literal(value=value) | Unary(operand=Literal(value=value)):
            return True, -value if isinstance(node, Unary) and type(value) is int else value
        case Name(id=name):
            return (True, values[name]) if values.get(name) is not None else (False, None)
        case Attribute(base=Name(id="device"), name=name):
            return name in DEVICE_ATTRIBUTES, getattr(values.get("device"), name, None)
        case Attribute(base=Name(id=tensor_name), name=name):
            tensor = values.get(tensor_name)
            if isinstance(tensor, Tensor) and name in TENSOR_ATTRIBUTES:
                try:
                    return True, TENSOR_ATTRIBUTES[name](tensor)
                except Fault:
                    return False, None
        case Index(base=base, index=position):
            known, value = _peek(base, values)
            literal, place = _peek(position, values) if isinstance(position, (Literal, Unary)) else (False, None)
            if known and literal:
                try:
                    return True, index(value, place)
                except Fault:
                    return False, None
    return False, None
