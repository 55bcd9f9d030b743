"""Lowering of floating-point arithmetic; add, mul and the like that integers share start here and go on there."""

from __future__ import annotations

from tilewright.ptx.classes import InstructionClass, class_of_division, class_of_type
from tilewright.ptx.lower_builder import FunctionBuilder, opcodes
from tilewright.ptx.lower_integer import INTEGERS, add_sub, elementwise, mul_mad
from tilewright.ptx.operands import TYPE_BYTES, Modifiers, only_type, operands_of, unsupported
from tilewright.ptx.syntax import Immediate, Instruction

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
