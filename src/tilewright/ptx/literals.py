"""PTX constants: integers, floats by value or by bits, and constant expressions, without symbol addresses."""

from __future__ import annotations

import re
import struct

from tilewright.ptx.syntax import Immediate
from tilewright.records.gpu import WARP_LANES

_INTEGER = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?", re.ASCII)
_FLOAT_BITS = re.compile(r"([+-]?)0(?:[fF]([0-9a-fA-F]{8})|[dD]([0-9a-fA-F]{16}))")
_DECIMAL_FLOAT = re.compile(r"[+-]?(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|[+-]?\d+[eE][+-]?\d+", re.ASCII)
_EXPRESSION_TOKEN = re.compile(
    r"\s*(0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|\d+U?|WARP_SZ|\(\s*\.[su]64\s*\)|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^~!<>?:()])",
    re.ASCII,
)
_LONGEST_EXPRESSION = 256
_MOST_PARENTHESES = 16
_MASK = (1 << 64) - 1

# Binary operators by how tightly they bind, loosest first.
_LEVELS = (
    ("||",),
    ("&&",),
    ("|",),
    ("^",),
    ("&",),
    ("==", "!="),
    ("<", "<=", ">", ">="),
    ("<<", ">>"),
    ("+", "-"),
    ("*", "/", "%"),
)


def integer_value(text: str) -> int | None:
    """The value of an integer literal; None if it is not one, or exceeds 64 bits."""
    if _INTEGER.fullmatch(text) is None or len(text) > 70:
        return None
    digits = text[:-1] if text.endswith("U") else text
    sign = -1 if digits[0] == "-" else 1
    digits = digits.lstrip("+-")
    prefix = digits[:2].lower()
    if prefix == "0x":
        value = int(digits, 16)
    elif prefix == "0b":
        value = int(digits, 2)
    elif len(digits) > 1 and digits[0] == "0":
        if not set(digits) <= set("01234567"):
            return None
        value = int(digits, 8)
    else:
        value = int(digits)
    value *= sign
    return value if -(1 << 63) <= value <= _MASK else None


def literal(text: str) -> Immediate | None:
    """A constant operand; None if the text is no constant. A decimal float such as `1.5` is a double, as in PTX."""
    value = integer_value(text)
    if value is not None:
        return Immediate(value)
    found = _FLOAT_BITS.fullmatch(text)
    if found is not None:
        width = 32 if found[2] is not None else 64
        bits = int(found[2] or found[3], 16)
        return Immediate(bits ^ (1 << (width - 1)) if found[1] == "-" else bits, width)
    if _DECIMAL_FLOAT.fullmatch(text) is not None:
        return Immediate(int.from_bytes(struct.pack("<d", float(text)), "little"), 64)
    if text == "WARP_SZ":
        return Immediate(WARP_LANES)
    value = expression_value(text)
    return None if value is None else Immediate(value)


def expression_value(text: str) -> int | None:
    """The value of a constant integer expression such as `(1 << 4) - 1`; None if it is not one."""
    value = integer_value(text.strip())
    if value is not None:
        return value
    if len(text) > _LONGEST_EXPRESSION or text.count("(") > _MOST_PARENTHESES:
        return None
    tokens: list[str] = []
    position = 0
    stripped = text.strip()
    while position < len(stripped):
        found = _EXPRESSION_TOKEN.match(stripped, position)
        if found is None:
            return None
        tokens.append(found[1].replace(" ", ""))
        position = found.end()
    reader = _Expression(tokens)
    try:
        value = reader.choice()
    except _NotConstant:
        return None
    return value if reader.at_end else None


class _NotConstant(Exception):
    """Not a constant expression, or a division by zero."""


class _Expression:
    """A recursive descent evaluator with signed 64-bit arithmetic."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._next = 0

    @property
    def at_end(self) -> bool:
        return self._next == len(self._tokens)

    def _peek(self) -> str:
        return "" if self.at_end else self._tokens[self._next]

    def _take(self) -> str:
        if self.at_end:
            raise _NotConstant
        token = self._tokens[self._next]
        self._next += 1
        return token

    def choice(self) -> int:
        condition = self._binary(0)
        if self._peek() != "?":
            return condition
        self._take()
        chosen = self.choice()
        if self._take() != ":":
            raise _NotConstant
        otherwise = self.choice()
        return chosen if condition else otherwise

    def _binary(self, level: int) -> int:
        if level == len(_LEVELS):
            return self._unary()
        left = self._binary(level + 1)
        while self._peek() in _LEVELS[level]:
            operator = self._take()
            left = _signed(_apply(operator, left, self._binary(level + 1)))
        return left

    def _unary(self) -> int:
        token = self._take()
        if token == "(":
            value = self.choice()
            if self._take() != ")":
                raise _NotConstant
            return value
        if token in ("-", "+", "~", "!"):
            value = self._unary()
            return {"-": _signed(-value), "+": value, "~": ~value, "!": int(value == 0)}[token]
        if token == "WARP_SZ":
            return WARP_LANES
        if token.startswith("(."):  # a cast to .s64 or .u64: the same 64 bits
            return self._unary()
        value_or_none = integer_value(token)
        if value_or_none is None:
            raise _NotConstant
        return value_or_none


def _signed(value: int) -> int:
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


def _apply(operator: str, left: int, right: int) -> int:
    if operator in ("/", "%"):
        if right == 0:
            raise _NotConstant
        quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
        return quotient if operator == "/" else left - quotient * right
    if operator in ("<<", ">>"):
        if not 0 <= right < 64:
            raise _NotConstant
        return left << right if operator == "<<" else left >> right
    results = {
        "+": left + right,
        "-": left - right,
        "*": left * right,
        "&": left & right,
        "|": left | right,
        "^": left ^ right,
        "&&": int(left != 0 and right != 0),
        "||": int(left != 0 or right != 0),
        "==": int(left == right),
        "!=": int(left != right),
        "<": int(left < right),
        "<=": int(left <= right),
        ">": int(left > right),
        ">=": int(left >= right),
    }
    return results[operator]
