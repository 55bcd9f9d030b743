"""Lowering of what blocks of a cluster do with each other: addresses of each other's shared memory, their barrier."""

from __future__ import annotations

from tilewright.ptx.classes import InstructionClass
from tilewright.ptx.lower_builder import FunctionBuilder, opcodes
from tilewright.ptx.operands import TYPE_BYTES, Modifiers, operands_of
from tilewright.ptx.syntax import Instruction

_WIDE, _GENERIC = 1, 2  # flags of addresses
_RELAXED = 1


def mapa(b: FunctionBuilder, i: Instruction) -> None:
    modifiers = Modifiers.of(i)
    size = TYPE_BYTES[modifiers.type("u32", "u64")]
    generic = not modifiers.flag("shared::cluster")
    modifiers.finish()
    d, a, rank = operands_of(i, 3)
    flags = (_WIDE if size == 8 else 0) | (_GENERIC if generic else 0)
    b.emit("mapa", (b.target(d, size), b.source(a, size), b.source(rank, 4)), flags=flags)


def getctarank(b: FunctionBuilder, i: Instruction) -> None:
    modifiers = Modifiers.of(i)
    size = TYPE_BYTES[modifiers.type("u32", "u64")]
    modifiers.flag("shared::cluster")
    modifiers.finish()
    d, a = operands_of(i, 2)
    b.emit("getctarank", (b.target(d, 4), b.source(a, size)), flags=_WIDE if size == 8 else 0)


def cluster_barrier(b: FunctionBuilder, i: Instruction, modifiers: Modifiers) -> None:
    """`barrier.cluster`, of which `bar` has read the opcode and `.cluster`."""
    how = modifiers.need("arrive", "wait")
    order = modifiers.one_of("release", "relaxed") if how == "arrive" else modifiers.one_of("acquire")
    modifiers.flag("aligned")
    modifiers.finish()
    operands_of(i, 0)
    b.emit(f"cluster_{how}", flags=_RELAXED if order == "relaxed" else 0)


OPCODES = opcodes(InstructionClass.MOVE, {"mapa": mapa, "getctarank": getctarank})
