"""Builds the decoded instructions of a function: register slots, constants, emission.

Registers that are live in one basic block only share slots with others of the same width, because divergent lanes may
be in different blocks at the same time; all other registers have their own slot.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from tilewright.ptx import syntax
from tilewright.ptx.classes import InstructionClass
from tilewright.ptx.control_flow import ControlFlow
from tilewright.ptx.native import opcode_numbers
from tilewright.ptx.operands import REGISTER_BYTES, registers_of, special_number, unsupported
from tilewright.ptx.syntax import Function, Immediate, Instruction, Module, Operand, PtxError, Register, SymbolOperand
from tilewright.ptx.wgmma_registers import WgmmaRegisters
from tilewright.records.gpu import WARP_LANES

CONTROL = 128  # flag: runs even when no lane is active
_ENCODED = struct.Struct("=HBBi8iqII")
_LARGEST_FRAME_BYTES = 4 << 20

# What notes an access, by the operation that makes it.
_NOTED = {
    **dict.fromkeys(("ld", "ld_global"), "note_ld"),
    **dict.fromkeys(("st", "st_global"), "note_st"),
    **{name: f"note_{name}" for name in ("atom", "cp_async", "bulk", "bulk_tensor", "wmma_load", "wmma_store")},
}

Lowering = Callable[["FunctionBuilder", Instruction], None]


@dataclass(frozen=True)
class Opcode:
    """The lowering and class of a PTX opcode."""

    lower: Lowering
    kind: InstructionClass | Callable[[tuple[str, ...]], InstructionClass]  # or a function of opcode and modifiers
    writes: bool = True  # whether its first operand is the destination


def opcodes(
    kind: InstructionClass | Callable[[tuple[str, ...]], InstructionClass],
    lowerings: Mapping[str, Lowering],
    *,
    writes: bool = True,
) -> dict[str, Opcode]:
    """Opcodes of one class."""
    return {name: Opcode(lower, kind, writes) for name, lower in lowerings.items()}


@dataclass(frozen=True)
class FrameVariable:
    """Per-lane bytes in the frame: a parameter or result of a function. [lane][stride]."""

    at: int
    stride: int
    offset: int
    size_bytes: int


@dataclass(frozen=True)
class Placed:
    """The location of a symbol: an absolute address, or an offset in the frame, local memory or parameters."""

    kind: str  # "address", "shared", "frame", "local", "parameter", "function"
    value: int = 0
    frame: FrameVariable | None = None
    size_bytes: int = 0


@dataclass
class Constants:
    """Immediates, broadcast to 32 lanes once per program."""

    data: bytearray = field(default_factory=bytearray)
    places: dict[tuple[int, int], int] = field(default_factory=dict)

    def operand(self, size_bytes: int, bits: int) -> int:
        bits &= (1 << (8 * size_bytes)) - 1
        key = (size_bytes, bits)
        place = self.places.get(key)
        if place is None:
            self.data.extend(bytes(-len(self.data) % 64))
            place = len(self.data) | 1
            self.places[key] = place
            self.data.extend(bits.to_bytes(size_bytes, "little") * WARP_LANES)
        return place

    def predicate(self, value: bool) -> int:
        return self.operand(4, 0xFFFFFFFF if value else 0)


@dataclass
class ProgramCode:
    """The code of a kernel and its callees."""

    constants: Constants = field(default_factory=Constants)
    encoded: bytearray = field(default_factory=bytearray)
    origins: list[Instruction | None] = field(default_factory=list)  # the source of each decoded instruction
    extra: list[int] = field(default_factory=list)

    @property
    def position(self) -> int:
        return len(self.origins)

    def patch(self, position: int, target: int, field_offset: int) -> None:
        size = 8 if field_offset == 40 else 4
        at = position * _ENCODED.size + field_offset
        self.encoded[at : at + size] = target.to_bytes(size, "little", signed=True)


@dataclass
class Fixups:
    """References to instructions whose positions are not known yet."""

    targets: list[tuple[int, int, int]] = field(default_factory=list)  # position, field offset, body index
    tables: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)  # start in extra, body indices
    calls: list[tuple[int, str]] = field(default_factory=list)  # position, function


def _uses(instruction: Instruction, no_result: Collection[str]) -> Iterator[tuple[str, bool]]:
    """Registers in order of access, and whether the access only writes."""
    if instruction.guard is not None:
        yield instruction.guard.name, False
    writes = instruction.guard is None and instruction.opcode not in no_result
    for position in range(len(instruction.operands) - 1, -1, -1):  # sources first: they are read first
        operand = instruction.operands[position]
        written = writes and position == 0 and not isinstance(operand, syntax.Address)
        for name in registers_of(operand):
            yield name, written


def _block_local(
    function: Function, flow: ControlFlow, no_result: Collection[str], kept: frozenset[str]
) -> dict[str, int]:
    """Registers used in one block only and written before read -> index of their last use."""
    block_of: dict[str, int] = {}
    last: dict[str, int] = {}
    shared = set(kept)
    for number, block in enumerate(flow.blocks):
        for index in range(block.start, block.end):
            for name, written in _uses(function.body[index], no_result):
                if block_of.setdefault(name, number) != number or (name not in last and not written):
                    shared.add(name)
                last[name] = index
    return {name: index for name, index in last.items() if name not in shared}


@dataclass
class FunctionBuilder:
    """Slots and emission for one function."""

    code: ProgramCode
    module: Module
    function: Function
    flow: ControlFlow
    place_symbol: Callable[[str], Placed | None]
    swap_guesses: Mapping[int, Instruction]  # initial loads of compare-and-swap loops -> the swap
    no_result: Collection[str]  # opcodes without a destination operand
    wgmma: WgmmaRegisters
    fixups: Fixups = field(default_factory=Fixups)
    frame_bytes: int = 0
    index: int = 0
    _slots: dict[str, int] = field(default_factory=dict)
    _free: dict[int, list[int]] = field(default_factory=lambda: {0: [], 2: [], 4: [], 8: []})
    _predicate_line: int = -1
    _predicates_in_line: int = 0
    _last_use: dict[str, int] = field(default_factory=dict)
    _ends: dict[int, list[str]] = field(default_factory=dict)
    _temporaries: list[tuple[int, int]] = field(default_factory=list)
    _instruction: Instruction | None = None
    _numbers: dict[str, int] = field(default_factory=opcode_numbers)
    _guard: int = -1
    noted: bool = False  # emit the forms that note an access and move no values

    def __post_init__(self) -> None:
        self._last_use = _block_local(self.function, self.flow, self.no_result, self.wgmma.kept)
        for name, index in self._last_use.items():
            self._ends.setdefault(index, []).append(name)

    # -- the instruction being lowered --

    @property
    def instruction(self) -> Instruction:
        assert self._instruction is not None
        return self._instruction

    def begin(self, index: int, instruction: Instruction) -> None:
        self.index = index
        self._instruction = instruction
        self._guard = -1
        if instruction.guard is not None:
            self._guard = self.predicate(instruction.guard) | (2 if instruction.guard_negated else 0)

    def watch_registers(self) -> None:
        """Emit the checks before an instruction that may access registers of a wgmma in flight."""
        if self.index in self.wgmma.copies:
            to, origin = (self.source(operand, 4) for operand in self.instruction.operands)
            self.emit("wgmma_copy", (to, origin))
        read, written = self.wgmma.reads.get(self.index, ()), self.wgmma.writes.get(self.index, ())
        slots = tuple(self.slot(Register(name)) for name in (*read, *written))
        if slots:
            self.emit("wgmma_touch", (len(read),), count=len(slots), extra=slots)

    def begin_nothing(self) -> None:
        """Emit without a source instruction from here on."""
        self._instruction = None
        self._guard = -1

    def end(self) -> None:
        for size, slot in self._temporaries:
            self._free[size].append(slot)
        self._temporaries.clear()
        for name in self._ends.get(self.index, ()):
            if name in self._slots:
                slot = self._slots.pop(name)
                size = REGISTER_BYTES[self.function.registers[name]]
                if size == 16:
                    self._free[8].extend((slot, slot + 256))
                else:
                    self._free[size].append(slot)

    # -- slots --

    def allocate(self, size_bytes: int) -> int:
        """Fresh bytes in the frame, a multiple of 64."""
        at = self.frame_bytes
        self.frame_bytes += -(-size_bytes // 64) * 64
        if self.frame_bytes > _LARGEST_FRAME_BYTES:
            raise PtxError(f"{self.function.name} needs more than {_LARGEST_FRAME_BYTES} bytes of registers per warp")
        return at

    def _slot(self, size: int, *, used_before: bool = True) -> int:
        if size == 16:
            return self.allocate(512)
        if used_before and self._free[size]:
            return self._free[size].pop()
        if size == 0:
            if self._predicate_line < 0 or self._predicates_in_line == 16:
                self._predicate_line = self.allocate(64)
                self._predicates_in_line = 0
            slot = self._predicate_line + 4 * self._predicates_in_line
            self._predicates_in_line += 1
            return slot
        return self.allocate(size * WARP_LANES)

    def temporary(self, size: int) -> int:
        """A slot until the end of this instruction; size 0 is a predicate."""
        slot = self._slot(size)
        self._temporaries.append((size, slot))
        return slot

    def register_bytes(self, register: Register) -> int:
        declared = self.function.registers.get(register.name)
        if declared is None:
            raise PtxError(
                f"the register {register.name} is not declared", self.instruction.ptx_line, self.instruction.text
            )
        size = REGISTER_BYTES.get(declared)
        if size is None:
            raise unsupported(self.instruction, f"registers of type .{declared}")
        return size

    def slot(self, register: Register) -> int:
        place = self._slots.get(register.name)
        if place is None:
            # Registers of several blocks may be live around a loop, or uninitialised: never reuse a slot.
            place = self._slot(self.register_bytes(register), used_before=register.name in self._last_use)
            self._slots[register.name] = place
        return place

    # -- operands --

    def wrong(self, why: str) -> PtxError:
        return PtxError(why, self.instruction.ptx_line, self.instruction.text)

    def predicate(self, operand: Operand | None) -> int:
        """The slot of a source predicate."""
        if isinstance(operand, syntax.Negated):
            return self.predicate(operand.register) ^ 2
        if isinstance(operand, Register):
            if self.register_bytes(operand) != 0:
                raise self.wrong(f"{operand.name} stands where a predicate belongs")
            return self.slot(operand)
        if isinstance(operand, Immediate):
            return self.code.constants.predicate(operand.bits != 0)
        if isinstance(operand, syntax.Special):  # %is_explicit_cluster
            value, slot = self.source(operand, 4), self.temporary(0)
            self.emit("setp_ne_u32", (slot, -1, value, self.code.constants.operand(4, 0), -1))
            return slot
        raise self.wrong("a predicate is missing")

    def predicate_target(self, operand: Operand | None) -> int:
        """The slot of a destination predicate; -1 for the sink."""
        if operand is None or isinstance(operand, syntax.Sink):
            return -1
        if not isinstance(operand, Register) or self.register_bytes(operand) != 0:
            raise self.wrong("a predicate register belongs here")
        return self.slot(operand)

    def target(self, operand: Operand | None, size: int) -> int:
        """The slot of a destination register of `size` bytes; -1 for the sink."""
        if operand is None or isinstance(operand, syntax.Sink):
            return -1
        if not isinstance(operand, Register):
            raise self.wrong("a register belongs here")
        found = self.register_bytes(operand)
        if found != size:
            raise self.wrong(f"{operand.name} has {8 * found} bits where {8 * size} belong")
        return self.slot(operand)

    def source(self, operand: Operand | None, size: int, *, is_float: bool = False) -> int:
        """The slot of a source of `size` bytes: register, immediate, special register or address."""
        if isinstance(operand, Register):
            found = self.register_bytes(operand)
            if found != size:
                raise self.wrong(f"{operand.name} has {8 * found} bits where {8 * size} belong")
            return self.slot(operand)
        if isinstance(operand, Immediate):
            return self.code.constants.operand(size, self.immediate_bits(operand, size, is_float))
        if isinstance(operand, syntax.Special):
            slot = self.temporary(size)
            self.special(slot, operand.name, size)
            return slot
        if isinstance(operand, SymbolOperand):
            return self.symbol_value(operand, size)
        raise self.wrong("an operand is missing or of a kind that does not belong here")

    def immediate_bits(self, immediate: Immediate, size: int, is_float: bool) -> int:
        if immediate.width in (0, 8 * size):
            if immediate.width == 0 and is_float and immediate.bits != 0:
                return _float_bits(float(immediate.bits), size)
            return immediate.bits
        if immediate.width == 64 and size == 4:
            return _float_bits(struct.unpack("<d", immediate.bits.to_bytes(8, "little"))[0], 4)
        if immediate.width == 32 and size == 8:
            return _float_bits(struct.unpack("<f", immediate.bits.to_bytes(4, "little"))[0], 8)
        raise unsupported(self.instruction, f"a {immediate.width}-bit float immediate for a {8 * size}-bit operand")

    def symbol_value(self, symbol: SymbolOperand, size: int) -> int:
        placed = self.place_symbol(symbol.name)
        if placed is None:
            raise self.wrong(f"`{symbol.name}` is not declared")
        if placed.kind == "frame":
            raise unsupported(self.instruction, "the address of a function's parameter")
        if placed.kind == "local":
            slot = self.temporary(8)
            self.emit("local_address", (slot,), imm=placed.value + symbol.offset)
            if size == 8:
                return slot
            narrow = self.temporary(4)
            self.emit("cvt_32_64", (narrow, slot))
            return narrow
        if placed.kind == "parameter" and size == 8:
            slot = self.temporary(8)
            self.emit("parameter_address", (slot,), imm=placed.value + symbol.offset)
            return slot
        return self.code.constants.operand(size, placed.value + symbol.offset)

    def special(self, slot: int, name: str, size: int) -> None:
        number = special_number(name)
        if number is None:
            raise unsupported(self.instruction, f"the special register {name}")
        self.emit("special", (slot,), flags=number, count=size)

    # -- emission --

    def emit(
        self,
        name: str,
        operands: tuple[int, ...] = (),
        *,
        flags: int = 0,
        count: int = 0,
        imm: int = 0,
        mod: int = 0,
        extra: tuple[int, ...] | None = None,
        guarded: bool = True,
    ) -> int:
        """Append one decoded instruction; returns its position."""
        position = self.code.position
        start = 0
        if extra is not None:
            start = len(self.code.extra)
            self.code.extra.extend(extra)
        padded = (*operands, *(0,) * (8 - len(operands)))
        guard = self._guard if guarded else -1
        signed = (imm + (1 << 63)) % (1 << 64) - (1 << 63)
        self.code.encoded += _ENCODED.pack(
            self._numbers[_NOTED.get(name, name) if self.noted else name],
            flags,
            count,
            guard,
            *padded,
            signed,
            start,
            mod & 0xFFFFFFFF,
        )
        self.code.origins.append(self._instruction)
        return position


def _float_bits(value: float, size: int) -> int:
    return int.from_bytes(struct.pack({2: "<e", 4: "<f", 8: "<d"}[size], value), "little")
