"""Lowering of moves, integer arithmetic, logic and bit operations."""

from __future__ import annotations

from tilewright.ptx.classes import InstructionClass
from tilewright.ptx.lower_builder import FunctionBuilder, Lowering, opcodes
from tilewright.ptx.operands import REGISTER_BYTES, TYPE_BYTES, Modifiers, only_type, operands_of, unsupported
from tilewright.ptx.syntax import Immediate, Instruction, Operand, Pair, SymbolOperand, Vector

INTEGERS = ("u16", "s16", "u32", "s32", "u64", "s64")
BITS = ("b16", "b32", "b64")
FTZ, CARRY_IN, CARRY_OUT = 8, 512, 1024


def elementwise(
    b: FunctionBuilder, i: Instruction, name: str, size: int, *, mod: int = 0, flags: int = 0, is_float: bool = False
) -> None:
    """d = op(a, b, c), all of one width."""
    sources = [b.source(operand, size, is_float=is_float) for operand in i.operands[1:]]
    b.emit(name, (b.target(i.operands[0], size), *sources), mod=mod, flags=flags)


# -- moves --


def mov(b: FunctionBuilder, i: Instruction) -> None:
    modifiers = Modifiers.of(i)
    if modifiers.left == ["pred"]:
        destination, source = operands_of(i, 2)
        b.emit("mov_pred", (b.predicate_target(destination), b.predicate(source)))
        return
    kind = modifiers.type(*BITS, *INTEGERS, "f16", "bf16", "f32", "f64", "b128", "f16x2", "bf16x2")
    destination, source = modifiers.finish(2)
    size = REGISTER_BYTES[kind]
    if isinstance(source, Vector):
        _pack(b, i, destination, source, size)
    elif isinstance(destination, Vector):
        _unpack(b, i, destination, source, size)
    elif size == 16:
        to, origin = b.target(destination, 16), b.source(source, 16)
        b.emit("mov_64", (to, origin))
        b.emit("mov_64", (to + 256, origin + 256))
    else:
        is_float = kind in ("f32", "f64")
        b.emit(f"mov_{8 * size}", (b.target(destination, size), b.source(source, size, is_float=is_float)))


def _pack(b: FunctionBuilder, i: Instruction, destination: Operand, source: Vector, size: int) -> None:
    parts = len(source.items)
    part_bytes = size // parts
    sources = [b.source(item, part_bytes) for item in source.items]
    to = b.target(destination, size)
    if size == 16 and parts == 2:
        held = b.temporary(8)  # a part may be half of the destination
        b.emit("mov_64", (held, sources[1]))
        b.emit("mov_64", (to, sources[0]))
        b.emit("mov_64", (to + 256, held))
    elif (parts, part_bytes) in ((2, 2), (2, 4), (4, 2)):
        b.emit(f"pack_{parts}x{8 * part_bytes}", (to, *sources))
    else:
        raise unsupported(i, f"packing {parts} parts into {8 * size} bits")


def _unpack(b: FunctionBuilder, i: Instruction, destination: Vector, source: Operand, size: int) -> None:
    parts = len(destination.items)
    part_bytes = size // parts
    origin = b.source(source, size)
    targets = [b.target(item, part_bytes) for item in destination.items]
    if size == 16 and parts == 2:
        for half, target in enumerate(targets):
            if target >= 0:
                b.emit("mov_64", (target, origin + 256 * half))
    elif (parts, part_bytes) in ((2, 2), (2, 4), (4, 2)):
        padded = (*targets, *(-1,) * (4 - parts))
        b.emit(f"unpack_{parts}x{8 * part_bytes}", (*padded, origin))
    else:
        raise unsupported(i, f"unpacking {8 * size} bits into {parts} parts")


def selp(b: FunctionBuilder, i: Instruction) -> None:
    kind = only_type(i, *BITS, *INTEGERS, "f32", "f64", "f16", "bf16", "pred")
    d, x, y, p = operands_of(i, 4)
    if kind == "pred":
        b.emit("selp_pred", (b.predicate_target(d), b.predicate(x), b.predicate(y), b.predicate(p)))
        return
    size = REGISTER_BYTES[kind]
    is_float = kind in ("f32", "f64")
    sources = (b.source(x, size, is_float=is_float), b.source(y, size, is_float=is_float))
    b.emit(f"selp_{8 * size}", (b.target(d, size), *sources, b.predicate(p)))


def slct(b: FunctionBuilder, i: Instruction) -> None:
    modifiers = Modifiers.of(i)
    by = modifiers.type("s32", "f32")
    kind = modifiers.type(*BITS, *INTEGERS, "f32", "f64")
    mod = FTZ if modifiers.flag("ftz") else 0
    d, x, y, c = modifiers.finish(4)
    size = REGISTER_BYTES[kind]
    name = f"slct_f32_{8 * size}" if by == "f32" else f"slct_{8 * size}"
    b.emit(name, (b.target(d, size), b.source(x, size), b.source(y, size), b.source(c, 4)), mod=mod)


# -- arithmetic --


def add_sub(b: FunctionBuilder, i: Instruction) -> None:
    """add, sub and their forms with carry, integers only."""
    modifiers = Modifiers.of(i)
    kind = modifiers.type(*INTEGERS, "u16x2", "s16x2")
    carries = (CARRY_IN if i.opcode in ("addc", "subc") else 0) | (CARRY_OUT if modifiers.flag("cc") else 0)
    saturate = modifiers.flag("sat")
    modifiers.finish(3)
    base = i.opcode[:3]
    if kind.endswith("x2"):
        if i.opcode != "add":
            raise unsupported(i, f"{i.opcode} of packed integers")
        elementwise(b, i, "add_16x2", 4)
        return
    size = TYPE_BYTES[kind]
    if carries:
        sources = (b.source(i.operands[1], size), b.source(i.operands[2], size))
        b.emit(f"carry_{base}_{8 * size}", (b.target(i.operands[0], size), *sources, -1), mod=carries)
    elif saturate:
        if kind != "s32":
            raise unsupported(i, f".sat of .{kind}")
        elementwise(b, i, f"{base}_sat_s32", 4)
    else:
        elementwise(b, i, f"{base}_{8 * size}", size)


def mul_mad(b: FunctionBuilder, i: Instruction) -> None:
    """mul, mad and madc of integers."""
    modifiers = Modifiers.of(i)
    kind = modifiers.type(*INTEGERS)
    part = modifiers.need("lo", "hi", "wide")
    carries = (CARRY_IN if i.opcode == "madc" else 0) | (CARRY_OUT if modifiers.flag("cc") else 0)
    saturate = modifiers.flag("sat")
    modifiers.finish()
    size = TYPE_BYTES[kind]
    base = "mul" if i.opcode == "mul" else "mad"
    operands_of(i, 3 if base == "mul" else 4)
    if part == "wide":
        if size == 8 or carries or saturate:
            raise unsupported(i, "this wide product")
        sources = [b.source(operand, size) for operand in i.operands[1:3]]
        sources += [b.source(operand, 2 * size) for operand in i.operands[3:]]
        b.emit(f"{base}_wide_{kind}", (b.target(i.operands[0], 2 * size), *sources))
    elif carries:
        sources = [b.source(operand, size) for operand in i.operands[1:]]
        flags = 0 if part == "lo" else 2 if kind[0] == "s" else 1
        b.emit(f"carry_mad_{8 * size}", (b.target(i.operands[0], size), *sources), mod=carries, flags=flags)
    elif saturate:
        if (base, part, kind) != ("mad", "hi", "s32"):
            raise unsupported(i, ".sat here")
        elementwise(b, i, "mad_hi_sat_s32", 4)
    else:
        elementwise(b, i, f"{base}_hi_{kind}" if part == "hi" else f"{base}_{8 * size}", size)


def mul24_mad24(b: FunctionBuilder, i: Instruction) -> None:
    modifiers = Modifiers.of(i)
    kind = modifiers.type("u32", "s32")
    part = modifiers.need("lo", "hi")
    modifiers.finish(3 if i.opcode == "mul24" else 4)
    elementwise(b, i, f"{i.opcode}_hi_{kind}" if part == "hi" else f"{i.opcode}_{kind}", 4)


def typed(*types: str, operands: int = 3) -> Lowering:
    """An operation whose name in the interpreter is the opcode and the type."""

    def lower(b: FunctionBuilder, i: Instruction) -> None:
        kind = only_type(i, *types)
        operands_of(i, operands)
        elementwise(b, i, f"{i.opcode}_{kind}", TYPE_BYTES[kind])

    return lower


def logic(b: FunctionBuilder, i: Instruction) -> None:
    """Bits of any width, whose sign does not matter, or predicates."""
    kind = only_type(i, *BITS, *(("pred",) if i.opcode != "cnot" else ()))
    operands_of(i, 2 if i.opcode in ("not", "cnot") else 3)
    if kind == "pred":
        sources = [b.predicate(operand) for operand in i.operands[1:]]
        b.emit(f"{i.opcode}_pred", (b.predicate_target(i.operands[0]), *sources))
    else:
        elementwise(b, i, f"{i.opcode}_{8 * TYPE_BYTES[kind]}", TYPE_BYTES[kind])


def shift(b: FunctionBuilder, i: Instruction) -> None:
    kind = only_type(i, *BITS, *INTEGERS)
    d, x, by = operands_of(i, 3)
    size = TYPE_BYTES[kind]
    sign = "s" if kind[0] == "s" else "u"
    name = f"shl_{8 * size}" if i.opcode == "shl" else f"shr_{sign}{8 * size}"
    b.emit(name, (b.target(d, size), b.source(x, size), b.source(by, 4)))


# -- addresses --

SPACES = {"generic": 0, "global": 1, "shared": 2, "local": 3, "param": 4, "const": 1, "cluster": 5}


_SPACE_NAMES = ("global", "shared", "shared::cta", "shared::cluster", "local", "const", "param", "param::entry")


def _space_number(name: str) -> int:
    return SPACES["cluster" if name == "shared::cluster" else name.split("::")[0]]


def cvta(b: FunctionBuilder, i: Instruction) -> None:
    modifiers = Modifiers.of(i)
    kind = modifiers.type("u64", "u32")
    if kind == "u32":
        raise unsupported(i, "32-bit addresses")
    to = modifiers.flag("to")
    space = modifiers.need(*_SPACE_NAMES)
    d, a = modifiers.finish(2)
    if isinstance(a, SymbolOperand):
        placed = b.place_symbol(a.name)
        if placed is not None and placed.kind == "frame":
            raise unsupported(i, "the address of a function's parameter")
    b.emit("cvta_to" if to else "cvta", (b.target(d, 8), b.source(a, 8)), mod=_space_number(space) << 10)


def isspacep(b: FunctionBuilder, i: Instruction) -> None:
    modifiers = Modifiers.of(i)
    space = modifiers.need(*_SPACE_NAMES)
    p, a = modifiers.finish(2)
    if space == "const":
        raise unsupported(i, "isspacep.const")
    b.emit("isspacep", (b.predicate_target(p), b.source(a, 8)), mod=_space_number(space) << 10)


OPCODES = {
    **opcodes(
        InstructionClass.INTEGER,
        {
            "selp": selp,
            "slct": slct,
            **dict.fromkeys(("addc", "subc"), add_sub),
            "madc": mul_mad,
            **dict.fromkeys(("mul24", "mad24"), mul24_mad24),
            "rem": typed(*INTEGERS),
            "sad": typed(*INTEGERS, operands=4),
            **dict.fromkeys(("and", "or", "xor", "not", "cnot"), logic),
            **dict.fromkeys(("shl", "shr"), shift),
        },
    ),
    **opcodes(InstructionClass.MOVE, {"mov": mov, "cvta": cvta, "isspacep": isspacep}),
}


# -- bit fields, permutes, lop3, funnel shifts and packed integers --


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


BIT_OPCODES = opcodes(
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
