"""Initial contents of variables: numbers, nested braces, and addresses of other variables as relocations."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field

from tilewright.ptx.lexer import IDENTIFIER, Cursor
from tilewright.ptx.literals import expression_value, literal
from tilewright.ptx.syntax import Immediate, Relocation

_PLAIN_BYTES = re.compile(r"\{([\d,\s]*)\}", re.ASCII)
_OCTAL = re.compile(r"\b0\d", re.ASCII)
_SYMBOL = re.compile(
    rf"(?:(generic)\s*\(\s*)?({IDENTIFIER})(?(1)\s*\))\s*(?:([+-])\s*(\d+|0[xX][0-9a-fA-F]+)\b)?", re.ASCII
)
_MASKED = re.compile(
    rf"(?:(0[xX][0-9a-fA-F]+)|mask\s*\(\s*(0[xX][0-9a-fA-F]+)\s*,)\s*(\()?\s*(?:(generic)\s*\(\s*)?({IDENTIFIER})(?(4)\s*\))"
    r"\s*(?:([+-])\s*(\d{1,18}))?\s*\)",
    re.ASCII,
)
_VALUE = re.compile(r"[^,{};]+")
_FLOAT_FORMATS = {"f16": "<e", "f32": "<f", "f64": "<d"}


@dataclass
class _MaskedByte:
    """`0xFF00(symbol)`: one byte of an address."""

    offset: int
    shift: int
    symbol: str
    addend: int
    generic: bool


@dataclass
class _Contents:
    """Bytes gathered so far. `size` may be larger: what is not given is zero."""

    type: str
    element_bytes: int
    data: bytearray = field(default_factory=bytearray)
    relocations: list[Relocation] = field(default_factory=list)
    masked: list[_MaskedByte] = field(default_factory=list)


@dataclass(frozen=True)
class Initialiser:
    data: bytes  # as far as the text gives it
    relocations: tuple[Relocation, ...]


def read_initialiser(cursor: Cursor, type_name: str, element_bytes: int, dimensions: tuple[int, ...]) -> Initialiser:
    """What stands after `=`. `dimensions` is empty for a scalar; a leading 0 is an array sized by what is given."""
    start = cursor.position
    if element_bytes == 1 and dimensions:
        # The compiler's usual form, thousands of bytes long: read in one go.
        plain = cursor.match(_PLAIN_BYTES)
        if plain is not None:
            data = _plain_bytes(plain[1])
            if data is not None:
                return Initialiser(data, ())
            cursor.position = start
    contents = _Contents(type_name, element_bytes)
    if dimensions:
        _read_braces(cursor, contents, dimensions)
    elif cursor.accept("{"):
        _read_value(cursor, contents)
        cursor.expect("}", "after the value")
    else:
        _read_value(cursor, contents)
    relocations = contents.relocations + _joined(cursor, contents.masked, start)
    return Initialiser(bytes(contents.data), tuple(sorted(relocations, key=lambda r: r.offset)))


def _plain_bytes(text: str) -> bytes | None:
    """`1, 2, 3`; None where a value is octal, too large for a byte or missing."""
    if not text.strip():
        return b""
    if _OCTAL.search(text) is not None:
        return None
    try:
        return bytes(map(int, text.split(",")))
    except ValueError:
        return None


def _read_braces(cursor: Cursor, contents: _Contents, dimensions: tuple[int, ...]) -> None:
    cursor.expect("{", "to open the initial values of an array")
    inner_bytes = contents.element_bytes
    for extent in dimensions[1:]:
        inner_bytes *= extent
    while not cursor.accept("}"):
        if cursor.at_end:
            cursor.fail("the initial values have no closing `}`")
        if cursor.character == "{":
            if len(dimensions) < 2:
                cursor.fail("braces nested deeper than the array has dimensions")
            begin = len(contents.data)
            _read_braces(cursor, contents, dimensions[1:])
            missing = inner_bytes - (len(contents.data) - begin)
            if missing < 0:
                cursor.fail("more initial values than the row has elements")
            cursor.claim(missing)
            contents.data += bytes(missing)
        else:
            _read_value(cursor, contents)
        if not cursor.accept(",") and cursor.character != "}":
            cursor.fail("expected `,` or `}` after an initial value")


def _read_value(cursor: Cursor, contents: _Contents) -> None:
    masked = cursor.match(_MASKED)
    if masked is not None:
        _add_masked(cursor, contents, masked)
        return
    start = cursor.position
    value = cursor.match(_VALUE)
    if value is None:
        cursor.fail("expected an initial value")
    text = value[0].strip()
    number = literal(text)
    if number is not None:
        contents.data += _encoded(cursor, contents, number)
        return
    symbol = _SYMBOL.fullmatch(text)
    if symbol is None:
        cursor.fail(f"`{text[:60]}` is no number, address or constant expression", start)
    if contents.element_bytes not in (4, 8):
        cursor.fail("an address needs an element of 4 or 8 bytes", start)
    addend = expression_value(symbol[4]) if symbol[4] else 0
    if addend is None:
        cursor.fail("the offset is no number", start)
    signed = -addend if symbol[3] == "-" else addend
    contents.relocations.append(
        Relocation(len(contents.data), contents.element_bytes, symbol[2], signed, bool(symbol[1]))
    )
    contents.data += bytes(contents.element_bytes)


def _encoded(cursor: Cursor, contents: _Contents, number: Immediate) -> bytes:
    width = contents.element_bytes
    if contents.type in _FLOAT_FORMATS:
        if number.width == width * 8:
            return number.bits.to_bytes(width, "little")
        value = float(number.bits)
        if number.width:
            form = "<f" if number.width == 32 else "<d"
            (value,) = struct.unpack(form, number.bits.to_bytes(number.width // 8, "little"))
        try:
            return struct.pack(_FLOAT_FORMATS[contents.type], value)
        except OverflowError:
            cursor.fail(f"the value does not fit .{contents.type}")
    if number.width and number.width != width * 8:
        cursor.fail(f"a float of {number.width} bits initialises .{contents.type}")
    return (number.bits & ((1 << (8 * width)) - 1)).to_bytes(width, "little")


def _add_masked(cursor: Cursor, contents: _Contents, found: re.Match[str]) -> None:
    mask = int(found[1] or found[2], 16)
    if contents.element_bytes != 1:
        cursor.fail("a masked address needs an element of 1 byte")
    shift = next((shift for shift in range(0, 64, 8) if mask == 0xFF << shift), None)
    if shift is None:
        cursor.fail(f"the mask {mask:#x} does not pick one byte")
    addend = int(found[7]) * (-1 if found[6] == "-" else 1) if found[7] else 0
    contents.masked.append(_MaskedByte(len(contents.data), shift, found[5], addend, bool(found[4])))
    contents.data += b"\0"


def _joined(cursor: Cursor, masked: list[_MaskedByte], start: int) -> list[Relocation]:
    """Masked bytes, put together again to the addresses they are bytes of."""
    relocations: list[Relocation] = []
    position = 0
    while position < len(masked):
        first = masked[position]
        run = masked[position : position + 8]
        whole = len(run) == 8 and all(
            byte.offset == first.offset + index
            and byte.shift == 8 * index
            and (byte.symbol, byte.addend, byte.generic) == (first.symbol, first.addend, first.generic)
            for index, byte in enumerate(run)
        )
        if not whole:
            cursor.fail_unsupported("masked bytes that do not make up one whole 8-byte address", start)
        relocations.append(Relocation(first.offset, 8, first.symbol, first.addend, first.generic))
        position += 8
    return relocations
