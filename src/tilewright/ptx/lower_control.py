"""Lowers branches, calls, exits, barriers, warp instructions and matrix instructions."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from tilewright.ptx.classes import InstructionClass, class_of_load, class_of_store
from tilewright.ptx.control_flow import branch_targets
from tilewright.ptx.lower_asynchronous import cluster_barrier
from tilewright.ptx.lower_builder import CONTROL, FrameVariable, FunctionBuilder, opcodes
from tilewright.ptx.lower_integer import SPACES
from tilewright.ptx.lower_memory import address_of
from tilewright.ptx.native import core
from tilewright.ptx.operands import (
    TYPE_BYTES,
    Modifiers,
    items_of,
    only_flags,
    only_type,
    operands_of,
    pair_of,
    unsupported,
)
from tilewright.ptx.syntax import (
    Instruction,
    Label,
    Operand,
    Pair,
    ParameterDeclaration,
    Register,
    SymbolOperand,
    Tuple_,
)

_TARGET_FIELD, MEET_FIELD = 8, 40  # offsets in the encoded instruction: o[0] and imm
_PRINTF, _ASSERT = "vprintf", "__assertfail"


@dataclass(frozen=True)
class Parameters:
    """The layout of a function's parameters or results."""

    offsets: tuple[int, ...]
    total_bytes: int

    @staticmethod
    def of_kernel(declarations: tuple[ParameterDeclaration, ...]) -> Parameters:
        """The driver's layout: each at its own alignment."""
        at, offsets = 0, []
        for parameter in declarations:
            at = -(-at // parameter.align) * parameter.align
            offsets.append(at)
            at += parameter.size_bytes
        return Parameters(tuple(offsets), at)

    @staticmethod
    def of_function(sizes: tuple[int, ...]) -> Parameters:
        """The emulator's layout for calls: by size only, so that a prototype suffices."""
        at, offsets = 0, []
        for size in sizes:
            offsets.append(at)
            at += -(-size // 16) * 16
        return Parameters(tuple(offsets), at)

    @property
    def stride(self) -> int:
        return -(-self.total_bytes // 16) * 16


def bra(b: FunctionBuilder, i: Instruction) -> None:
    only_flags(i, "uni")
    position = b.emit("bra", flags=CONTROL, imm=-1)
    b.fixups.targets.append((position, _TARGET_FIELD, branch_targets(b.function, i)[0]))
    _meet(b, position)


def _meet(b: FunctionBuilder, position: int) -> None:
    meeting = b.flow.reconvergence.get(b.index)
    if meeting is not None:
        b.fixups.targets.append((position, MEET_FIELD, meeting))


def brx(b: FunctionBuilder, i: Instruction) -> None:
    modifiers = Modifiers.of(i)
    modifiers.need("idx")
    modifiers.flag("uni")
    modifiers.finish()
    table = i.operands[-1]
    names = b.function.branch_targets.get(table.name, ()) if isinstance(table, (SymbolOperand, Label)) else ()
    indices = tuple(b.function.labels[name] for name in names)
    start = len(b.code.extra)
    position = b.emit("brx", (0, b.source(i.operands[0], 4)), flags=CONTROL, imm=-1, extra=(len(indices), *indices))
    b.fixups.tables.append((start + 1, indices))
    _meet(b, position)


def leave(b: FunctionBuilder, i: Instruction) -> None:
    only_flags(i, "uni")
    b.emit(i.opcode, flags=CONTROL)


def stop(b: FunctionBuilder, i: Instruction) -> None:
    only_flags(i)
    b.emit(i.opcode)


def nanosleep(b: FunctionBuilder, i: Instruction) -> None:
    b.emit("nanosleep")


def griddepcontrol(b: FunctionBuilder, i: Instruction) -> None:
    modifiers = Modifiers.of(i)
    what = modifiers.need("wait", "launch_dependents")
    modifiers.finish()
    b.emit("griddep_wait" if what == "wait" else "griddep_launch")


# -- calls --


Variables = list[FrameVariable]


def call(b: FunctionBuilder, i: Instruction) -> None:
    """`call (result), function, (arguments), prototype`; only the function is required."""
    only_flags(i, "uni")
    operands = list(i.operands)
    returned = _listed(b, operands)
    if not operands:
        raise b.wrong("a call without a function")
    callee = operands.pop(0)
    given = _listed(b, operands)
    name = callee.name if isinstance(callee, SymbolOperand) else "this"
    if isinstance(callee, Register):
        _indirect(b, i, callee, operands[-1] if operands else None, given, returned)
    elif name in (_PRINTF, _ASSERT) and name in b.module.externals:
        _system(b, name, given, returned)
    elif name in b.module.functions:
        sizes = tuple(parameter.size_bytes for parameter in b.module.functions[name].parameters)
        extra, _ = _argument_list(b, given, returned, sizes, f"`{name}`")
        b.fixups.calls.append((b.emit("call", flags=CONTROL, extra=extra), name))
    else:
        raise unsupported(i, f"calling `{name}`, which is not defined in the module")


def _listed(b: FunctionBuilder, operands: list[Operand]) -> Variables:
    """Remove and return the variables in leading parentheses, if any."""
    first = operands[0] if operands else None
    if not isinstance(first, Tuple_):
        return []
    del operands[0]
    return [_frame_variable(b, operand) for operand in first.items]


def _frame_variable(b: FunctionBuilder, operand: Operand) -> FrameVariable:
    placed = b.place_symbol(operand.name) if isinstance(operand, SymbolOperand) else None
    if placed is None or placed.frame is None:
        raise unsupported(b.instruction, "arguments that are not .param variables")
    return placed.frame


def _argument_list(
    b: FunctionBuilder, given: Variables, returned: Variables, sizes: tuple[int, ...], callee: str
) -> tuple[tuple[int, ...], int]:
    """The core's description of arguments and results, and the argument size."""
    if tuple(variable.size_bytes for variable in given) != sizes or len(returned) > 1:
        raise b.wrong(f"the arguments do not fit {callee}")
    layout = Parameters.of_function(sizes)
    extra = [len(given)]
    for variable, offset in zip(given, layout.offsets, strict=True):
        extra += [variable.at, variable.stride, variable.size_bytes, offset]
    extra += [len(returned)]
    for variable in returned:
        extra += [variable.at, variable.stride]
    return tuple(extra), layout.total_bytes


def _indirect(
    b: FunctionBuilder,
    i: Instruction,
    callee: Register,
    prototype: Operand | None,
    given: Variables,
    returned: Variables,
) -> None:
    sizes = b.function.prototypes.get(prototype.name) if isinstance(prototype, (SymbolOperand, Label)) else None
    if sizes is None:
        raise unsupported(i, "an indirect call without a prototype")
    extra, size = _argument_list(b, given, returned, sizes, "the prototype")
    b.emit("call_indirect", (0, b.source(callee, 8)), flags=CONTROL, imm=size, extra=extra)
    b.emit("join", flags=CONTROL, guarded=False)


def _system(b: FunctionBuilder, name: str, given: Variables, returned: Variables) -> None:
    wanted = 2 if name == _PRINTF else 5
    if len(given) != wanted:
        raise b.wrong(f"{name} takes {wanted} arguments")
    places = [number for variable in given[:4] for number in (variable.at + variable.offset, variable.stride)]
    if name == _PRINTF:
        result = (returned[0].at, returned[0].stride) if returned else (-1, 0)
        b.emit("printf", (*places, *result))
    else:
        b.emit("assertfail", tuple(places))


OPCODES = opcodes(
    InstructionClass.CONTROL,
    {
        "bra": bra,
        "brx": brx,
        "call": call,
        "ret": leave,
        "exit": leave,
        "trap": stop,
        "brkpt": stop,
        "nanosleep": nanosleep,
        "griddepcontrol": griddepcontrol,
    },
    writes=False,
)


# -- barriers and warp instructions --

_WARP_BARRIER = 64  # flag: may meet any other warp barrier
_SYNC, _ARRIVE, _RED = 0, 1, 2
_REDUCTIONS = ("popc", "and", "or")


def bar(b: FunctionBuilder, i: Instruction) -> None:
    """bar and barrier, for blocks, clusters and warps."""
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


WARP_OPCODES = {
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
