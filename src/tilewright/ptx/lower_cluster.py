"""Lowering of what blocks of a cluster do with each other: addresses of each other's shared memory, their barrier."""

from __future__ import annotations

from tilewright.ptx import lower_memory
from tilewright.ptx.classes import InstructionClass, class_of_atomic, class_of_store
from tilewright.ptx.lower_builder import FunctionBuilder, opcodes
from tilewright.ptx.lower_integer import SPACES
from tilewright.ptx.lower_memory import address_of
from tilewright.ptx.operands import TYPE_BYTES, Modifiers, operands_of, unsupported
from tilewright.ptx.syntax import Instruction, Operand

_WIDE, _GENERIC = 1, 2  # flags of addresses
_RELAXED = 1


def mapa(b: FunctionBuilder, i: Instruction) -> None:
    modifiers = Modifiers.of(i)
    size = TYPE_BYTES[modifiers.type("u32", "u64")]
    generic = not modifiers.flag("shared::cluster")
    d, a, rank = modifiers.finish(3)
    flags = (_WIDE if size == 8 else 0) | (_GENERIC if generic else 0)
    b.emit("mapa", (b.target(d, size), b.source(a, size), b.source(rank, 4)), flags=flags)


def getctarank(b: FunctionBuilder, i: Instruction) -> None:
    modifiers = Modifiers.of(i)
    size = TYPE_BYTES[modifiers.type("u32", "u64")]
    modifiers.flag("shared::cluster")
    d, a = modifiers.finish(2)
    b.emit("getctarank", (b.target(d, 4), b.source(a, size)), flags=_WIDE if size == 8 else 0)


def cluster_barrier(b: FunctionBuilder, i: Instruction, modifiers: Modifiers) -> None:
    """`barrier.cluster`, of which `bar` has read the opcode and `.cluster`."""
    how = modifiers.need("arrive", "wait")
    order = modifiers.one_of("release", "relaxed") if how == "arrive" else modifiers.one_of("acquire")
    modifiers.flag("aligned")
    modifiers.finish(0)
    b.emit(f"cluster_{how}", flags=_RELAXED if order == "relaxed" else 0)


# -- st.async and red.async --


def st(b: FunctionBuilder, i: Instruction) -> None:
    """Every store; those that are not asynchronous are lower_memory's."""
    if "async" not in i.modifiers:
        lower_memory.st(b, i)
        return
    modifiers = _counted(i)
    access = lower_memory.Access(b, i, modifiers)
    if access.order or access.space not in ("generic", "cluster"):
        raise unsupported(i, "this asynchronous store")
    to, values, barrier = operands_of(i, 3)
    slots, register = access.registers(b, values, written=False)
    address, offset, wide = address_of(b, to, access.space)
    at, further, flags = _barrier(b, barrier, access.space)
    operands = (*slots, *(-1,) * (4 - len(slots)), address, at, further)
    b.emit("st_async", operands, count=access.count, imm=offset, flags=flags, mod=access.mod(register, wide))


def red(b: FunctionBuilder, i: Instruction) -> None:
    """Every reduction; those that are not asynchronous are lower_memory's."""
    if "async" not in i.modifiers:
        lower_memory.atom(b, i)
        return
    modifiers = _counted(i)
    kind = modifiers.type("u32", "s32", "u64", "b32")
    operation = modifiers.need(*_REDUCTIONS)
    modifiers.flag("relaxed")
    modifiers.flag("cluster")
    space = "cluster" if modifiers.flag("shared::cluster") else "generic"
    modifiers.finish()
    if kind not in _REDUCTIONS[operation]:
        raise unsupported(i, f"red.async.{operation} of .{kind}")
    to, value, barrier = operands_of(i, 3)
    address, offset, wide = address_of(b, to, space)
    at, further, flags = _barrier(b, barrier, space)
    b.emit(
        "red_async",
        (-1, -1, b.source(value, TYPE_BYTES[kind]), -1, address, at, further),
        flags=flags | lower_memory.ATOMS.index(operation),
        count=lower_memory.ATOM_NUMBERS[kind],
        imm=offset,
        mod=wide | SPACES[space] << 10,
    )


_COUNTED = "mbarrier::complete_tx::bytes"
_WORDS = ("u32", "s32")
_REDUCTIONS: dict[str, tuple[str, ...]] = {
    "inc": ("u32",),
    "dec": ("u32",),
    "min": _WORDS,
    "max": _WORDS,
    "add": (*_WORDS, "u64"),
    **dict.fromkeys(("and", "or", "xor"), ("b32",)),
}
_WIDE_BARRIER = 64


def _counted(i: Instruction) -> Modifiers:
    modifiers = Modifiers.of(i)
    modifiers.flag("async")
    if not modifiers.flag(_COUNTED):
        raise unsupported(i, "an asynchronous access that no mbarrier counts")
    return modifiers


def _barrier(b: FunctionBuilder, operand: Operand, space: str) -> tuple[int, int, int]:
    address, offset, wide = address_of(b, operand, space)
    return address, offset, _WIDE_BARRIER if wide else 0


OPCODES = {
    **opcodes(InstructionClass.MOVE, {"mapa": mapa, "getctarank": getctarank}),
    **opcodes(class_of_store, {"st": st}, writes=False),
    **opcodes(class_of_atomic, {"red": red}, writes=False),
}
