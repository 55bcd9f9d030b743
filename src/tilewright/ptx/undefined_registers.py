"""Finds reads of registers that nothing can have written before, on whichever way the kernel came there.

What such a register holds is up to the assembler and to what ran before. A register that is written on some of the ways
is not among these: compilers leave such where no result depends on it.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.ptx.control_flow import ControlFlow
from tilewright.ptx.operands import registers_of
from tilewright.ptx.slicing import used_registers, written_registers
from tilewright.ptx.syntax import Function, Instruction


def undefined_reads(function: Function, flow: ControlFlow) -> tuple[Instruction, ...]:
    body = function.body
    made = [frozenset(_made(body[block.start : block.end])) for block in flow.blocks]
    known = [set[str]() for _ in flow.blocks]  # may have been written before a block
    waiting = list(range(len(flow.blocks)))
    while waiting:
        number = waiting.pop()
        after = known[number] | made[number]
        for following in flow.blocks[number].successors:
            if not after <= known[following]:
                known[following] |= after
                waiting.append(following)
    parts = (body[block.start : block.end] for block in flow.blocks)
    return tuple(one for part, before in zip(parts, known, strict=True) for one in _reads(part, before))


def _made(body: tuple[Instruction, ...]) -> Iterator[str]:
    for one in body:
        yield from written_registers(one)
        if one.opcode == "call":  # whichever of its operands it returns
            yield from (name for operand in one.operands for name in registers_of(operand))


def _reads(body: tuple[Instruction, ...], before: set[str]) -> Iterator[Instruction]:
    known = set(before)
    for one in body:
        if one.opcode != "call" and any(name not in known for name in used_registers(one)):
            yield one
        known.update(_made((one,)))
