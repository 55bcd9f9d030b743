"""Lowering of what happens between lanes: barriers, shuffles, votes, matrix instructions."""

from __future__ import annotations

import ctypes

from tilewright.ptx.classes import InstructionClass, class_of_load, class_of_store
from tilewright.ptx.lower_builder import CONTROL, FunctionBuilder, opcodes
from tilewright.ptx.lower_cluster import cluster_barrier
from tilewright.ptx.lower_integer import SPACES
from tilewright.ptx.lower_memory import address_of
from tilewright.ptx.native import core
from tilewright.ptx.operands import TYPE_BYTES, Modifiers, items_of, only_type, operands_of, pair_of, unsupported
from tilewright.ptx.syntax import Instruction, Pair

_WARP_BARRIER = 64  # flag: meets another of its kind at any place
_SYNC, _ARRIVE, _RED = 0, 1, 2
_REDUCTIONS = ("popc", "and", "or")


def bar(b: FunctionBuilder, i: Instruction) -> None:
    """bar and barrier, of the block and of the warp."""
    modifiers = Modifiers.of(i)
    if modifiers.flag("warp"):
        modifiers.need("sync")
        modifiers.finish()
        b.emit("sync_warp", (0, b.source(i.operands[0], 4)), flags=_WARP_BARRIER)
        return
    if modifiers.flag("cluster"):
        cluster_barrier(b, i, modifiers)
        return
    modifiers.flag("cta")
    how = modifiers.need("sync", "arrive", "red")
    aligned = modifiers.flag("aligned") or i.opcode == "bar"
    if how == "red":
        _barrier_reduction(b, i, modifiers, aligned)
        return
    modifiers.finish()
    if not 1 <= len(i.operands) <= 2 or (how == "arrive" and len(i.operands) != 2):
        raise unsupported(i, "this number of operands")
    identity = b.source(i.operands[0], 4)
    count = b.source(i.operands[1], 4) if len(i.operands) > 1 else -1
    flags = (_SYNC if how == "sync" else _ARRIVE) | CONTROL
    b.emit("barrier", (-1, identity, count, -1), flags=flags, imm=int(aligned))


def _barrier_reduction(b: FunctionBuilder, i: Instruction, modifiers: Modifiers, aligned: bool) -> None:
    kind = modifiers.type("u32", "pred")
    operation = modifiers.need(*_REDUCTIONS)
    modifiers.finish()
    operands = list(i.operands)
    if not 3 <= len(operands) <= 4 or (kind == "u32") != (operation == "popc"):
        raise unsupported(i, "this reduction")
    target = b.target(operands[0], 4) if kind == "u32" else b.predicate_target(operands[0])
    identity = b.source(operands[1], 4)
    count = b.source(operands[2], 4) if len(operands) == 4 else -1
    predicate = b.predicate(operands[-1])
    b.emit(
        "barrier",
        (target, identity, count, predicate),
        flags=_RED | CONTROL,
        imm=int(aligned),
        mod=_REDUCTIONS.index(operation),
    )


_SHUFFLES = ("up", "down", "bfly", "idx")


def shfl(b: FunctionBuilder, i: Instruction) -> None:
    modifiers = Modifiers.of(i)
    modifiers.need("sync")
    modifiers.type("b32")
    mode = _SHUFFLES.index(modifiers.need(*_SHUFFLES))
    modifiers.finish()
    destination, *values = operands_of(i, 5)
    d, p = pair_of(destination)
    sources = [b.source(operand, 4) for operand in values]
    b.emit("shfl", (b.target(d, 4), b.predicate_target(p), *sources), flags=mode)


_VOTES = ("all", "any", "uni", "ballot")


def vote(b: FunctionBuilder, i: Instruction) -> None:
    modifiers = Modifiers.of(i)
    modifiers.need("sync")
    kind = modifiers.type("pred", "b32")
    mode = _VOTES.index(modifiers.need(*_VOTES))
    modifiers.finish()
    d, p, members = i.operands
    target = b.target(d, 4) if kind == "b32" else b.predicate_target(d)
    b.emit("vote", (target, b.predicate(p), b.source(members, 4)), flags=mode)


def match(b: FunctionBuilder, i: Instruction) -> None:
    modifiers = Modifiers.of(i)
    modifiers.need("sync")
    kind = modifiers.type("b32", "b64")
    mode = modifiers.need("any", "all")
    modifiers.finish()
    destination, a, members = i.operands
    d, p = pair_of(destination)
    if d is None:
        raise unsupported(i, "a match without its mask")
    flags = (1 if mode == "all" else 0) | (2 if kind == "b64" else 0)
    sources = (b.source(a, TYPE_BYTES[kind]), b.source(members, 4))
    b.emit("match", (b.target(d, 4), b.predicate_target(p), *sources), flags=flags)


_REDUX = ("add", "min", "max", "and", "or", "xor")


def redux(b: FunctionBuilder, i: Instruction) -> None:
    modifiers = Modifiers.of(i)
    modifiers.need("sync")
    kind = modifiers.type("u32", "s32", "b32")
    operation = modifiers.need(*_REDUX)
    modifiers.finish()
    d, a, members = i.operands
    flags = _REDUX.index(operation) | (8 if kind == "s32" else 0)
    b.emit("redux", (b.target(d, 4), b.source(a, 4), b.source(members, 4)), flags=flags)


def activemask(b: FunctionBuilder, i: Instruction) -> None:
    only_type(i, "b32")
    b.emit("activemask", (b.target(i.operands[0], 4),))


def elect(b: FunctionBuilder, i: Instruction) -> None:
    modifiers = Modifiers.of(i)
    modifiers.need("sync")
    modifiers.finish()
    destination, members = i.operands
    d, p = (destination.first, destination.second) if isinstance(destination, Pair) else (None, destination)
    b.emit("elect", (b.target(d, 4), b.predicate_target(p), b.source(members, 4)))


# -- matrices --


def ldmatrix_stmatrix(b: FunctionBuilder, i: Instruction) -> None:
    modifiers = Modifiers.of(i)
    modifiers.need("sync")
    modifiers.need("aligned")
    if not modifiers.flag("m8n8") or modifiers.left[-1:] != ["b16"]:
        raise unsupported(i, "this shape of matrix")
    modifiers.left.pop()
    count = int(modifiers.need("x1", "x2", "x4")[1])
    transpose = modifiers.flag("trans")
    space = (modifiers.one_of("shared", "shared::cta") or "generic").split("::")[0]
    modifiers.finish()
    is_load = i.opcode == "ldmatrix"
    registers, place = i.operands if is_load else reversed(i.operands)
    items = items_of(registers)
    if len(items) != count:
        raise b.wrong(f"{len(items)} registers where {count} belong")
    slots = tuple(b.target(item, 4) if is_load else b.source(item, 4) for item in items)
    address, offset, wide = address_of(b, place, space)
    padded = (*slots, *(-1,) * (4 - count), address)
    b.emit(i.opcode, padded, count=count, imm=offset, flags=int(transpose), mod=wide | SPACES[space] << 10)


def movmatrix(b: FunctionBuilder, i: Instruction) -> None:
    if i.modifiers != ("sync", "aligned", "m8n8", "trans", "b16"):
        raise unsupported(i, "this movmatrix")
    d, a = i.operands
    b.emit("movmatrix", (b.target(d, 4), b.source(a, 4)))


def mma(b: FunctionBuilder, i: Instruction) -> None:
    number = core().tw_mma_find(".".join(i.modifiers).encode())
    if number < 0:
        raise unsupported(i, f"mma.{'.'.join(i.modifiers)}")
    _multiply(b, i, number)


def _multiply(b: FunctionBuilder, i: Instruction, number: int) -> None:
    counts, bits = (ctypes.c_int32 * 4)(), (ctypes.c_int32 * 4)()
    core().tw_mma_registers(number, counts, bits)
    registers: list[int] = []
    for position, operand in enumerate(operands_of(i, 4)):
        items, size = items_of(operand), bits[position] // 8
        if len(items) != counts[position] or len(items) > 32:
            raise b.wrong(f"{len(items)} registers where {counts[position]} belong")
        if position == 0:
            registers += [b.target(item, size) for item in items]
        else:
            registers += [b.source(item, size, is_float=size == 8) for item in items]
    if -1 in registers:
        raise unsupported(i, "a sink among its registers")
    b.emit("mma", tuple(counts), imm=number, flags=3 if bits[0] == 64 else 2, extra=tuple(registers))


def wmma(b: FunctionBuilder, i: Instruction) -> None:
    if i.modifiers[:1] == ("mma",):
        number = core().tw_wmma_mma_find(".".join(i.modifiers[1:]).encode())
        if number < 0:
            raise unsupported(i, f"wmma.{'.'.join(i.modifiers)}")
        _multiply(b, i, number)
        return
    number = core().tw_fragment_find(".".join(i.modifiers).encode())
    if number < 0:
        raise unsupported(i, f"wmma.{'.'.join(i.modifiers)}")
    is_load = i.modifiers[0] == "load"
    first, second = operands_of(i, 2, 3)[:2]
    registers, place = (first, second) if is_load else (second, first)
    stride = b.source(i.operands[2], 4) if len(i.operands) == 3 else -1
    size = core().tw_fragment_register_bits(number) // 8
    items = items_of(registers)
    if len(items) != core().tw_fragment_registers(number):
        raise b.wrong(f"{len(items)} registers where {core().tw_fragment_registers(number)} belong")
    slots = tuple(b.target(item, size) if is_load else b.source(item, size) for item in items)
    if -1 in slots:
        raise unsupported(i, "a sink among its registers")
    space = "generic"
    for name in i.modifiers:
        if name.split("::")[0] in ("global", "shared"):
            space = name.split("::")[0]
    address, offset, wide = address_of(b, place, space)
    operands = (0, 0, 0, 0, address, stride, number)
    name = "wmma_load" if is_load else "wmma_store"
    b.emit(name, operands, imm=offset, mod=wide | SPACES[space] << 10, extra=slots)


def class_of_wmma(parts: tuple[str, ...]) -> InstructionClass:
    return {"load": class_of_load, "store": class_of_store}.get(parts[1], lambda _: InstructionClass.TENSOR)(parts)


OPCODES = {
    **opcodes(InstructionClass.SYNC, {"bar": bar, "barrier": bar}, writes=False),
    **opcodes(
        InstructionClass.WARP,
        {
            "shfl": shfl,
            "vote": vote,
            "match": match,
            "redux": redux,
            "activemask": activemask,
            "elect": elect,
            "movmatrix": movmatrix,
        },
    ),
    **opcodes(InstructionClass.SHARED_LOAD, {"ldmatrix": ldmatrix_stmatrix}),
    **opcodes(InstructionClass.SHARED_STORE, {"stmatrix": ldmatrix_stmatrix}, writes=False),
    **opcodes(InstructionClass.TENSOR, {"mma": mma}),
    **opcodes(class_of_wmma, {"wmma": wmma}, writes=False),
}
