"""Runs in the child: ints and floats that carry their expression over sizes and arguments.

Arithmetic on them is tracked too. A condition such as `cols > 512` or `if rows % 2` is passed to a listener, which may
record it or override its value.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

_LONGEST_TEXT = 400  # longer expressions are not tracked: sums over a loop would grow without end

Number = int | float
BranchLog = Callable[["Expression", bool], bool]


@dataclass(frozen=True)
class Expression:
    """An expression over symbols such as `x.shape[1]`."""

    text: str
    at: Callable[[Mapping[str, Number]], Any]
    symbols: frozenset[str]
    constants: frozenset[Number] = frozenset()

    @classmethod
    def symbol(cls, text: str) -> Expression:
        return cls(text, lambda known: known[text], frozenset({text}))

    @classmethod
    def constant(cls, value: Number) -> Expression:
        return cls(repr(value), lambda _: value, frozenset(), frozenset({value}))


class _Listening:
    """The current listener for conditions on tracked numbers."""

    asked: BranchLog | None = None


@contextmanager
def listening(asked: BranchLog) -> Iterator[None]:
    before, _Listening.asked = _Listening.asked, asked
    try:
        yield
    finally:
        _Listening.asked = before


class TrackedInt(int):
    expression: Expression


class TrackedFloat(float):
    expression: Expression


def tracked(value: Number, expression: Expression) -> Number:
    """The number with its expression; bools and numbers with too long expressions are returned as they are."""
    if isinstance(value, bool) or len(expression.text) > _LONGEST_TEXT:
        return value
    made = TrackedInt(value) if isinstance(value, int) else TrackedFloat(value)
    made.expression = expression
    return made


def is_tracked(value: object) -> bool:
    return isinstance(value, (TrackedInt, TrackedFloat))


def plain(value: Any) -> Any:
    """The number itself."""
    if isinstance(value, TrackedInt):
        return int.__int__(value)
    return float.__float__(value) if isinstance(value, TrackedFloat) else value


def applied(name: str, function: Callable[..., Any], *values: Any) -> Any:
    """Apply a function; the result is tracked if an argument is."""
    result = function(*map(plain, values))
    if not any(map(is_tracked, values)) or not isinstance(result, (int, float)):
        return result
    parts = [expression_of(one) for one in values]
    at = [part.at for part in parts]
    text = f"{name}({', '.join(part.text for part in parts)})"
    return tracked(result, _joined(text, lambda known: function(*(one(known) for one in at)), parts))


def expression_of(value: Any) -> Expression:
    return value.expression if is_tracked(value) else Expression.constant(value)


def _joined(text: str, at: Callable[[Mapping[str, Number]], Any], parts: list[Expression]) -> Expression:
    return Expression(
        text,
        at,
        frozenset().union(*(part.symbols for part in parts)),
        frozenset().union(*(part.constants for part in parts)),
    )


def _of_two(sign: str, function: Callable[[Any, Any], Any], one: Any, other: Any) -> Any:
    """Apply a binary operator or comparison."""
    result = function(plain(one), plain(other))
    parts = [expression_of(one), expression_of(other)]
    left, right = parts[0].at, parts[1].at
    whole = _joined(
        f"({parts[0].text} {sign} {parts[1].text})", lambda known: function(left(known), right(known)), parts
    )
    if isinstance(result, bool):
        return _Listening.asked(whole, result) if _Listening.asked is not None else result
    return tracked(result, whole) if isinstance(result, (int, float)) else result


def _binary(sign: str, function: Callable[[Any, Any], Any], swapped: bool) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        if not isinstance(other, (int, float)):
            return NotImplemented
        return _of_two(sign, function, other, self) if swapped else _of_two(sign, function, self, other)

    return method


def _unary(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *more: applied(name, function, self, *more)


def _truth(self: Any) -> bool:
    return bool(_of_two("!=", operator.ne, self, 0))


_ARITHMETIC: tuple[tuple[str, str, Callable[[Any, Any], Any]], ...] = (
    ("add", "+", operator.add),
    ("sub", "-", operator.sub),
    ("mul", "*", operator.mul),
    ("truediv", "/", operator.truediv),
    ("floordiv", "//", operator.floordiv),
    ("mod", "%", operator.mod),
    ("pow", "**", operator.pow),
)
_OF_BITS: tuple[tuple[str, str, Callable[[Any, Any], Any]], ...] = (
    ("and", "&", operator.and_),
    ("or", "|", operator.or_),
    ("xor", "^", operator.xor),
    ("lshift", "<<", operator.lshift),
    ("rshift", ">>", operator.rshift),
)
_QUESTIONS: tuple[tuple[str, str, Callable[[Any, Any], Any]], ...] = (
    ("lt", "<", operator.lt),
    ("le", "<=", operator.le),
    ("gt", ">", operator.gt),
    ("ge", ">=", operator.ge),
    ("eq", "==", operator.eq),
    ("ne", "!=", operator.ne),
)
_ALONE: tuple[tuple[str, Callable[..., Any]], ...] = (
    ("neg", operator.neg),
    ("pos", operator.pos),
    ("abs", abs),
    ("round", round),
    ("floor", math.floor),
    ("ceil", math.ceil),
    ("trunc", math.trunc),
)


def _give_methods(kind: type) -> None:
    of_bits = _OF_BITS if issubclass(kind, int) else ()
    for name, sign, function in (*_ARITHMETIC, *of_bits):
        setattr(kind, f"__{name}__", _binary(sign, function, False))
        setattr(kind, f"__r{name}__", _binary(sign, function, True))
    for name, sign, function in _QUESTIONS:
        setattr(kind, f"__{name}__", _binary(sign, function, False))
    for name, single in _ALONE:
        setattr(kind, f"__{name}__", _unary(name, single))
    kind.__bool__ = _truth  # type: ignore[attr-defined]
    setattr(kind, "is_integer", lambda one: math.trunc(one) == one)  # noqa: B010
    setattr(kind, "__divmod__", lambda one, other: (one // other, one % other))  # noqa: B010
    setattr(kind, "__rdivmod__", lambda one, other: (other // one, other % one))  # noqa: B010
    kind.__hash__ = kind.__bases__[0].__hash__  # type: ignore[method-assign]


for _kind in (TrackedInt, TrackedFloat):
    _give_methods(_kind)
TrackedInt.bit_length = _unary("bit_length", int.bit_length)  # type: ignore[method-assign]
TrackedInt.__invert__ = _unary("~", operator.invert)  # type: ignore[method-assign]
