"""Lowering of what a warpgroup does together: wgmma and setmaxnreg."""

from __future__ import annotations

from tilewright.ptx.classes import InstructionClass
from tilewright.ptx.lower_builder import FunctionBuilder, opcodes
from tilewright.ptx.native import core
from tilewright.ptx.operands import Modifiers, items_of, unsupported
from tilewright.ptx.syntax import Immediate, Instruction, Operand, Register, Vector

_NEGATE_A, _NEGATE_B, _TRANSPOSE_A, _TRANSPOSE_B, _TRACKED, _UNFENCED = 1, 2, 4, 8, 16, 32
_A_REGISTERS = 4
_FEWEST_REGISTERS, _MOST_REGISTERS = 24, 256


def wgmma(b: FunctionBuilder, i: Instruction) -> None:
    modifiers = Modifiers.of(i)
    what = modifiers.need("mma_async", "fence", "commit_group", "wait_group")
    if what == "mma_async":
        _multiply(b, i, modifiers)
        return
    modifiers.need("sync")
    modifiers.need("aligned")
    modifiers.finish()
    if what == "wait_group":
        b.emit("wgmma_wait", imm=_immediate(b, i.operands[0] if len(i.operands) == 1 else None))
    else:
        b.emit("wgmma_fence" if what == "fence" else "wgmma_commit")


def _immediate(b: FunctionBuilder, operand: Operand | None, *allowed: int) -> int:
    if not isinstance(operand, Immediate) or operand.width:
        raise b.wrong("a number belongs here")
    if allowed and operand.bits not in allowed:
        raise b.wrong(f"{operand.bits} where {' or '.join(map(str, allowed))} belongs")
    return operand.bits


def _multiply(b: FunctionBuilder, i: Instruction, modifiers: Modifiers) -> None:
    if "sp" in modifiers.left:
        raise unsupported(i, "wgmma of a sparse matrix (mma_async.sp)")
    number = core().tw_wgmma_find(".".join(modifiers.left).encode())
    if number < 0:
        raise unsupported(i, f"wgmma.{'.'.join(i.modifiers)}")
    if len(i.operands) < 4:
        raise unsupported(i, "this number of operands")
    sums, left, right, scale, *numbers = i.operands
    wanted = core().tw_wgmma_sums(number)
    registers = [b.source(item, 4) for item in items_of(sums) if isinstance(item, Register)]
    if len(registers) != wanted or len(items_of(sums)) != wanted:
        raise b.wrong(f"{len(items_of(sums))} registers where {wanted} belong")
    in_registers = isinstance(left, Vector)
    if in_registers:
        a = [b.source(item, 4) for item in items_of(left)]
        if len(a) != _A_REGISTERS:
            raise b.wrong(f"{len(a)} registers of a where {_A_REGISTERS} belong")
        registers += a
    flags = _flags(b, i, numbers, number, in_registers)
    flags |= _TRACKED if b.wgmma.tracked else 0
    flags |= _UNFENCED if b.index in b.wgmma.unfenced else 0
    descriptors = (-1 if in_registers else b.source(left, 8), b.source(right, 8))
    operands = (*descriptors, b.predicate(scale), wanted)
    b.emit("wgmma", operands, imm=number, flags=flags, extra=tuple(registers))


def _flags(b: FunctionBuilder, i: Instruction, numbers: list[Operand], number: int, in_registers: bool) -> int:
    """imm-scale-a, imm-scale-b, imm-trans-a, imm-trans-b: floats have the first two, 16-bit floats those of operands in
    shared memory too."""
    expected = 0
    if core().tw_wgmma_is_float(number):
        expected = 2
        if core().tw_wgmma_element_bits(number) == 16:
            expected += 1 if in_registers else 2
    if len(numbers) != expected:
        raise unsupported(i, f"{len(numbers) + 4} operands where {expected + 4} are expected")
    flags = 0
    for bit, operand in zip((_NEGATE_A, _NEGATE_B), numbers, strict=False):
        flags |= bit if _immediate(b, operand, 1, -1) < 0 else 0
    transposes = (_TRANSPOSE_B,) if in_registers else (_TRANSPOSE_A, _TRANSPOSE_B)
    for bit, operand in zip(transposes, numbers[2:], strict=False):
        flags |= bit if _immediate(b, operand, 0, 1) else 0
    return flags


def setmaxnreg(b: FunctionBuilder, i: Instruction) -> None:
    modifiers = Modifiers.of(i)
    modifiers.need("inc", "dec")
    modifiers.need("sync")
    modifiers.need("aligned")
    modifiers.type("u32")
    modifiers.finish()
    count = _immediate(b, i.operands[0] if len(i.operands) == 1 else None)
    if count % 8 or not _FEWEST_REGISTERS <= count <= _MOST_REGISTERS:
        raise b.wrong(f"{count} registers: a multiple of 8 from {_FEWEST_REGISTERS} to {_MOST_REGISTERS} is allowed")
    b.emit("setmaxnreg", imm=count)


_CLASSES = {"mma_async": InstructionClass.TENSOR}
OPCODES = {
    **opcodes(lambda parts: _CLASSES.get("".join(parts[1:2]), InstructionClass.SYNC), {"wgmma": wgmma}, writes=False),
    **opcodes(InstructionClass.SYNC, {"setmaxnreg": setmaxnreg}, writes=False),
}
