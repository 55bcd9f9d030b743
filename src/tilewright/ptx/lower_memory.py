"""Lowers loads, stores, atomics, fences and asynchronous copies."""

from __future__ import annotations

from tilewright.ptx.classes import InstructionClass, class_of_atomic, class_of_load
from tilewright.ptx.lower_builder import FunctionBuilder, opcodes
from tilewright.ptx.lower_integer import BITS, INTEGERS, SPACES
from tilewright.ptx.operands import TYPE_BYTES, Modifiers, items_of, operands_of, unsupported
from tilewright.ptx.syntax import Address, Immediate, Instruction, Operand, Register, Sink, Special, SymbolOperand

_TYPES = ("b8", "u8", "s8", *BITS, *INTEGERS, "f16", "bf16", "f32", "f64", "b128", "f16x2", "bf16x2")
_LOG2 = {1: 0, 2: 1, 4: 2, 8: 3}
SIGNED, WIDE, READ_ONLY = 1 << 4, 1 << 5, 1 << 14
_WEAK, _VOLATILE, _RELAXED, _ACQUIRE, _RELEASE, _ACQ_REL, _GUESS = range(7)
_SCOPE_CTA = 8
_SPACE_NAMES = (
    *("global", "shared", "shared::cta", "local", "const", "param", "param::entry", "param::func"),
    *("shared::cluster",),
)


def _order(modifiers: Modifiers, default: int = _WEAK) -> int:
    """Memory order and scope, in the race detector's encoding."""
    orders = {"weak": _WEAK, "volatile": _VOLATILE, "mmio": _VOLATILE, "relaxed": _RELAXED, "acquire": _ACQUIRE}
    orders.update(release=_RELEASE, acq_rel=_ACQ_REL)
    name = modifiers.one_of(*orders)
    scope = modifiers.one_of("cta", "cluster", "gpu", "sys")
    if name == "mmio":
        modifiers.flag("relaxed")
    return (default if name is None else orders[name]) | (_SCOPE_CTA if scope == "cta" else 0)


def _space(modifiers: Modifiers) -> str:
    name = modifiers.one_of(*_SPACE_NAMES)
    if name == "shared::cluster":
        return "cluster"
    return "generic" if name is None else name.split("::")[0]


def address_of(b: FunctionBuilder, operand: Operand, space: str) -> tuple[int, int, int]:
    """Operand, offset and the flag for a 64-bit address register."""
    if not isinstance(operand, Address):
        raise b.wrong("an address in brackets belongs here")
    if operand.coordinates:
        raise unsupported(b.instruction, "tensor coordinates")
    base = operand.base
    if isinstance(base, Register):
        size = b.register_bytes(base)
        if size not in (4, 8):
            raise b.wrong(f"{base.name} cannot hold an address")
        return b.slot(base), operand.offset, WIDE if size == 8 else 0
    if isinstance(base, Immediate):
        return b.code.constants.operand(8, base.bits), operand.offset, WIDE
    if isinstance(base, Special):
        raise unsupported(b.instruction, "an address in a special register")
    placed = b.place_symbol(base.name)
    if placed is not None and placed.kind == "shared" and space == "generic":
        raise unsupported(b.instruction, "a generic access to a shared variable's name")
    return b.symbol_value(base, 8), operand.offset, WIDE


class Access:
    """The common part of ld and st: state space, order, type, elements."""

    def __init__(self, b: FunctionBuilder, i: Instruction, modifiers: Modifiers) -> None:
        self.kind = modifiers.type(*_TYPES)
        self.policy = modifiers.cache_hints()
        self.order = _order(modifiers)
        self.space = _space(modifiers)
        self.read_only = modifiers.flag("nc")
        vector = modifiers.one_of("v2", "v4", "v8")
        modifiers.flag("unified")
        modifiers.finish()
        self.count = int(vector[1]) if vector else 1
        self.element = TYPE_BYTES[self.kind]
        if self.count == 8 or self.element * self.count > 16:
            raise unsupported(i, "accesses of more than 16 bytes")

    def registers(self, b: FunctionBuilder, operand: Operand, *, written: bool) -> tuple[tuple[int, ...], int]:
        """Slots of the elements and log2 of the bytes of their lanes."""
        items = items_of(operand)
        if len(items) != self.count:
            raise b.wrong(f"{len(items)} elements where {self.count} belong")
        if self.element == 16:
            slot = b.target(items[0], 16) if written else b.source(items[0], 16)
            self.element, self.count = 8, 2
            return ((slot, slot + 256) if slot >= 0 else (-1, -1)), 3
        sizes = {b.register_bytes(item) for item in items if isinstance(item, Register)}
        natural = max(self.element, 2)
        size = sizes.pop() if sizes else natural
        if sizes or size < self.element or size not in (2, 4, 8):
            raise b.wrong("the registers do not fit the type")
        if written:
            return tuple(b.target(item, size) for item in items), _LOG2[size]
        is_float = self.kind in ("f32", "f64")
        return tuple(b.source(item, size, is_float=is_float) for item in items), _LOG2[size]

    def mod(self, register: int, wide: int) -> int:
        signed = SIGNED if self.kind[0] == "s" else 0
        cached = READ_ONLY if self.read_only else 0
        return _LOG2[self.element] | register << 2 | signed | wide | cached | self.order << 6 | SPACES[self.space] << 10


def _in_frame(
    b: FunctionBuilder, name: str, access: Access, slots: tuple[int, ...], register: int, operand: Operand
) -> bool:
    """Emit an access to a function's parameter; False if the address is not one."""
    if not isinstance(operand, Address) or not isinstance(operand.base, SymbolOperand):
        return False
    placed = b.place_symbol(operand.base.name)
    if placed is None or placed.frame is None:
        return False
    variable, offset = placed.frame, operand.offset + operand.base.offset
    if offset < 0 or offset + access.element * access.count > variable.size_bytes:
        raise b.wrong("the access lies outside the parameter")
    padded = (*slots, *(-1,) * (4 - len(slots)), variable.at, variable.stride)
    b.emit(name, padded, count=access.count, imm=variable.offset + offset, mod=access.mod(register, 0))
    return True


def ld(b: FunctionBuilder, i: Instruction) -> None:
    access = Access(b, i, Modifiers.of(i))
    operands_of(i, 3 if access.policy else 2)
    swap = b.swap_guesses.get(b.index)
    if swap is not None:
        access.order = _GUESS | (_SCOPE_CTA if "cta" in swap.modifiers else 0)
    slots, register = access.registers(b, i.operands[0], written=True)
    source = i.operands[1]
    if access.space == "param" and _in_frame(b, "ld_frame", access, slots, register, source):
        return
    padded = (*slots, *(-1,) * (4 - len(slots)))
    if access.space == "param" and isinstance(source, Address) and isinstance(source.base, SymbolOperand):
        placed = b.place_symbol(source.base.name)
        offset = source.offset + source.base.offset
        if placed is None or placed.kind != "parameter":
            raise b.wrong(f"`{source.base.name}` is not a parameter")
        if offset < 0 or offset + access.element * access.count > placed.size_bytes:
            raise b.wrong("the access lies outside the parameter")
        b.emit("ld_param", padded, count=access.count, imm=placed.value + offset, mod=access.mod(register, 0))
        return
    address, offset, wide = address_of(b, source, access.space)
    names = {"global": "ld_global", "const": "ld_global", "local": "ld_local"}
    names.update(shared="ld_shared", cluster="ld_shared")
    name = names.get(access.space, "ld")
    b.emit(name, (*padded, address), count=access.count, imm=offset, mod=access.mod(register, wide))


def st(b: FunctionBuilder, i: Instruction) -> None:
    access = Access(b, i, Modifiers.of(i))
    operands_of(i, 3 if access.policy else 2)
    slots, register = access.registers(b, i.operands[1], written=False)
    if access.space == "param":
        if not _in_frame(b, "st_frame", access, slots, register, i.operands[0]):
            raise unsupported(i, "a store to a parameter that is not a function's")
        return
    if access.space == "const":
        raise b.wrong("constant memory cannot be written")
    address, offset, wide = address_of(b, i.operands[0], access.space)
    names = {"global": "st_global", "shared": "st_shared", "cluster": "st_shared", "local": "st_local"}
    name = names.get(access.space, "st")
    padded = (*slots, *(-1,) * (4 - len(slots)))
    b.emit(name, (*padded, address), count=access.count, imm=offset, mod=access.mod(register, wide))


# -- atomics --

ATOMS = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")
_ATOM_TYPES = ("u32", "s32", "u64", "s64", "f32", "f64", "f16", "bf16", "f16x2", "bf16x2", "b16")
ATOM_NUMBERS = {**{name: number for number, name in enumerate(_ATOM_TYPES)}, "b32": 0, "b64": 2}
_INTEGER_ATOMS = {"u32", "s32", "u64", "s64"}
_HALF_ATOMS = ("f16", "bf16", "f16x2", "bf16x2")
_VECTOR_ATOMS = {**dict.fromkeys(ATOMS, ()), "add": ("f32", *_HALF_ATOMS), "min": _HALF_ATOMS, "max": _HALF_ATOMS}


def _atom_allows(operation: str, kind: str) -> bool:
    if operation in ("exch", "cas"):
        return kind in ("b32", "b64", "u32", "u64", "s32", "s64", "f32", "f64") or (
            operation == "cas" and kind == "b16"
        )
    if operation == "add":
        return kind in (*_INTEGER_ATOMS, "f32", "f64", "f16", "bf16", "f16x2", "bf16x2")
    if operation in ("min", "max"):
        return kind in (*_INTEGER_ATOMS, "f16", "bf16", "f16x2", "bf16x2")
    if operation in ("and", "or", "xor"):
        return kind in ("b32", "b64")
    return kind == "u32"


def atom(b: FunctionBuilder, i: Instruction) -> None:
    """atom and red."""
    modifiers = Modifiers.of(i)
    kind = modifiers.type(*ATOM_NUMBERS, "b128")
    modifiers.cache_hints()
    modifiers.flag("noftz")
    operation = modifiers.need(*ATOMS)
    order = _order(modifiers, default=_RELAXED)
    space = _space(modifiers)
    width = int((modifiers.one_of("v2", "v4", "v8") or "v1")[1:])
    modifiers.finish()
    if width > 1 and (space != "global" or kind not in _VECTOR_ATOMS[operation]):
        raise unsupported(i, f"{i.opcode}.{operation} of .v{width}.{kind}")
    if not _atom_allows(operation, kind) or space not in ("generic", "global", "shared", "cluster"):
        raise unsupported(i, f"{i.opcode}.{operation} of .{kind}")
    operands = list(i.operands)
    destination = operands.pop(0) if i.opcode == "atom" else Sink()
    expected = 3 if operation == "cas" else 2
    if len(operands) not in (expected, expected + 1):
        raise unsupported(i, "this number of operands")
    size = TYPE_BYTES[kind]
    address, offset, wide = address_of(b, operands[0], space)
    is_float = kind in ("f32", "f64")
    values, targets = items_of(operands[1]), items_of(destination)
    if len(values) != width or (width > 1 and i.opcode == "atom" and len(targets) != width):
        raise unsupported(i, "this number of elements")
    for k, value in enumerate(values):  # each element is atomic separately
        first = b.source(value, size, is_float=is_float)
        second = b.source(operands[2], size, is_float=is_float) if operation == "cas" else first
        b.emit(
            "atom",
            (b.target(targets[k % len(targets)], size), -1, first, second, address),
            flags=ATOMS.index(operation),
            count=ATOM_NUMBERS[kind],
            imm=offset + k * size,
            mod=wide | order << 6 | SPACES[space] << 10,
        )


def fence(b: FunctionBuilder, i: Instruction) -> None:
    modifiers = Modifiers.of(i)
    if i.opcode == "membar":
        scope = modifiers.need("cta", "gl", "sys")
    else:
        is_proxy = modifiers.flag("proxy")
        modifiers.one_of("sc", "acq_rel", "acquire", "release")
        scope = modifiers.one_of("cta", "cluster", "gpu", "sys") or "gpu"
        if modifiers.flag("mbarrier_init"):
            b.emit("fence_init")
        modifiers.one_of("sync_restrict::shared::cta", "sync_restrict::shared::cluster")
        if is_proxy:
            _proxy_fence(b, modifiers)
            return
    modifiers.finish()
    b.emit("fence", mod=_SCOPE_CTA if scope == "cta" else 0)


def _proxy_fence(b: FunctionBuilder, modifiers: Modifiers) -> None:
    """Only fences to the async proxy matter: aliases and tensor maps are always coherent here."""
    between = modifiers.need("alias", "async", "async::generic", "tensormap::generic")
    modifiers.one_of("global", "shared::cta", "shared::cluster")
    modifiers.finish()
    b.emit("fence_proxy" if between == "async" else "nop")


# -- cp.async --


def class_of_copy(parts: tuple[str, ...]) -> InstructionClass:
    waits = any("wait" in part or "commit" in part or part == "mbarrier" for part in parts)
    return InstructionClass.SYNC if waits else InstructionClass.ASYNC_COPY


def copy(b: FunctionBuilder, i: Instruction) -> None:
    """Non-bulk cp.async without mbarriers."""
    modifiers = Modifiers.of(i)
    if not modifiers.flag("async"):
        raise unsupported(i, "this copy")
    if modifiers.flag("commit_group"):
        modifiers.finish()
        b.emit("cp_async_commit")
    elif modifiers.flag("wait_group"):
        modifiers.finish()
        groups = i.operands[0] if len(i.operands) == 1 else None
        if not isinstance(groups, Immediate):
            raise b.wrong("the number of groups belongs here")
        b.emit("cp_async_wait", imm=groups.bits)
    elif modifiers.flag("wait_all"):
        modifiers.finish()
        b.emit("cp_async_wait", flags=1)
    else:
        _copy(b, i, modifiers)


def _copy(b: FunctionBuilder, i: Instruction, modifiers: Modifiers) -> None:
    cached = modifiers.need("ca", "cg")
    policy = modifiers.cache_hints()
    if modifiers.one_of("shared", "shared::cta") is None or not modifiers.flag("global"):
        raise unsupported(i, "this asynchronous copy")
    modifiers.finish()
    operands = list(i.operands)
    if policy:
        operands.pop()
    if len(operands) not in (3, 4) or not isinstance(operands[2], Immediate):
        raise unsupported(i, "this number of operands")
    size = operands[2].bits
    if size not in ((4, 8, 16) if cached == "ca" else (16,)):
        raise b.wrong(f"cp.async.{cached} cannot copy {size} bytes")
    to, to_offset, to_wide = address_of(b, operands[0], "shared")
    origin, offset, wide = address_of(b, operands[1], "global")
    bytes_read, ignore = -1, -1
    if len(operands) == 4:
        if isinstance(operands[3], Register) and b.register_bytes(operands[3]) == 0:
            ignore = b.predicate(operands[3])
        elif isinstance(operands[3], (Immediate, Register)):
            bytes_read = b.source(operands[3], 4)
        else:
            ignore = b.predicate(operands[3])
    b.emit(
        "cp_async",
        (to, origin, bytes_read, ignore, to_offset),
        flags=int(bool(to_wide)),
        count=size,
        imm=offset,
        mod=wide | SPACES["global"] << 10,
    )


# -- cache hints --


def nothing(b: FunctionBuilder, i: Instruction) -> None:
    """prefetch, discard and the like have no effect on values."""
    b.emit("nop")


def createpolicy(b: FunctionBuilder, i: Instruction) -> None:
    """Cache policies are ignored."""
    b.emit("mov_64", (b.target(i.operands[0], 8), b.code.constants.operand(8, 0)))


OPCODES = {
    **opcodes(class_of_load, {"ld": ld, "ldu": ld}),
    **opcodes(class_of_atomic, {"atom": atom}),
    **opcodes(InstructionClass.SYNC, {"membar": fence, "fence": fence}, writes=False),
    **opcodes(
        InstructionClass.OTHER,
        dict.fromkeys(("prefetch", "prefetchu", "discard", "applypriority"), nothing),
        writes=False,
    ),
    **opcodes(InstructionClass.CONTROL, {"pmevent": nothing}, writes=False),
    **opcodes(InstructionClass.OTHER, {"createpolicy": createpolicy}),
}
