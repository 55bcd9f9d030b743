"""Data-flow analysis of wgmma registers: accesses to registers that may be in flight, and missing wgmma.fence.

A wgmma writes its accumulator, and reads A from registers, until wait_group. The analysis follows all paths and finds
the instructions that the interpreter must check; a correct kernel has none. A register-to-register `mov` counts as no
access, because ptxas coalesces such copies of accumulators; the destination takes the state of the source.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

from tilewright.ptx.control_flow import ControlFlow
from tilewright.ptx.operands import registers_of
from tilewright.ptx.syntax import Address, Function, Immediate, Instruction, Register, Vector

_MOST_GROUPS = 8  # beyond so many commits a wait cannot tell groups apart


@dataclass(frozen=True)
class WgmmaRegisters:
    """What lowering needs to know of a function's wgmmas; instructions are named by their index."""

    kept: frozenset[str] = frozenset()  # registers with a slot of their own
    reads: dict[int, tuple[str, ...]] = field(
        default_factory=dict
    )  # registers that may be in flight when it reads them
    writes: dict[int, tuple[str, ...]] = field(default_factory=dict)
    copies: frozenset[int] = frozenset()  # `mov` of a register that may be in flight
    unfenced: frozenset[int] = frozenset()  # wgmmas on a register that was written and not fenced since

    @property
    def tracked(self) -> bool:
        return bool(self.reads or self.writes)


def wgmma_registers(function: Function, flow: ControlFlow, no_result: frozenset[str]) -> WgmmaRegisters:
    """Of a function without wgmma: nothing."""
    if not any(_is_multiply(one) for one in function.body):
        return WgmmaRegisters()
    return _Search(function, flow, no_result).run()


def _is_multiply(one: Instruction) -> bool:
    return one.opcode == "wgmma" and one.modifiers[:1] == ("mma_async",)


def sums_of(one: Instruction) -> tuple[str, ...]:
    return tuple(registers_of(one.operands[0]))


def left_of(one: Instruction) -> tuple[str, ...]:
    """Registers of a; none where it lies in shared memory."""
    return tuple(registers_of(one.operands[1])) if isinstance(one.operands[1], Vector) else ()


@dataclass
class _State:
    """Before an instruction: commits since the youngest wgmma that has a register in flight; registers not fenced.

    What is written behind the fence of the next wgmmas counts as fenced: compilers move arithmetic there, and the
    assembler sees to its order.
    """

    flights: dict[str, int] = field(default_factory=dict)
    unfenced: set[str] = field(default_factory=set)
    fenced: bool = False  # since the last wgmma

    def copy(self) -> _State:
        return _State(dict(self.flights), set(self.unfenced), self.fenced)

    def join(self, other: _State) -> bool:
        """Whether anything was new."""
        before = len(self.unfenced)
        self.unfenced |= other.unfenced
        changed = len(self.unfenced) != before or (self.fenced and not other.fenced)
        self.fenced &= other.fenced
        for name, commits in other.flights.items():
            if self.flights.get(name, _MOST_GROUPS + 1) > commits:
                self.flights[name] = commits
                changed = True
        return changed


class _Search:
    def __init__(self, function: Function, flow: ControlFlow, no_result: frozenset[str]) -> None:
        self._body = function.body
        self._blocks = flow.blocks
        self._no_result = no_result
        self._reads: dict[int, tuple[str, ...]] = {}
        self._writes: dict[int, tuple[str, ...]] = {}
        self._copies: set[int] = set()
        self._unfenced: set[int] = set()
        self._multiplied = self._operands()

    def _operands(self) -> set[str]:
        """Registers of products, and what is copied to them: no others are asked whether they were fenced."""
        found = {name for one in self._body if _is_multiply(one) for name in (*sums_of(one), *left_of(one))}
        copies = [copied for one in self._body if (copied := _copied(one))]
        while more := {origin for to, origin in copies if to in found} - found:
            found |= more
        return found

    def run(self) -> WgmmaRegisters:
        entry: list[_State | None] = [None] * len(self._blocks)
        entry[0] = _State()
        waiting = [0]  # a heap: blocks in code order, so that most are visited once or twice
        while waiting:
            number = heapq.heappop(waiting)
            start = entry[number]
            assert start is not None
            state = start.copy()
            for index in range(self._blocks[number].start, self._blocks[number].end):
                self._step(index, state)
            for successor in self._blocks[number].successors:
                known = entry[successor]
                if known is None:
                    entry[successor] = state.copy()
                elif not known.join(state) or successor in waiting:
                    continue
                heapq.heappush(waiting, successor)
        kept = {name for one in self._body if _is_multiply(one) for name in (*sums_of(one), *left_of(one))}
        kept |= {name for index in self._copies for name in _copied(self._body[index])}
        return WgmmaRegisters(
            frozenset(kept), self._reads, self._writes, frozenset(self._copies), frozenset(self._unfenced)
        )

    def _step(self, index: int, state: _State) -> None:
        one = self._body[index]
        if one.opcode == "wgmma":
            self._warpgroup(index, one, state)
            return
        if not state.flights and not _defines(one, self._no_result):
            return
        copied = _copied(one)
        if copied:
            self._copy(index, copied, state)
            return
        written = tuple(_written(one, self._no_result))
        read = [
            name
            for operand in one.operands
            for name in registers_of(operand)
            if name in state.flights and name not in written
        ]
        if read:
            self._reads[index] = tuple(dict.fromkeys(read))
        lost = [name for name in written if name in state.flights]
        if lost:
            self._writes[index] = tuple(lost)
            for name in lost:
                del state.flights[name]
        if one.opcode != "mov" and not state.fenced:  # constants are made where they are used
            state.unfenced.update(name for name in written if name in self._multiplied)

    def _copy(self, index: int, copied: tuple[str, str], state: _State) -> None:
        to, origin = copied
        if to in state.flights or origin in state.flights:
            self._copies.add(index)
        commits = state.flights.get(origin)
        if commits is None:
            state.flights.pop(to, None)
        else:
            state.flights[to] = commits
        if origin in state.unfenced and to in self._multiplied:
            state.unfenced.add(to)
        else:
            state.unfenced.discard(to)

    def _warpgroup(self, index: int, one: Instruction, state: _State) -> None:
        kind = one.modifiers[0] if one.modifiers else ""
        if kind == "fence":
            state.unfenced.clear()
            state.fenced = True
        elif kind == "commit_group":
            state.flights = {name: min(commits + 1, _MOST_GROUPS) for name, commits in state.flights.items()}
        elif kind == "wait_group":
            pending = one.operands[0].bits if one.operands and isinstance(one.operands[0], Immediate) else 0
            state.flights = {name: commits for name, commits in state.flights.items() if commits <= pending}
        elif _is_multiply(one):
            used = (*sums_of(one), *left_of(one))
            if any(name in state.unfenced for name in used):
                self._unfenced.add(index)
            early = tuple(name for name in left_of(one) if name in state.flights)
            if early:
                self._reads[index] = early
            state.flights.update(dict.fromkeys(used, 0))
            state.fenced = False


def _copied(one: Instruction) -> tuple[str, str] | tuple[()]:
    """Target and source of a `mov` from register to register."""
    if one.opcode != "mov" or len(one.operands) != 2 or one.guard is not None:
        return ()
    to, origin = one.operands
    return (to.name, origin.name) if isinstance(to, Register) and isinstance(origin, Register) else ()


def _defines(one: Instruction, no_result: frozenset[str]) -> bool:
    return bool(one.operands) and one.opcode not in no_result


def _written(one: Instruction, no_result: frozenset[str]) -> Iterator[str]:
    if _defines(one, no_result) and not isinstance(one.operands[0], Address):
        yield from registers_of(one.operands[0])
