"""How each operation of a row program is written in C++: as an operator, a function of the language, or one of ours."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.playbook.cpp_helpers import EXACT_HELPERS, QUICK_HELPERS
from tilewright.playbook.naming import Namer
from tilewright.playbook.row_program import Constant, Kind, Parameter, Pointwise, RowProgram

# Precedences, as C++ has them; higher binds tighter.
TERNARY, OR, AND, EQUALITY, ORDER, SUM, PRODUCT, UNARY, PRIMARY = range(9)


@dataclass(frozen=True)
class Text:
    """An expression and how tightly its outermost operator binds."""

    text: str
    precedence: int = PRIMARY

    def within(self, precedence: int) -> str:
        """The expression as an operand of an operator of this precedence."""
        return self.text if self.precedence >= precedence else f"({self.text})"


_INFIX = {
    "add": ("+", SUM),
    "sub": ("-", SUM),
    "mul": ("*", PRODUCT),
    "div": ("/", PRODUCT),
    "eq": ("==", EQUALITY),
    "ne": ("!=", EQUALITY),
    "xor": ("!=", EQUALITY),  # of booleans
    "lt": ("<", ORDER),
    "le": ("<=", ORDER),
    "gt": (">", ORDER),
    "ge": (">=", ORDER),
    "and": ("&&", AND),
    "or": ("||", OR),
}

_WITH_F = """
exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan tanh sinh cosh asin acos atan asinh acosh atanh erf erfc
floor ceil trunc pow atan2 fmod fmin fmax
"""

_LANGUAGE = {
    **{name: f"{name}f" for name in _WITH_F.split()},
    "round": "rintf",
    "isnan": "isnan",
    "isinf": "isinf",
}

_CASTS = {
    "to_float": "float",
    "to_int": "long long",
    "to_i32": "int",
    "to_i16": "short",
    "to_i8": "signed char",
    "to_u8": "unsigned char",
}

# Too dear to be done twice where the result can be kept.
CHEAP = frozenset(
    {
        *_INFIX,
        *_CASTS,
        "abs",
        "neg",
        "relu",
        "where",
        "clamp_min",
        "clamp_max",
        "not",
        "to_bool",
        "leaky_relu",
        "maximum",
    }
    | {
        "minimum",
        "sign",
        "fmin",
        "fmax",
        "floor",
        "ceil",
        "trunc",
        "round",
        "isnan",
        "isinf",
        "hardswish",
        "hardsigmoid",
    }
) - {"div"}


class Forms:
    """Writes single operations, and remembers which helper functions they need."""

    def __init__(self, program: RowProgram, namer: Namer, quick: bool) -> None:
        self._program = program
        self._namer = namer
        self._quick = quick and program.is_sixteen_bit
        self._helpers: list[str] = []

    def helpers(self) -> list[str]:
        """The texts of the helper functions used so far."""
        table = {**EXACT_HELPERS, **QUICK_HELPERS} if self._quick else EXACT_HELPERS
        return [table[name] for name in self._helpers]

    def helper(self, name: str) -> str:
        if name not in self._helpers:
            self._helpers.append(name)
        return f"{name}_of"

    def leaf(self, index: int) -> Text | None:
        """A constant or a parameter; None for anything else."""
        value = self._program.values[index]
        if isinstance(value, Constant):
            return literal(value.value, self._program.kinds[index])
        return Text(self._namer.parameters[value]) if isinstance(value, Parameter) else None

    def pointwise(self, index: int, arguments: list[Text]) -> Text:
        value = self._program.values[index]
        assert isinstance(value, Pointwise)
        op, first = value.op, arguments[0]
        if op in _INFIX:
            sign, precedence = _INFIX[op]
            return Text(f"{first.within(precedence)} {sign} {arguments[1].within(precedence + 1)}", precedence)
        if op == "neg":
            return Text(f"-{first.within(PRIMARY)}", UNARY)
        if op == "not":
            return Text(f"!{first.within(PRIMARY)}", UNARY)
        if op == "where":
            middle, last = arguments[1].within(OR), arguments[2].within(OR)
            return Text(f"{first.within(OR)} ? {middle} : {last}", TERNARY)
        if op == "to_bool":
            return Text(f"{first.within(ORDER)} != 0", EQUALITY)
        if op in _CASTS:
            return Text(f"static_cast<{_CASTS[op]}>({first.text})")
        if op == "abs" and self._program.kinds[index] is Kind.FLOAT:
            return Text(f"fabsf({first.text})")
        if op == "reciprocal":
            return Text(f"1.0f / {first.within(UNARY)}", PRODUCT)
        listed = ", ".join(one.text for one in arguments)
        if (self._quick and op in QUICK_HELPERS) or op not in _LANGUAGE:
            return Text(f"{self.helper(op)}({listed})")
        return Text(f"{_LANGUAGE[op]}({listed})")


def literal(value: int | float | bool, kind: Kind) -> Text:
    if kind is Kind.BOOL:
        return Text("true" if value else "false")
    if kind is Kind.INT:
        return Text(f"{int(value)}ll", UNARY if value < 0 else PRIMARY)
    number = float(value)
    if math.isnan(number):
        return Text("NAN")
    if math.isinf(number) or abs(number) > 3.5e38:
        return Text("INFINITY" if number > 0 else "-INFINITY", PRIMARY if number > 0 else UNARY)
    shown = f"{number:.9g}"
    if not any(mark in shown for mark in ".e"):
        shown += ".0"
    return Text(f"{shown}f", UNARY if number < 0 else PRIMARY)
