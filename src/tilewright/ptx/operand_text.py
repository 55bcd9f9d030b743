"""Operands as written, read into records: `[%rd1+8]`, `{%r1, %r2}`, `%r1|%p2`, `0f3F800000`, `(a, b)`.

What a name stands for is asked of the scope the instruction stands in.
"""

from __future__ import annotations

import re
from typing import Protocol

from tilewright.ptx.lexer import IDENTIFIER
from tilewright.ptx.literals import expression_value, literal
from tilewright.ptx.syntax import (
    Address,
    Immediate,
    Label,
    Negated,
    Operand,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
    Tuple_,
    Vector,
)

Named = Register | Special | Symbol | Label | Vector


class Names(Protocol):
    """What the identifiers in a piece of text mean."""

    def lookup(self, name: str) -> Named | None: ...


class OperandError(Exception):
    """Text that is no operand. The parser adds the line."""


class UnknownOperand(OperandError):
    """An operand that PTX has and nothing here reads."""


_NAME = re.compile(rf"{IDENTIFIER}(?:\.[xyzwrgba])?", re.ASCII)
_NAME_AND_OFFSET = re.compile(rf"({IDENTIFIER}(?:\.[xyzwrgba])?)\s*([+-])\s*(.+)", re.ASCII | re.DOTALL)
_SELECTOR = re.compile(rf"{IDENTIFIER}\.[bh][0-3]+", re.ASCII)
_CLOSING = {"{": "}", "[": "]", "(": ")"}
_MOST_OPERANDS = 512


def split_operands(text: str) -> list[str]:
    """The pieces between top-level commas, stripped."""
    if "{" not in text and "[" not in text and "(" not in text:
        return [piece.strip() for piece in text.split(",")]
    pieces: list[str] = []
    closing: list[str] = []
    begin = 0
    for position, character in enumerate(text):
        if character in _CLOSING:
            closing.append(_CLOSING[character])
        elif character in "}])":
            if not closing or closing.pop() != character:
                raise OperandError(f"`{character}` closes nothing")
        elif character == "," and not closing:
            pieces.append(text[begin:position].strip())
            begin = position + 1
    if closing:
        raise OperandError(f"no closing `{closing[-1]}`")
    pieces.append(text[begin:].strip())
    return pieces


def read_operand(text: str, names: Names) -> Operand:
    """One operand. Raises `OperandError` for what is none and for a name nobody declared."""
    first = text[:1]
    if first == "[":
        return _address(text, names)
    if first == "{":
        return _vector(text, names)
    if first == "(" and text.endswith(")"):
        number = literal(text)
        return number if number is not None else _tuple(text, names)
    if text == "_":
        return Sink()
    if _NAME.fullmatch(text) is not None:
        found = names.lookup(text)
        if found is not None:
            return found
        if text != "WARP_SZ":
            raise OperandError(f"`{text}` is not declared")
    if first == "!":
        register = names.lookup(text[1:].strip())
        if isinstance(register, Register):
            return Negated(register)
    number = literal(text)
    if number is not None:
        return number
    if "|" in text:
        return _pair(text, names)
    return _symbol_and_offset(text, names)


def _pair(text: str, names: Names) -> Pair:
    pieces = [piece.strip() for piece in text.split("|")]
    if len(pieces) != 2:
        raise OperandError(f"`{text}` is no pair of destinations")
    items = [None if piece == "_" else _destination(piece, names) for piece in pieces]
    return Pair(items[0], items[1])


def _destination(text: str, names: Names) -> Register:
    found = names.lookup(text)
    if not isinstance(found, Register):
        raise OperandError(f"`{text}` is no declared register")
    return found


def _vector(text: str, names: Names) -> Vector:
    if not text.endswith("}"):
        raise OperandError(f"`{text}` has no closing brace")
    inner = text[1:-1].strip()
    if "{" in inner or "[" in inner:
        raise OperandError("a vector inside a vector")
    pieces = split_operands(inner)
    if len(pieces) > _MOST_OPERANDS:
        raise OperandError(f"a vector of more than {_MOST_OPERANDS} items")
    return Vector(tuple(None if piece == "_" else read_operand(piece, names) for piece in pieces))


def _tuple(text: str, names: Names) -> Tuple_:
    inner = text[1:-1].strip()
    if not inner:
        return Tuple_(())
    if "(" in inner or "[" in inner or "{" in inner:
        raise OperandError("brackets inside a list of arguments")
    return Tuple_(tuple(read_operand(piece, names) for piece in split_operands(inner)))


def _address(text: str, names: Names) -> Address:
    if not text.endswith("]"):
        raise OperandError(f"`{text}` has no closing bracket")
    pieces = split_operands(text[1:-1])
    base, offset = _base_and_offset(pieces[0], names)
    if len(pieces) == 1:
        return Address(base, offset)
    return Address(base, offset, tuple(_coordinate(piece, names) for piece in pieces[1:]))


def _coordinate(text: str, names: Names) -> Operand:
    if text.startswith("["):
        raise OperandError("an address inside an address")
    return read_operand(text, names)


def _base_and_offset(text: str, names: Names) -> tuple[Register | Special | Symbol | Immediate, int]:
    found = names.lookup(text)
    offset = 0
    if found is None:
        parts = _NAME_AND_OFFSET.fullmatch(text)
        if parts is None:
            value = expression_value(text)
            if value is None:
                raise OperandError(f"`{text}` is no address" if _NAME.fullmatch(text) is None else _undeclared(text))
            return Immediate(value), 0
        found = names.lookup(parts[1])
        if found is None:
            raise OperandError(_undeclared(parts[1]))
        offset = _offset(parts[2], parts[3])
    if isinstance(found, Label | Vector):
        raise OperandError(f"`{text}` is no address")
    return found, offset


def _symbol_and_offset(text: str, names: Names) -> Symbol:
    parts = _NAME_AND_OFFSET.fullmatch(text)
    if parts is None:
        if _SELECTOR.fullmatch(text) is not None:
            raise UnknownOperand(f"`{text}`: parts of a register are not supported")
        raise OperandError(f"`{text}` is no operand")
    found = names.lookup(parts[1])
    if found is None:
        raise OperandError(_undeclared(parts[1]))
    if not isinstance(found, Symbol):
        raise OperandError(f"`{text}`: only the address of a variable can carry an offset")
    return Symbol(found.name, _offset(parts[2], parts[3]))


def _offset(sign: str, text: str) -> int:
    value = expression_value(text)
    if value is None:
        raise OperandError(f"the offset `{text}` is no constant")
    return -value if sign == "-" else value


def _undeclared(name: str) -> str:
    return f"`{name}` is not declared"
