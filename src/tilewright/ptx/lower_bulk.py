"""Lowering of bulk copies: with and without tensor maps, reductions, their groups and their fences."""

from __future__ import annotations

from tilewright.ptx.classes import InstructionClass
from tilewright.ptx.lower_builder import FunctionBuilder, opcodes
from tilewright.ptx.lower_integer import SPACES
from tilewright.ptx.lower_mbarrier import barrier_address
from tilewright.ptx.lower_memory import WIDE, address_of, atom_number, class_of_copy, copy
from tilewright.ptx.operands import Modifiers, items_of, unsupported
from tilewright.ptx.syntax import Address, Immediate, Instruction, Operand, Vector

_TO_SHARED, _SHARED, _TO_GLOBAL, _IM2COL = 0, 1, 2, 4
_ABSENT = (0, 0, 0)  # an address that nobody looks at
_REDUCTIONS = ("add", "min", "max", "and", "or", "xor")  # at the numbers of the core's TW_ATOM_*
_COUNTING = {"inc": 8, "dec": 9}
_MODES = ("tile", "im2col", "im2col_no_offs")
_RANKS = ("1d", "2d", "3d", "4d", "5d")
_SHARED_NAMES = ("shared::cluster", "shared::cta")


def cp(b: FunctionBuilder, i: Instruction) -> None:
    """Every copy; those that are not bulk are lower_memory's."""
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
    """The core's number plus one; 0: none."""
    if not reduces:
        return 0
    name = modifiers.need(*_REDUCTIONS, *_COUNTING)
    modifiers.flag("noftz")
    return 1 + (_COUNTING[name] if name in _COUNTING else _REDUCTIONS.index(name))


def _place(b: FunctionBuilder, operand: Operand, space: str) -> tuple[int, int, int]:
    slot, offset, wide = address_of(b, operand, space)
    return slot, offset, int(wide == WIDE)


def _plain(b: FunctionBuilder, i: Instruction, modifiers: Modifiers, reduces: bool) -> None:
    """`[to], [from], size` and, of those that an mbarrier counts, `[mbarrier]` and the mask of ranks."""
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
    number = atom_number(kind) if operation else 0
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


# -- maps that a kernel changes --

# In the order of the core's TW_MAP_*; those with a dimension, and those that are written as names or small numbers.
_FIELDS = (
    *("global_address", "rank", "box_dim", "global_dim", "global_stride", "element_stride"),
    *("elemtype", "interleave_layout", "swizzle_mode", "fill_mode"),
)
_BY_DIMENSION = frozenset(("box_dim", "global_dim", "global_stride", "element_stride"))


def tensormap(b: FunctionBuilder, i: Instruction) -> None:
    """`replace.tile.field [map]{, dimension}, value`, and the copy of a map with its fence, which needs none here."""
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
