"""Lowering of mbarrier in all its forms."""

from __future__ import annotations

from tilewright.ptx.classes import InstructionClass
from tilewright.ptx.lower_builder import FunctionBuilder, opcodes
from tilewright.ptx.lower_integer import SPACES
from tilewright.ptx.lower_memory import address_of
from tilewright.ptx.operands import Modifiers, unsupported
from tilewright.ptx.syntax import Address, Instruction, Operand, Sink

PARITY, NO_COMPLETE, DROPS, RELAXED = 1, 1, 2, 4  # flags, as the core has them
_NOTHING = -1


def barrier_address(b: FunctionBuilder, modifiers: Modifiers, operand: Operand) -> tuple[int, int, int]:
    """Slot, offset and modifier bits of the object's address; without a space it is generic."""
    space = modifiers.one_of("shared", "shared::cta", "shared::cluster")
    address, offset, wide = address_of(b, operand, "shared" if space else "generic")
    return address, offset, wide | SPACES["shared" if space else "generic"] << 10


def mbarrier(b: FunctionBuilder, i: Instruction) -> None:
    modifiers = Modifiers.of(i)
    forms = {"init": _init, "inval": _inval, "pending_count": _pending, "expect_tx": _bytes, "complete_tx": _bytes}
    forms.update({"arrive": _arrive, "arrive_drop": _arrive, "test_wait": _wait, "try_wait": _wait})
    # The operation stands first: `arrive.expect_tx` is an arrival.
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
    """Acquire and release are what these do anyway; only .relaxed differs."""
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
    """`arrive{.expect_tx|.noComplete} state, [address]{, count or bytes}`; of another block's object no state."""
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
    """How long a try_wait suspends its thread is the scheduler's business, with a hint or without."""
    parity = modifiers.flag("parity")
    flags = _order(modifiers) | (PARITY if parity else 0)
    address, offset, mod = barrier_address(b, modifiers, i.operands[1])
    modifiers.finish()
    phase = b.source(i.operands[2], 4 if parity else 8)
    operands = (b.predicate_target(i.operands[0]), _NOTHING, phase, _NOTHING, address)
    b.emit("mbarrier_wait", operands, flags=flags, imm=offset, mod=mod)


OPCODES = opcodes(InstructionClass.SYNC, {"mbarrier": mbarrier})
