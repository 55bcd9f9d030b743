"""Lowers mbarriers, bulk copies and reductions with and without TMA maps, and cluster instructions."""

from __future__ import annotations

from tilewright.ptx import lower_memory
from tilewright.ptx.classes import InstructionClass, class_of_atomic, class_of_store
from tilewright.ptx.lower_builder import FunctionBuilder, opcodes
from tilewright.ptx.lower_integer import SPACES
from tilewright.ptx.lower_memory import WIDE, address_of, class_of_copy, copy
from tilewright.ptx.operands import TYPE_BYTES, Modifiers, items_of, operands_of, unsupported
from tilewright.ptx.syntax import Address, Immediate, Instruction, Operand, Sink, Vector

# -- mbarrier --

PARITY, NO_COMPLETE, DROPS, RELAXED = 1, 1, 2, 4  # flags of the core
_NOTHING = -1


def barrier_address(b: FunctionBuilder, modifiers: Modifiers, operand: Operand) -> tuple[int, int, int]:
    """Slot, offset and modifier bits of the mbarrier's address; generic without a state space."""
    space = modifiers.one_of("shared", "shared::cta", "shared::cluster")
    address, offset, wide = address_of(b, operand, "shared" if space else "generic")
    return address, offset, wide | SPACES["shared" if space else "generic"] << 10


def mbarrier(b: FunctionBuilder, i: Instruction) -> None:
    modifiers = Modifiers.of(i)
    forms = {"init": _init, "inval": _inval, "pending_count": _pending, "expect_tx": _bytes, "complete_tx": _bytes}
    forms.update({"arrive": _arrive, "arrive_drop": _arrive, "test_wait": _wait, "try_wait": _wait})
    # The first modifier is the operation: `arrive.expect_tx` is an arrival.
    what = modifiers.left.pop(0) if modifiers.left else ""
    if what not in forms or not modifiers.flag("b64"):
        raise unsupported(i, "this form of mbarrier")
    forms[what](b, i, modifiers, what)


def _init(b: FunctionBuilder, i: Instruction, modifiers: Modifiers, what: str) -> None:
    address, offset, mod = barrier_address(b, modifiers, i.operands[0])
    modifiers.finish()
    b.emit("mbarrier_init", (_NOTHING, _NOTHING, b.source(i.operands[1], 4), _NOTHING, address), imm=offset, mod=mod)


def _inval(b: FunctionBuilder, i: Instruction, modifiers: Modifiers, what: str) -> None:
    address, offset, mod = barrier_address(b, modifiers, i.operands[0])
    modifiers.finish()
    b.emit("mbarrier_inval", (*(_NOTHING,) * 4, address), imm=offset, mod=mod)


def _pending(b: FunctionBuilder, i: Instruction, modifiers: Modifiers, what: str) -> None:
    modifiers.finish()
    b.emit("mbarrier_pending", (b.target(i.operands[0], 4), b.source(i.operands[1], 8)))


def _order(modifiers: Modifiers) -> int:
    """These acquire and release by default; only .relaxed differs."""
    order = modifiers.one_of("release", "acquire", "relaxed")
    modifiers.one_of("cta", "cluster")
    return RELAXED if order == "relaxed" else 0


def _bytes(b: FunctionBuilder, i: Instruction, modifiers: Modifiers, what: str) -> None:
    _order(modifiers)
    address, offset, mod = barrier_address(b, modifiers, i.operands[0])
    modifiers.finish()
    operands = (*(_NOTHING,) * 3, b.source(i.operands[1], 4), address)
    b.emit("mbarrier_tx", operands, flags=int(what == "complete_tx"), imm=offset, mod=mod)


def _arrive(b: FunctionBuilder, i: Instruction, modifiers: Modifiers, what: str) -> None:
    """`arrive{.expect_tx|.noComplete} state, [address]{, count or bytes}`; no state for a remote mbarrier."""
    flags = _order(modifiers) | (DROPS if what == "arrive_drop" else 0)
    expects = modifiers.flag("expect_tx")
    flags |= NO_COMPLETE if modifiers.flag("noComplete") else 0
    operands = list(i.operands)
    state = operands.pop(0) if not isinstance(operands[0], Address) else Sink()
    address, offset, mod = barrier_address(b, modifiers, operands[0])
    modifiers.finish()
    number = b.source(operands[1], 4) if len(operands) > 1 else _NOTHING
    count, size = (_NOTHING, number) if expects else (number, _NOTHING)
    b.emit("mbarrier_arrive", (b.target(state, 8), _NOTHING, count, size, address), flags=flags, imm=offset, mod=mod)


def _wait(b: FunctionBuilder, i: Instruction, modifiers: Modifiers, what: str) -> None:
    """test_wait and try_wait; a suspend-time hint is ignored."""
    parity = modifiers.flag("parity")
    flags = _order(modifiers) | (PARITY if parity else 0)
    address, offset, mod = barrier_address(b, modifiers, i.operands[1])
    modifiers.finish()
    phase = b.source(i.operands[2], 4 if parity else 8)
    operands = (b.predicate_target(i.operands[0]), _NOTHING, phase, _NOTHING, address)
    b.emit("mbarrier_wait", operands, flags=flags, imm=offset, mod=mod)


MBARRIER_OPCODES = opcodes(InstructionClass.SYNC, {"mbarrier": mbarrier})

_TO_SHARED, _SHARED, _TO_GLOBAL, _IM2COL = 0, 1, 2, 4
_ABSENT = (0, 0, 0)  # no address
_REDUCTIONS = ("add", "min", "max", "and", "or", "xor")  # in the order of the core's TW_ATOM_*
_COUNTING = {"inc": 8, "dec": 9}
_MODES = ("tile", "im2col", "im2col_no_offs")
_RANKS = ("1d", "2d", "3d", "4d", "5d")
_SHARED_NAMES = ("shared::cluster", "shared::cta")


def cp(b: FunctionBuilder, i: Instruction) -> None:
    """All forms of cp; non-bulk copies are lowered by `lower_memory`."""
    modifiers = Modifiers.of(i)
    reduces = modifiers.flag("reduce")
    if "mbarrier" in modifiers.left:
        _arrive_after_copies(b, i, modifiers)
    elif "bulk" not in modifiers.left:
        copy(b, i)
    elif "prefetch" in modifiers.left:
        b.emit("nop")
    else:
        modifiers.flag("async")
        modifiers.flag("bulk")
        _bulk(b, i, modifiers, reduces)


def _arrive_after_copies(b: FunctionBuilder, i: Instruction, modifiers: Modifiers) -> None:
    for name in ("async", "mbarrier", "arrive", "b64"):
        modifiers.need(name)
    counted = modifiers.flag("noinc")
    address, offset, mod = barrier_address(b, modifiers, i.operands[0])
    modifiers.finish()
    b.emit("mbarrier_copies", (-1, -1, -1, -1, address), flags=int(counted), imm=offset, mod=mod)


def _bulk(b: FunctionBuilder, i: Instruction, modifiers: Modifiers, reduces: bool) -> None:
    if modifiers.flag("commit_group"):
        modifiers.finish()
        b.emit("bulk_commit")
    elif modifiers.flag("wait_group"):
        only_read = modifiers.flag("read")
        modifiers.finish()
        groups = i.operands[0] if len(i.operands) == 1 else None
        if not isinstance(groups, Immediate):
            raise b.wrong("the number of groups belongs here")
        b.emit("bulk_wait", flags=int(only_read), imm=groups.bits)
    elif modifiers.flag("tensor"):
        _tensor(b, i, modifiers, reduces)
    else:
        _plain(b, i, modifiers, reduces)


def _reduction(modifiers: Modifiers, reduces: bool) -> int:
    """The core's reduction number plus one; 0 for a plain copy."""
    if not reduces:
        return 0
    name = modifiers.need(*_REDUCTIONS, *_COUNTING)
    modifiers.flag("noftz")
    return 1 + (_COUNTING[name] if name in _COUNTING else _REDUCTIONS.index(name))


def _place(b: FunctionBuilder, operand: Operand, space: str) -> tuple[int, int, int]:
    slot, offset, wide = address_of(b, operand, space)
    return slot, offset, int(wide == WIDE)


def _plain(b: FunctionBuilder, i: Instruction, modifiers: Modifiers, reduces: bool) -> None:
    """`[to], [from], size` and, with mbarrier completion, `[mbarrier]` and the multicast mask."""
    kind = modifiers.left.pop() if reduces else ""
    operation = _reduction(modifiers, reduces)
    policy = modifiers.cache_hints()
    spaces = [name.split("::")[0] for name in modifiers.left if name == "global" or name in _SHARED_NAMES]
    modifiers.left = [name for name in modifiers.left if name != "global" and name not in _SHARED_NAMES]
    multicast = modifiers.flag("multicast::cluster")
    counted = modifiers.flag("mbarrier::complete_tx::bytes")
    if not counted:
        modifiers.need("bulk_group")
    modifiers.finish()
    directions = {("shared", "global"): _TO_SHARED, ("shared", "shared"): _SHARED, ("global", "shared"): _TO_GLOBAL}
    direction = directions.get((spaces[0], spaces[1])) if len(spaces) == 2 else None
    operands = list(i.operands)
    if policy:
        operands.pop()
    if direction is None or counted == (direction == _TO_GLOBAL) or len(operands) != 3 + counted + multicast:
        raise unsupported(i, "this bulk copy")
    if operation and direction == _TO_SHARED:
        raise unsupported(i, "this bulk reduction")
    to, origin = _place(b, operands[0], spaces[0]), _place(b, operands[1], spaces[1])
    barrier = _place(b, operands[3], "shared") if counted else _ABSENT
    mask = b.source(operands[4], 2) if multicast else -1
    extra = (*to, *origin, *barrier, b.source(operands[2], 4), mask)
    number = lower_memory.ATOM_NUMBERS.get(kind) if operation else 0
    if number is None:
        raise unsupported(i, f"a bulk reduction of .{kind}")
    b.emit("bulk", flags=direction, count=operation, mod=number, extra=extra)


def _tensor(b: FunctionBuilder, i: Instruction, modifiers: Modifiers, reduces: bool) -> None:
    """`[shared], [map, {coordinates}], [mbarrier]{, {offsets}}{, mask}` or, outwards, `[map, ...], [shared]`."""
    operation = _reduction(modifiers, reduces)
    policy = modifiers.cache_hints()
    rank = int(modifiers.need(*_RANKS)[0])
    mode = modifiers.one_of(*_MODES) or "tile"
    loads = modifiers.left[:1] != ["global"]
    modifiers.flag("global")
    modifiers.one_of(*_SHARED_NAMES)
    multicast = modifiers.flag("multicast::cluster")
    modifiers.need("mbarrier::complete_tx::bytes" if loads else "bulk_group")
    modifiers.finish()
    operands = list(i.operands)
    if policy:
        operands.pop()
    shifted = mode == "im2col" and loads
    if len(operands) != (3 + shifted + multicast if loads else 2):
        raise unsupported(i, "this number of operands")
    shared, tensor = (operands[0], operands[1]) if loads else (operands[1], operands[0])
    if not isinstance(tensor, Address) or len(tensor.coordinates) != 1 or not isinstance(tensor.coordinates[0], Vector):
        raise b.wrong("a tensor map with its coordinates belongs here")
    coordinates = [b.source(one, 4) for one in tensor.coordinates[0].items]
    if len(coordinates) != rank:
        raise b.wrong(f"{len(coordinates)} coordinates where {rank} belong")
    offsets = [b.source(one, 2) for one in items_of(operands[3])] if shifted else []
    extra = (
        *_place(b, shared, "shared"),
        *_place(b, Address(tensor.base, tensor.offset), "generic"),
        *(_place(b, operands[2], "shared") if loads else _ABSENT),
        b.source(operands[3 + shifted], 2) if multicast else -1,
        *coordinates,
        *(-1,) * (5 - rank),
        *offsets,
        *(-1,) * (3 - len(offsets)),
    )
    flags = (_TO_SHARED if loads else _TO_GLOBAL) | (_IM2COL if mode != "tile" else 0)
    b.emit("bulk_tensor", flags=flags, count=rank, mod=operation, extra=extra)


# -- tensormap instructions --

# In the order of the core's TW_MAP_*.
_FIELDS = (
    *("global_address", "rank", "box_dim", "global_dim", "global_stride", "element_stride"),
    *("elemtype", "interleave_layout", "swizzle_mode", "fill_mode"),
)
_BY_DIMENSION = frozenset(("box_dim", "global_dim", "global_stride", "element_stride"))


def tensormap(b: FunctionBuilder, i: Instruction) -> None:
    """`replace.tile.field [map]{, dimension}, value`, and the copy of a map with its fence."""
    modifiers = Modifiers.of(i)
    if modifiers.flag("cp_fenceproxy"):
        extra = (*_place(b, i.operands[0], "global"), *_place(b, i.operands[1], "shared"))
        b.emit("tensormap_copy", extra=extra)
        return
    modifiers.need("replace")
    modifiers.need("tile")
    field = modifiers.need(*_FIELDS)
    space = modifiers.one_of("global", "shared::cta") or "generic"
    modifiers.flag("b1024")
    wide = modifiers.need("b32", "b64") == "b64"
    modifiers.finish()
    operands = list(i.operands)
    address, offset, is_wide = address_of(b, operands.pop(0), space.split("::")[0])
    dimension = operands.pop(0) if field in _BY_DIMENSION else Immediate(0)
    if len(operands) != 1 or not isinstance(dimension, Immediate):
        raise unsupported(i, "its operands")
    value = b.source(operands[0], 8 if wide else 4)
    b.emit(
        "tensormap_replace",
        (-1, int(wide), value, -1, address),
        flags=_FIELDS.index(field),
        count=dimension.bits,
        imm=offset,
        mod=is_wide | SPACES[space.split("::")[0]] << 10,
    )


OPCODES = {
    **opcodes(class_of_copy, {"cp": cp}, writes=False),
    **opcodes(InstructionClass.OTHER, {"tensormap": tensormap}, writes=False),
}


# -- clusters --

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
    generic = not modifiers.flag("shared::cluster")
    d, a = modifiers.finish(2)
    flags = (_WIDE if size == 8 else 0) | (_GENERIC if generic else 0)
    b.emit("getctarank", (b.target(d, 4), b.source(a, size)), flags=flags)


def cluster_barrier(b: FunctionBuilder, i: Instruction, modifiers: Modifiers) -> None:
    """`barrier.cluster`, after `bar` has read `.cluster`."""
    how = modifiers.need("arrive", "wait")
    order = modifiers.one_of("release", "relaxed") if how == "arrive" else modifiers.one_of("acquire")
    modifiers.flag("aligned")
    modifiers.finish(0)
    b.emit(f"cluster_{how}", flags=_RELAXED if order == "relaxed" else 0)


# -- st.async and red.async --


def st(b: FunctionBuilder, i: Instruction) -> None:
    """All stores; synchronous ones are lowered by `lower_memory`."""
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
    """All reductions; synchronous ones are lowered by `lower_memory`."""
    if "async" not in i.modifiers:
        lower_memory.atom(b, i)
        return
    modifiers = _counted(i)
    kind = modifiers.type("u32", "s32", "u64", "b32")
    operation = modifiers.need(*_CLUSTER_REDUCTIONS)
    modifiers.flag("relaxed")
    modifiers.flag("cluster")
    space = "cluster" if modifiers.flag("shared::cluster") else "generic"
    modifiers.finish()
    if kind not in _CLUSTER_REDUCTIONS[operation]:
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
_CLUSTER_REDUCTIONS: dict[str, tuple[str, ...]] = {
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


CLUSTER_OPCODES = {
    **opcodes(InstructionClass.MOVE, {"mapa": mapa, "getctarank": getctarank}),
    **opcodes(class_of_store, {"st": st}, writes=False),
    **opcodes(class_of_atomic, {"red": red}, writes=False),
}
