"""Lowering of comparisons (setp, set) and of conversions (cvt)."""

from __future__ import annotations

from tilewright.ptx.classes import InstructionClass, class_of_type
from tilewright.ptx.lower_builder import FunctionBuilder, opcodes
from tilewright.ptx.lower_integer import BITS, FTZ, INTEGERS
from tilewright.ptx.native import core
from tilewright.ptx.operands import REGISTER_BYTES, TYPE_BYTES, Modifiers, pair_of, unsupported
from tilewright.ptx.syntax import Immediate, Instruction, Operand, Register, Special, Vector

_ORDERED = ("eq", "ne", "lt", "le", "gt", "ge")
_UNSIGNED_NAMES = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
_FLOATING = (*_ORDERED, "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")
_COMBINE = {"and": 1, "or": 2, "xor": 3}
_FLOATS = ("f32", "f64", "f16", "bf16", "f16x2", "bf16x2")


def _comparison(modifiers: Modifiers, kind: str) -> str:
    """The interpreter's name of the comparison, such as "lt_u32"."""
    if kind in _FLOATS:
        return f"{modifiers.need(*_FLOATING)}_{kind}"
    name = modifiers.need(*_ORDERED, *_UNSIGNED_NAMES)
    if name in _UNSIGNED_NAMES:
        kind = f"u{kind[1:]}"
    elif kind in BITS:
        if name not in ("eq", "ne"):
            raise unsupported(modifiers.instruction, f".{name} of .{kind}")
        kind = f"u{kind[1:]}"
    return f"{_UNSIGNED_NAMES.get(name, name)}_{kind}"


def _halves(b: FunctionBuilder, operand: Operand) -> tuple[int, int]:
    """The two 16-bit parts of a pair, in temporary registers."""
    low, high = b.temporary(2), b.temporary(2)
    b.emit("unpack_2x16", (low, high, -1, -1, b.source(operand, 4)))
    return low, high


def _compare(b: FunctionBuilder, i: Instruction, modifiers: Modifiers, kind: str, targets: tuple[int, int]) -> None:
    """Compares, combines with a predicate if there is one, and writes two predicates.

    The second is the contrary of the first; of packed types it is of the high halves, and the first of the low ones.
    """
    name = _comparison(modifiers, kind)
    combine = modifiers.one_of(*_COMBINE)
    mod = FTZ if modifiers.flag("ftz") else 0
    x, y = modifiers.finish(4 if combine else 3)[1:3]
    c = b.predicate(i.operands[3]) if combine else -1
    flags = _COMBINE[combine] if combine else 0
    if kind.endswith("x2"):
        first, second = _halves(b, x), _halves(b, y)
        for part in (0, 1):
            operands = (targets[part], -1, first[part], second[part], c)
            b.emit(f"setp_{name.removesuffix('x2')}", operands, flags=flags, mod=mod)
        return
    size, is_float = TYPE_BYTES[kind], kind in _FLOATS
    sources = (b.source(x, size, is_float=is_float), b.source(y, size, is_float=is_float))
    b.emit(f"setp_{name}", (*targets, *sources, c), flags=flags, mod=mod)


def setp(b: FunctionBuilder, i: Instruction) -> None:
    modifiers = Modifiers.of(i)
    kind = modifiers.type(*BITS, *INTEGERS, *_FLOATS)
    p, q = pair_of(i.operands[0])
    _compare(b, i, modifiers, kind, (b.predicate_target(p), b.predicate_target(q)))


_TRUE = {
    "u32": 0xFFFFFFFF,
    "s32": 0xFFFFFFFF,
    "f32": 0x3F800000,
    "u16": 0xFFFF,
    "s16": 0xFFFF,
    "f16": 0x3C00,
    "bf16": 0x3F80,
    "f16x2": 0x3C00,
    "bf16x2": 0x3F80,
}


def set_(b: FunctionBuilder, i: Instruction) -> None:
    modifiers = Modifiers.of(i)
    kind = modifiers.type(*BITS, *INTEGERS, *_FLOATS)
    result = modifiers.type(*_TRUE)
    packed = kind.endswith("x2")
    predicates = (b.temporary(0), b.temporary(0) if packed else -1)
    _compare(b, i, modifiers, kind, predicates)
    if packed:
        whole = _TRUE["u16"] if result in ("u32", "s32") else _TRUE[result]
        b.emit("set_value_2x16", (b.target(i.operands[0], 4), *predicates), imm=whole)
    else:
        size = TYPE_BYTES[result]
        b.emit(f"set_value_{8 * size}", (b.target(i.operands[0], size), predicates[0]), imm=_TRUE[result])


# -- cvt --

_LOG2 = {2: 1, 4: 2, 8: 3}
# Plain conversions that are one vector loop, by modifiers: the operation, and the bytes of destination and source.
_FAST: dict[tuple[str, ...], tuple[str, int, int]] = {
    ("f32", "f16"): ("cvt_f32_f16", 4, 2),
    ("rn", "f16", "f32"): ("cvt_f16_f32", 2, 4),
    ("f32", "bf16"): ("cvt_f32_bf16", 4, 2),
    ("rn", "bf16", "f32"): ("cvt_bf16_f32", 2, 4),
    ("rn", "f32", "s32"): ("cvt_f32_s32", 4, 4),
    ("rn", "f32", "u32"): ("cvt_f32_u32", 4, 4),
    ("rzi", "s32", "f32"): ("cvt_s32_f32", 4, 4),
    ("f64", "f32"): ("cvt_f64_f32", 8, 4),
    ("rn", "f32", "f64"): ("cvt_f32_f64", 4, 8),
    ("rn", "bf16x2", "f32"): ("cvt_pack_bf16x2", 4, 4),
    ("rn", "f16x2", "f32"): ("cvt_pack_f16x2", 4, 4),
    **{(to, "s32"): ("cvt_64_s32", 8, 4) for to in ("s64", "u64")},
    **{(to, "u32"): ("cvt_64_u32", 8, 4) for to in ("s64", "u64")},
    **{(to, origin): ("cvt_32_64", 4, 8) for to in ("s32", "u32") for origin in ("s64", "u64")},
    **{(to, "u16"): ("cvt_32_16", 4, 2) for to in ("s32", "u32")},
    **{(to, "s16"): ("cvt_s32_s16", 4, 2) for to in ("s32", "u32")},
    **{(to, origin): ("cvt_16_32", 2, 4) for to in ("s16", "u16") for origin in ("s32", "u32")},
}


def cvt(b: FunctionBuilder, i: Instruction) -> None:
    if "pack" in i.modifiers:
        _pack_integers(b, i)
        return
    if len(i.modifiers) < 2 or len(i.operands) < 2:
        raise unsupported(i, "a conversion without both types and operands")
    d, sources = i.operands[0], i.operands[1:]
    to = b.register_bytes(d) if isinstance(d, Register) else 4
    origin = _source_bytes(b, i, sources[0]) if sources else 4
    if not to or not origin:
        raise unsupported(i, "a conversion into or out of a predicate")
    fast, *fast_bytes = _FAST.get(i.modifiers, ("",))
    if fast_bytes == [to, origin]:
        is_float = i.modifiers[-1] in ("f32", "f64")
        if len(sources) != (2 if fast.startswith("cvt_pack") else 1):
            raise unsupported(i, f"{len(sources)} source operands of this conversion")
        b.emit(fast, (b.target(d, to), *(b.source(source, origin, is_float=is_float) for source in sources)))
        return
    modifiers = ".".join(i.modifiers)
    conversion = core().tw_conversion_find(modifiers.encode())
    if conversion < 0:
        raise unsupported(i, f"the conversion cvt.{modifiers}")
    if len(sources) != core().tw_conversion_operands(conversion):
        raise unsupported(i, f"{len(sources)} source operands of this conversion")
    kind = i.modifiers[-2]
    bits = {"e4m3x2": 16, "e5m2x2": 16}.get(kind) or 8 * TYPE_BYTES[kind]
    mod = bits | (128 if kind[0] == "s" else 0)
    first = b.source(sources[0], origin, is_float=i.modifiers[-1] in ("f32", "f64"))
    second = b.source(sources[1], origin, is_float=True) if len(sources) > 1 else first
    flags = _LOG2[to] | _LOG2[origin] << 2
    b.emit("cvt", (b.target(d, to), first, second), imm=conversion, flags=flags, mod=mod)


def _source_bytes(b: FunctionBuilder, i: Instruction, operand: Operand) -> int:
    if isinstance(operand, Register):
        size = b.register_bytes(operand)
        if size in _LOG2:
            return size
    elif isinstance(operand, (Immediate, Special)):
        return max(REGISTER_BYTES.get(i.modifiers[-1], 2), 2)
    elif isinstance(operand, Vector):
        raise unsupported(i, "a vector source")
    raise b.wrong("a register belongs here")


_PARTS = ("s16", "u16", "s8", "u8", "s4", "u4", "s2", "u2")


def _pack_integers(b: FunctionBuilder, i: Instruction) -> None:
    modifiers = Modifiers.of(i)
    modifiers.need("pack")
    modifiers.need("sat")
    if modifiers.flag("b32") and len(i.operands) != 4:
        raise unsupported(i, "this number of operands")
    modifiers.type("s32")
    part = _PARTS.index(modifiers.type(*_PARTS))
    modifiers.finish()
    sources = [b.source(operand, 4) for operand in i.operands[1:]]
    b.emit("cvt_pack_int", (b.target(i.operands[0], 4), *sources, *(-1,) * (3 - len(sources))), flags=part)


OPCODES = {
    **opcodes(class_of_type, {"setp": setp, "set": set_}),
    **opcodes(InstructionClass.CONVERSION, {"cvt": cvt}),
}
