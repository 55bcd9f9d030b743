"""Lowering of floating-point arithmetic; add, mul and the like that integers share start here and go on there."""

from __future__ import annotations

from tilewright.ptx.classes import InstructionClass, class_of_division, class_of_type
from tilewright.ptx.lower_builder import FunctionBuilder, opcodes
from tilewright.ptx.lower_integer import BITS, INTEGERS, add_sub, elementwise, mul_mad
from tilewright.ptx.native import core
from tilewright.ptx.operands import REGISTER_BYTES, TYPE_BYTES, Modifiers, only_type, operands_of, pair_of, unsupported
from tilewright.ptx.syntax import Immediate, Instruction, Operand, Register, Special, Vector

ROUNDINGS = ("rn", "rz", "rm", "rp")
FTZ, SAT, RELU, NAN, XORSIGN, ABS = 8, 16, 32, 64, 128, 256
HALVES = ("f16", "bf16", "f16x2", "bf16x2")


def _is_float(i: Instruction) -> bool:
    return bool(i.modifiers) and i.modifiers[-1] in ("f32", "f64", *HALVES)


def arithmetic(b: FunctionBuilder, i: Instruction) -> None:
    """add, sub, mul, fma, mad of any type."""
    if not _is_float(i):
        (add_sub if i.opcode in ("add", "sub") else mul_mad)(b, i)
        return
    modifiers = Modifiers.of(i)
    kind = modifiers.type("f32", "f64", *HALVES)
    name = "fma" if i.opcode == "mad" else i.opcode
    rounding = ROUNDINGS.index(modifiers.one_of(*ROUNDINGS) or "rn")
    ftz, sat, relu = modifiers.flag("ftz"), modifiers.flag("sat"), modifiers.flag("relu")
    modifiers.finish(4 if name == "fma" else 3)
    mod = rounding | (FTZ if ftz else 0) | (SAT if sat else 0) | (RELU if relu else 0)
    if kind in HALVES:
        _half(b, i, name, kind, mod)
        return
    if relu or (kind == "f64" and (ftz or sat)):
        raise unsupported(i, f".relu, .ftz or .sat of .{kind}")
    size = TYPE_BYTES[kind]
    if kind == "f64":
        handler = f"{name}_f64_any" if rounding else f"{name}_f64"
    elif rounding or sat:
        handler = f"{name}_f32_any"
    else:
        handler = f"{name}_ftz_f32" if ftz else f"{name}_f32"
    elementwise(b, i, handler, size, mod=mod, is_float=True)


def _half(b: FunctionBuilder, i: Instruction, name: str, kind: str, mod: int) -> None:
    if mod & 7:
        raise unsupported(i, f"this rounding of .{kind}")
    if kind.startswith("bf16") and mod & (FTZ | SAT):
        raise unsupported(i, f".ftz or .sat of .{kind}")
    size = 4 if kind.endswith("x2") else 2
    sources = [b.source(operand, size, is_float=True) for operand in i.operands[1:]]
    padded = (*sources, *sources[:1] * (3 - len(sources)))
    b.emit(f"{name}_{kind}", (b.target(i.operands[0], size), *padded), mod=mod)


def div(b: FunctionBuilder, i: Instruction) -> None:
    modifiers = Modifiers.of(i)
    kind = modifiers.type("f32", "f64", *INTEGERS)
    if kind in INTEGERS:
        modifiers.finish(3)
        elementwise(b, i, f"div_{kind}", TYPE_BYTES[kind])
        return
    how = modifiers.need("approx", "full", *ROUNDINGS)
    mod = FTZ if modifiers.flag("ftz") else 0
    modifiers.finish(3)
    size = TYPE_BYTES[kind]
    if how in ("approx", "full"):
        if kind == "f64":
            raise unsupported(i, f"div.{how}.f64")
        name = f"div_{how}_f32"
    else:
        mod |= ROUNDINGS.index(how)
        name = f"div_{kind}_any" if mod else f"div_{kind}"
    elementwise(b, i, name, size, mod=mod, is_float=True)


def root_reciprocal(b: FunctionBuilder, i: Instruction) -> None:
    """sqrt and rcp: approximate, or in a rounding."""
    modifiers = Modifiers.of(i)
    kind = modifiers.type("f32", "f64")
    how = modifiers.need("approx", *ROUNDINGS)
    ftz = modifiers.flag("ftz")
    modifiers.finish(2)
    if how == "approx":
        if kind == "f64" and (i.opcode != "rcp" or not ftz):
            raise unsupported(i, f"{i.opcode}.approx.f64 in this form")
        name, mod = f"{i.opcode}_approx_{kind}", FTZ if ftz else 0
    else:
        if kind == "f64" and ftz:
            raise unsupported(i, ".ftz of .f64")
        mod = ROUNDINGS.index(how) | (FTZ if ftz else 0)
        name = f"sqrt_{kind}" if i.opcode == "sqrt" and not mod else f"{i.opcode}_{kind}_any"
    elementwise(b, i, name, TYPE_BYTES[kind], mod=mod, is_float=True)


def approximate(b: FunctionBuilder, i: Instruction) -> None:
    """ex2, lg2, sin, cos, tanh, rsqrt."""
    modifiers = Modifiers.of(i)
    kind = modifiers.type("f32", "f64", *HALVES)
    modifiers.need("approx")
    ftz = modifiers.flag("ftz")
    modifiers.finish(2)
    if kind in HALVES:
        if i.opcode not in ("ex2", "tanh") or (i.opcode == "ex2" and kind.startswith("bf16") and not ftz):
            raise unsupported(i, f"{i.opcode} of .{kind} in this form")
        _half(b, i, i.opcode, kind, FTZ if ftz and kind.startswith("f16") else 0)
        return
    if kind == "f64" and i.opcode != "rsqrt":
        raise unsupported(i, f"{i.opcode}.f64")
    if i.opcode == "tanh" and ftz:
        raise unsupported(i, "tanh.ftz")
    elementwise(b, i, f"{i.opcode}_{kind}", TYPE_BYTES[kind], mod=FTZ if ftz else 0, is_float=True)


def min_max(b: FunctionBuilder, i: Instruction) -> None:
    if not _is_float(i):
        _integer_min_max(b, i)
        return
    modifiers = Modifiers.of(i)
    kind = modifiers.type("f32", "f64", *HALVES)
    mod = FTZ if modifiers.flag("ftz") else 0
    mod |= NAN if modifiers.flag("NaN") else 0
    mod |= XORSIGN | ABS if modifiers.flag("xorsign") and modifiers.flag("abs") else 0
    mod |= ABS if modifiers.flag("abs") else 0
    modifiers.finish()
    if kind in HALVES:
        operands_of(i, 3)
        _half(b, i, i.opcode, kind, mod)
        return
    if kind == "f64":
        operands_of(i, 3)
        if mod:
            raise unsupported(i, "modifiers of .f64")
        name = f"{i.opcode}_f64"
    elif len(i.operands) == 4:
        name = f"{i.opcode}3_f32"
    else:
        operands_of(i, 3)
        name = f"{i.opcode}_f32_any" if mod else f"{i.opcode}_f32"
    elementwise(b, i, name, TYPE_BYTES[kind], mod=mod, is_float=True)


def _integer_min_max(b: FunctionBuilder, i: Instruction) -> None:
    modifiers = Modifiers.of(i)
    kind = modifiers.type(*INTEGERS, "u16x2", "s16x2")
    relu = modifiers.flag("relu")
    modifiers.finish()
    if relu and kind not in ("s32", "s16x2"):
        raise unsupported(i, f"{i.opcode}.relu of .{kind}")
    target = operands_of(i, 3)[0]
    size = 4 if kind.endswith("x2") else TYPE_BYTES[kind]
    elementwise(b, i, f"{i.opcode}_{kind}", size)
    if relu:  # no less than 0
        b.emit(f"max_{kind}", (b.target(target, size), b.source(target, size), b.source(Immediate(0, 0), size)))


def neg_abs(b: FunctionBuilder, i: Instruction) -> None:
    modifiers = Modifiers.of(i)
    kind = modifiers.type("s16", "s32", "s64", "f32", "f64", *HALVES)
    ftz = modifiers.flag("ftz")
    modifiers.finish(2)
    if kind in HALVES:
        _half(b, i, i.opcode, kind, FTZ if ftz else 0)
    elif kind == "f32":
        elementwise(b, i, f"{i.opcode}_ftz_f32" if ftz else f"{i.opcode}_f32", 4)
    elif ftz:
        raise unsupported(i, f".ftz of .{kind}")
    elif kind == "f64":
        elementwise(b, i, f"{i.opcode}_f64", 8)
    else:
        size = TYPE_BYTES[kind]
        elementwise(b, i, f"neg_{8 * size}" if i.opcode == "neg" else f"abs_{kind}", size)


def copysign(b: FunctionBuilder, i: Instruction) -> None:
    kind = only_type(i, "f32", "f64")
    operands_of(i, 3)
    elementwise(b, i, f"copysign_{kind}", TYPE_BYTES[kind], is_float=True)


_TESTS = ("finite", "infinite", "number", "notanumber", "normal", "subnormal")


def testp(b: FunctionBuilder, i: Instruction) -> None:
    modifiers = Modifiers.of(i)
    kind = modifiers.type("f32", "f64")
    test = _TESTS.index(modifiers.need(*_TESTS))
    modifiers.finish(2)
    source = b.source(i.operands[1], TYPE_BYTES[kind], is_float=True)
    b.emit(f"testp_{kind}", (b.predicate_target(i.operands[0]), source), flags=test)


OPCODES = {
    **opcodes(
        class_of_type,
        {
            **dict.fromkeys(("add", "sub", "mul", "mad", "fma"), arithmetic),
            **dict.fromkeys(("min", "max"), min_max),
            **dict.fromkeys(("neg", "abs"), neg_abs),
            "copysign": copysign,
            "testp": testp,
        },
    ),
    **opcodes(
        InstructionClass.SPECIAL_FUNCTION,
        {
            **dict.fromkeys(("sqrt", "rcp"), root_reciprocal),
            **dict.fromkeys(("ex2", "lg2", "sin", "cos", "tanh", "rsqrt"), approximate),
        },
    ),
    **opcodes(class_of_division, {"div": div}),
}


# -- setp, set and cvt --

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


COMPARE_OPCODES = {
    **opcodes(class_of_type, {"setp": setp, "set": set_}),
    **opcodes(InstructionClass.CONVERSION, {"cvt": cvt}),
}
