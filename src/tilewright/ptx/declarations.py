"""Parses declarations: variables, parameters, registers, and performance-tuning directives of functions."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field

from tilewright.ptx.lexer import IDENTIFIER, Cursor
from tilewright.ptx.literals import expression_value, literal
from tilewright.ptx.operands import TYPE_BYTES
from tilewright.ptx.syntax import Immediate, ParameterDeclaration, Relocation, Space, Variable

# -- initialisers --

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
    """The bytes read so far."""

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
    """The initialiser after `=`. `dimensions` is empty for a scalar; a leading 0 is an unsized array."""
    start = cursor.position
    if element_bytes == 1 and dimensions:
        # The compiler's usual form, thousands of bytes long.
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
    """Join masked bytes to whole addresses."""
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


# -- declarations --

_OPAQUE_TYPES = ("texref", "samplerref", "surfref")
_SPACES = {space.value: space for space in Space}
_LARGEST_VARIABLE_BYTES = 1 << 40
_MOST_DIMENSIONS = 8

_DOTTED = re.compile(r"\.([\w$]+(?:::[\w$]+)*)", re.ASCII)
_DIMENSION = re.compile(r"\[([^\[\]{};]*)\]")
_COUNT = re.compile(r"<\s*(\d+)\s*>", re.ASCII)
# `.global .align 4 .u32 NAME = 3;`, the most frequent declaration.
_PLAIN_GLOBAL = re.compile(
    rf"\.(global|const)\s+\.align\s+(1|2|4|8|16|32|64|128|256|512|1024)\s+\.([bsu](?:8|16|32|64))\s+({IDENTIFIER})\s*(?:=\s*(-?(?:0|[1-9]\d*))\s*)?;\s*",
    re.ASCII,
)
_LONE_UNDERSCORE = re.compile(r"_(?![\w$])")
_UNIT_VECTORS = {"v2": 2, "v4": 4, "v8": 8}


@dataclass(frozen=True)
class RegisterDeclaration:
    """`name`, or `name0` to `name(count - 1)`; `lanes` over 1 for a vector register."""

    name: str
    type: str
    count: int | None
    lanes: int


@dataclass(frozen=True)
class Tuning:
    """The performance-tuning directives of a function that affect execution."""

    max_threads: tuple[int, ...] | None = None
    cluster: tuple[int, ...] | None = None


def read_plain_global(cursor: Cursor) -> Variable | None:
    """A fast path for the most frequent declaration; on None the cursor has not moved."""
    found = _PLAIN_GLOBAL.match(cursor.text, cursor.position)
    if found is None:
        return None
    space, align, type_name, name, value = found.groups()
    size = TYPE_BYTES[type_name]
    if value is not None and len(value) > 19:
        return None
    cursor.position = found.end()
    initial = None if value is None else (int(value) & ((1 << 8 * size) - 1)).to_bytes(size, "little")
    return Variable(_SPACES[space], name, type_name, size, int(align), initial, (), False)


def read_variables(cursor: Cursor, external: bool) -> list[Variable]:
    """`.space .align N .type name[dimensions] = initial, ...;`, the cursor at the space."""
    start = cursor.position
    word = read_directive(cursor)
    if word not in _SPACES:
        cursor.fail(f"`.{word}` is no space for a variable", start)
    space = _SPACES[word]
    if space is Space.CONST:
        cursor.match(_DIMENSION)  # a constant bank: ignored
    align, type_name, lanes = _read_attributes(cursor)
    element_bytes = (8 if type_name in _OPAQUE_TYPES else TYPE_BYTES[type_name]) * lanes
    variables: list[Variable] = []
    while True:
        name = cursor.identifier("the name of a variable")
        if cursor.character == "<":
            cursor.fail_unsupported("a range of variables")
        dimensions = _read_dimensions(cursor)
        initialiser = None
        if cursor.accept("="):
            if lanes > 1:
                dimensions_given = (*dimensions, lanes)
                initialiser = read_initialiser(cursor, type_name, element_bytes // lanes, dimensions_given)
            else:
                initialiser = read_initialiser(cursor, type_name, element_bytes, dimensions)
        size = _size_bytes(cursor, element_bytes, dimensions, initialiser, external, start)
        initial, relocations = _padded(cursor, initialiser, size)
        variables.append(Variable(space, name, type_name, size, align or element_bytes, initial, relocations, external))
        if not cursor.accept(","):
            break
    cursor.expect(";", "after a variable")
    return variables


def read_parameters(cursor: Cursor) -> tuple[ParameterDeclaration, ...]:
    """`(.param .b64 a, .param .align 8 .b8 b[24])`; nothing where there is no parenthesis."""
    if not cursor.accept("("):
        return ()
    parameters: list[ParameterDeclaration] = []
    while not cursor.accept(")"):
        directive = read_directive(cursor)
        if directive == "reg":
            cursor.fail_unsupported("parameters in registers")
        if directive != "param":
            cursor.fail(f"expected `.param`, found `.{directive}`")
        align, type_name, lanes = _read_attributes(cursor)
        element_bytes = (8 if type_name in _OPAQUE_TYPES else TYPE_BYTES[type_name]) * lanes
        name = "_" if cursor.match(_LONE_UNDERSCORE) else cursor.identifier("the name of a parameter")
        dimensions = _read_dimensions(cursor)
        size = element_bytes
        for extent in dimensions:
            size *= extent
        if size > 1 << 20:
            cursor.fail("a parameter of over 1 MiB")
        parameters.append(ParameterDeclaration(name, type_name, size, align or element_bytes))
        if not cursor.accept(",") and cursor.character != ")":
            cursor.fail("expected `,` or `)` after a parameter")
    return tuple(parameters)


def read_registers(cursor: Cursor) -> list[RegisterDeclaration]:
    """What follows `.reg`: `.b32 %r<12>;`, `.pred p, q;`, `.v4 .f32 v;`."""
    lanes = 1
    type_name = read_directive(cursor)
    if type_name in _UNIT_VECTORS:
        lanes = _UNIT_VECTORS[type_name]
        type_name = read_directive(cursor)
    if type_name not in TYPE_BYTES and type_name != "pred":
        cursor.fail(f"registers of an unknown type `.{type_name}`")
    registers: list[RegisterDeclaration] = []
    while True:
        name = cursor.identifier("the name of a register")
        count = cursor.match(_COUNT)
        if count is not None and len(count[1]) > 9:
            cursor.fail("too many registers")
        registers.append(RegisterDeclaration(name, type_name, int(count[1]) if count else None, lanes))
        if not cursor.accept(","):
            break
    cursor.expect(";", "after a register declaration")
    return registers


def read_tuning(cursor: Cursor) -> Tuning:
    """Tuning directives such as `.maxntid 256, 1, 1 .minnctapersm 2`."""
    max_threads: tuple[int, ...] | None = None
    cluster: tuple[int, ...] | None = None
    while cursor.character == ".":
        directive = read_directive(cursor)
        if directive in ("maxntid", "reqntid"):
            max_threads = _read_extents(cursor, directive)
        elif directive == "reqnctapercluster":
            cluster = _read_extents(cursor, directive)
        elif directive == "pragma":
            cursor.string("a pragma")
            while cursor.accept(","):
                cursor.string("a pragma")
            cursor.accept(";")
        elif directive == "attribute":
            _skip_attribute(cursor)
        elif directive in _TUNING_WITH_A_NUMBER:
            cursor.integer(f"the number of .{directive}")
        elif directive not in _TUNING_ALONE:
            cursor.fail(f"unknown directive `.{directive}` of a function")
    return Tuning(max_threads, cluster)


# Ignored: they affect only speed and registers.
_TUNING_WITH_A_NUMBER = (
    "maxnreg",
    "minnctapersm",
    "maxnctapersm",
    "maxclusterrank",
    "abi_preserve",
    "abi_preserve_control",
    "local_maxnreg",
)
_TUNING_ALONE = ("noreturn", "explicitcluster", "blocksareclusters", "unified")


def read_directive(cursor: Cursor) -> str:
    """`.word`, without its dot."""
    found = cursor.match(_DOTTED)
    if found is None:
        cursor.fail("expected a directive or a type, beginning with a dot")
    return found[1]


def _read_extents(cursor: Cursor, what: str) -> tuple[int, ...]:
    extents = [cursor.integer(f"an extent of .{what}")]
    while cursor.accept(","):
        extents.append(cursor.integer(f"an extent of .{what}"))
    if len(extents) > 3 or any(extent > 1 << 31 for extent in extents):
        cursor.fail(f".{what} wants one to three extents of at most 2147483648")
    return tuple(extents)


def _read_attributes(cursor: Cursor) -> tuple[int, str, int]:
    """The alignment (0 if not given), the type and the vector lanes, in any order."""
    align, type_name, lanes = 0, "", 1
    while cursor.character == ".":
        start = cursor.position
        word = read_directive(cursor)
        if word == "align":
            align = cursor.integer("an alignment")
            if align not in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024):
                cursor.fail(f"{align} is no alignment; powers of two up to 1024 are", start)
        elif word in _UNIT_VECTORS:
            lanes = _UNIT_VECTORS[word]
        elif word in TYPE_BYTES or word in _OPAQUE_TYPES:
            type_name = word
        elif word == "attribute":
            _skip_attribute(cursor)
        elif word not in ("ptr", *_SPACES):  # `.ptr .global .align 16`: a hint about what a pointer points to
            cursor.fail(f"`.{word}` is no type, alignment or attribute of a variable", start)
        elif word == "ptr":
            pointed = _read_pointee(cursor)
            if not type_name and pointed:
                cursor.fail("a .ptr hint before the type", start)
    if not type_name:
        cursor.fail("a declaration without a type")
    return align, type_name, lanes


def _read_pointee(cursor: Cursor) -> bool:
    """Steps over `.global .align 16` behind `.ptr`."""
    stepped = False
    while cursor.character == ".":
        start = cursor.position
        word = read_directive(cursor)
        if word == "align":
            cursor.integer("an alignment")
        elif word not in _SPACES:
            cursor.position = start
            break
        stepped = True
    return stepped


def _skip_attribute(cursor: Cursor) -> None:
    cursor.expect("(", "after .attribute")
    depth = 1
    while depth:
        if cursor.at_end:
            cursor.fail(".attribute has no closing `)`")
        depth += {"(": 1, ")": -1}.get(cursor.character, 0)
        cursor.position += 1
    cursor.skip_space()


def _read_dimensions(cursor: Cursor) -> tuple[int, ...]:
    """`[4][8]`; 0 for an extent left out."""
    extents: list[int] = []
    while True:
        found = cursor.match(_DIMENSION)
        if found is None:
            return tuple(extents)
        extent = expression_value(found[1]) if found[1].strip() else 0
        if extent is None or extent < 0:
            cursor.fail(f"`{found[1][:40]}` is no array extent")
        if not found[1].strip() and extents:
            cursor.fail("only the first extent of an array may be left out")
        extents.append(extent)
        if len(extents) > _MOST_DIMENSIONS:
            cursor.fail(f"an array of more than {_MOST_DIMENSIONS} dimensions")


def _size_bytes(
    cursor: Cursor,
    element_bytes: int,
    dimensions: tuple[int, ...],
    initialiser: Initialiser | None,
    external: bool,
    start: int,
) -> int:
    size = element_bytes
    for extent in dimensions:
        size *= extent
    if dimensions and not dimensions[0]:
        if initialiser is None and not external:
            cursor.fail("an array without an extent needs initial values, or to be .extern", start)
        size = len(initialiser.data) if initialiser is not None else 0
    if size > _LARGEST_VARIABLE_BYTES:
        cursor.fail("a variable of over a terabyte", start)
    if initialiser is not None and len(initialiser.data) > size:
        cursor.fail("more initial values than the variable has room for", start)
    return size


def _padded(cursor: Cursor, initialiser: Initialiser | None, size: int) -> tuple[bytes | None, tuple[Relocation, ...]]:
    """The initial bytes, zero-padded to the variable's size."""
    if initialiser is None:
        return None, ()
    missing = size - len(initialiser.data)
    cursor.claim(missing)
    return initialiser.data + bytes(missing), initialiser.relocations
