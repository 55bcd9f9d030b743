"""Lowering of bit counting, bit fields, permutes, logic tables, funnel shifts and packed integer arithmetic."""

from __future__ import annotations

from tilewright.ptx.classes import InstructionClass
from tilewright.ptx.lower_builder import FunctionBuilder, opcodes
from tilewright.ptx.lower_integer import elementwise
from tilewright.ptx.operands import TYPE_BYTES, Modifiers, only_type, operands_of, unsupported
from tilewright.ptx.syntax import Immediate, Instruction, Operand, Pair


def count_bits(b: FunctionBuilder, i: Instruction) -> None:
    kind = only_type(i, "b32", "b64")
    d, x = operands_of(i, 2)
    size = TYPE_BYTES[kind]
    b.emit(f"{i.opcode}_{8 * size}", (b.target(d, size if i.opcode == "brev" else 4), b.source(x, size)))


def bfind(b: FunctionBuilder, i: Instruction) -> None:
    modifiers = Modifiers.of(i)
    kind = modifiers.type("u32", "s32", "u64", "s64")
    flags = int(modifiers.flag("shiftamt"))
    d, x = modifiers.finish(2)
    b.emit(f"bfind_{kind}", (b.target(d, 4), b.source(x, TYPE_BYTES[kind])), flags=flags)


def bfe(b: FunctionBuilder, i: Instruction) -> None:
    kind = only_type(i, "u32", "s32", "u64", "s64")
    d, x, at, length = operands_of(i, 4)
    size = TYPE_BYTES[kind]
    b.emit(f"bfe_{kind}", (b.target(d, size), b.source(x, size), b.source(at, 4), b.source(length, 4)))


def bfi(b: FunctionBuilder, i: Instruction) -> None:
    size = TYPE_BYTES[only_type(i, "b32", "b64")]
    d, x, y, at, length = operands_of(i, 5)
    sources = (b.source(x, size), b.source(y, size), b.source(at, 4), b.source(length, 4))
    b.emit(f"bfi_{8 * size}", (b.target(d, size), *sources))


def bmsk_szext(b: FunctionBuilder, i: Instruction) -> None:
    modifiers = Modifiers.of(i)
    kind = modifiers.type("b32", "u32", "s32")
    wrap = modifiers.need("clamp", "wrap") == "wrap"
    modifiers.finish(3)
    name = "bmsk_32" if i.opcode == "bmsk" else f"szext_{kind}"
    elementwise(b, i, name, 4, flags=int(wrap))


def fns(b: FunctionBuilder, i: Instruction) -> None:
    only_type(i, "b32")
    operands_of(i, 4)
    elementwise(b, i, "fns", 4)


_PERMUTES = ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")


def prmt(b: FunctionBuilder, i: Instruction) -> None:
    modifiers = Modifiers.of(i)
    modifiers.need("b32")
    mode = modifiers.one_of(*_PERMUTES)
    modifiers.finish(4)
    elementwise(b, i, "prmt", 4, flags=0 if mode is None else 1 + _PERMUTES.index(mode))


def lop3(b: FunctionBuilder, i: Instruction) -> None:
    modifiers = Modifiers.of(i)
    modifiers.type("b32")
    boolean = modifiers.one_of("or", "and")
    modifiers.finish()
    if boolean is None:
        d, x, y, z, table = operands_of(i, 5)
        sources = (b.source(x, 4), b.source(y, 4), b.source(z, 4))
        b.emit("lop3", (b.target(d, 4), *sources), imm=_literal(b, table))
        return
    pair, x, y, z, table, q = operands_of(i, 6)
    first, second = (pair.first, pair.second) if isinstance(pair, Pair) else (None, pair)
    sources = (b.source(x, 4), b.source(y, 4), b.source(z, 4))
    targets = (b.target(first, 4), *sources, b.predicate_target(second), b.predicate(q))
    b.emit("lop3_pred", targets, imm=_literal(b, table), flags=int(boolean == "and"))


def _literal(b: FunctionBuilder, operand: Operand) -> int:
    if not isinstance(operand, Immediate):
        raise b.wrong("an integer literal belongs here")
    return operand.bits & 0xFF


def shf(b: FunctionBuilder, i: Instruction) -> None:
    modifiers = Modifiers.of(i)
    modifiers.type("b32")
    direction = modifiers.need("l", "r")
    wrap = modifiers.need("clamp", "wrap") == "wrap"
    modifiers.finish(4)
    elementwise(b, i, f"shf_{direction}", 4, flags=int(wrap))


def dot(b: FunctionBuilder, i: Instruction) -> None:
    modifiers = Modifiers.of(i)
    second = modifiers.type("u32", "s32")
    first = modifiers.type("u32", "s32")
    flags = (1 if first == "s32" else 0) | (2 if second == "s32" else 0)
    if i.opcode == "dp2a":
        flags |= 4 if modifiers.need("lo", "hi") == "hi" else 0
    modifiers.finish(4)
    elementwise(b, i, i.opcode, 4, flags=flags)


_VIDEO = ("vadd", "vsub", "vavrg", "vabsdiff", "vmin", "vmax")
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def video(b: FunctionBuilder, i: Instruction) -> None:
    """Two halves or four bytes of 32 bits at once."""
    modifiers = Modifiers.of(i)
    operation, parts = i.opcode[:-1], int(i.opcode[-1])
    if operation == "vset":
        flags = 6 + _COMPARISONS.index(modifiers.need(*_COMPARISONS))
        result = "u32"
    else:
        flags = _VIDEO.index(operation)
        result = modifiers.left.pop(0) if modifiers.left[:1] in (["u32"], ["s32"]) else ""
    mod = (8 if modifiers.flag("sat") else 0) | (16 if modifiers.flag("add") else 0)
    second = modifiers.type("u32", "s32")
    first = modifiers.type("u32", "s32")
    modifiers.finish()
    if not result:
        raise unsupported(i, "no type of the result")
    operands_of(i, 4)
    mod |= (1 if first == "s32" else 0) | (2 if second == "s32" else 0) | (4 if result == "s32" else 0)
    sources = [b.source(operand, 4) for operand in i.operands[1:]]
    b.emit("video", (b.target(i.operands[0], 4), *sources), flags=flags, count=parts, mod=mod)


OPCODES = opcodes(
    InstructionClass.INTEGER,
    {
        **dict.fromkeys(("popc", "clz", "brev"), count_bits),
        "bfind": bfind,
        "bfe": bfe,
        "bfi": bfi,
        **dict.fromkeys(("bmsk", "szext"), bmsk_szext),
        "fns": fns,
        "prmt": prmt,
        "lop3": lop3,
        "shf": shf,
        **{f"{name}{parts}": video for name in (*_VIDEO, "vset") for parts in (2, 4)},
        **dict.fromkeys(("dp4a", "dp2a"), dot),
    },
)
