"""Abstract interpretation: the register values of all threads of one block, as far as code and launch determine them.

Nothing is run. A value is exact where parameters and thread indices determine it. A loop counter is known up to an
offset that all threads share, which still tells the strides between lanes. Values from memory, or written on divergent
paths, are unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from tilewright.lint.thread_values import (
    Known,
    Numbers,
    Origin,
    Value,
    Varying,
    compute,
    exact,
    is_whole,
    join,
    mixed,
    same,
    shuffled,
    signed,
)
from tilewright.ptx.control_flow import ControlFlow
from tilewright.ptx.operands import registers_of as operand_registers
from tilewright.ptx.syntax import (
    Address,
    Function,
    Immediate,
    Instruction,
    Negated,
    Operand,
    Pair,
    Register,
    Special,
    SymbolOperand,
    Vector,
)
from tilewright.records import Dim3
from tilewright.records.gpu import WARP_LANES, reached

_MOST_PASSES = 30  # over each basic block, on average

# Results that depend on other threads or on memory.
_FROM_OTHERS = frozenset(
    ("atom", "vote", "match", "activemask", "elect", "redux", "ldmatrix", "mma", "wgmma", "wmma", "call", "bar")
) | frozenset(("barrier", "mbarrier", "tex", "suld", "tcgen05", "isspacep", "clusterlaunchcontrol"))


def registers_of(operands: tuple[Operand | None, ...]) -> Iterator[str]:
    """Every register among operands, including addresses and vectors."""
    for operand in operands:
        if not isinstance(operand, Pair):  # which is where results go
            yield from operand_registers(operand)


def written_registers(instruction: Instruction) -> tuple[str, ...]:
    """The registers that an instruction writes."""
    first = instruction.operands[0] if instruction.operands else None
    if instruction.opcode in ("st", "red", "bra", "brx", "cp", "ret", "prefetch"):
        return ()
    return tuple(operand_registers(first)) if isinstance(first, (Register, Vector, Pair)) else ()


@dataclass(frozen=True)
class BlockPlace:
    """One block of a launch and its kernel parameters, by parameter name and byte offset."""

    block: Dim3
    grid: Dim3
    index: Dim3
    shared: frozenset[str]  # names of variables in shared memory
    numbers: Mapping[tuple[str, int], bytes]  # of a parameter, from each offset on
    tensors: Mapping[tuple[str, int], str]

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]


@dataclass(frozen=True, eq=False)
class RegisterValues:
    """Values of registers: one for a register with one definition, else one per instruction that uses it."""

    settled: Mapping[str, Value]
    used: Mapping[tuple[int, str], Value]  # by instruction and register

    def at(self, index: int, name: str) -> Value:
        """The value of a register at an instruction."""
        value = self.used.get((index, name))
        return value if value is not None else self.settled.get(name, Varying.BY_DATA)


def evaluate_registers(function: Function, flow: ControlFlow, place: BlockPlace) -> RegisterValues:
    """A value for every register that an instruction uses."""
    return _Evaluator(function, flow, place).run()


def region_of(flow: ControlFlow, block: int, meeting: int | None) -> frozenset[int]:
    """The basic blocks between a branch and its reconvergence point."""
    following = flow.blocks[block].successors
    return frozenset(reached(following, lambda one: flow.blocks[one].successors if one != meeting else ())) - {meeting}


class _Evaluator:
    def __init__(self, function: Function, flow: ControlFlow, place: BlockPlace) -> None:
        self.function = function
        self.flow = flow
        self.place = place
        self.values: dict[str, Value] = {}  # current values
        self.entering: list[dict[str, Value]] = [{} for _ in flow.blocks]  # of registers with several definitions
        self.parted: list[dict[str, Varying]] = [{} for _ in flow.blocks]  # written on divergent paths
        self.used: dict[tuple[int, str], Value] = {}
        self.waiting = set(range(len(flow.blocks)))  # blocks whose operands have changed
        self.gives_up = False
        # Floats are not tracked: they index nothing.
        self.floats = frozenset(name for name, kind in function.registers.items() if kind in ("f32", "f64"))
        written = [(name, index) for index, one in enumerate(function.body) for name in self._followed(one)]
        counts = Counter(name for name, _ in written)
        self.several = frozenset(name for name, count in counts.items() if count > 1)
        self.block_of = [number for number, block in enumerate(flow.blocks) for _ in range(block.start, block.end)]
        self.defined: list[set[str]] = [set() for _ in flow.blocks]
        for name, index in written:
            if name in self.several:
                self.defined[self.block_of[index]].add(name)
        self.users: dict[str, set[int]] = {}  # blocks, of registers with one definition
        for index, one in enumerate(function.body):
            guard = (one.guard,) if one.guard is not None else ()
            for name in registers_of((*one.operands, *guard)):
                if name not in self.several and name not in self.floats:
                    self.users.setdefault(name, set()).add(self.block_of[index])
        linear = np.arange(place.threads, dtype=np.int64)
        x, y, _ = place.block
        self.specials: dict[str, Numbers] = {
            "%tid.x": linear % x,
            "%tid.y": linear // x % y,
            "%tid.z": linear // (x * y),
            "%laneid": linear % WARP_LANES,
        }
        for axis, letter in enumerate("xyz"):
            self.specials[f"%ntid.{letter}"] = self._all(place.block[axis])
            self.specials[f"%nctaid.{letter}"] = self._all(place.grid[axis])
            self.specials[f"%ctaid.{letter}"] = self._all(place.index[axis])

    def run(self) -> RegisterValues:
        count = len(self.flow.blocks)
        visits = 0
        while self.waiting:  # the first block first: most of what it needs is there by then
            number = min(self.waiting)
            self.waiting.discard(number)
            visits += 1
            self.gives_up = visits > _MOST_PASSES * count
            self._block(number)
        settled = {name: value for name, value in self.values.items() if name not in self.several}
        return RegisterValues(settled, self.used)

    def _block(self, number: int) -> None:
        block = self.flow.blocks[number]
        for name in self.several:
            self.values.pop(name, None)
        self.values.update(self.entering[number])
        self.values.update(self.parted[number])
        for index in range(block.start, block.end):
            self._step(index, self.function.body[index])
        self._part(block.end - 1)
        for following in block.successors:
            entering = self.entering[following]
            for name in self.several:
                if name in self.values:
                    self._note(entering, name, self.values[name], (following,))

    def _part(self, index: int) -> None:
        """At the reconvergence point of a divergent branch, registers written in between differ by thread."""
        instruction = self.function.body[index]
        meeting = self.flow.reconvergence.get(index)
        if meeting is None or instruction.guard is None:
            return
        predicate = self.values.get(instruction.guard.name)
        if predicate is None or (isinstance(predicate, Known) and predicate.is_uniform):
            return
        target = self.block_of[meeting]
        written = {name for one in region_of(self.flow, self.block_of[index], target) for name in self.defined[one]}
        why = predicate if isinstance(predicate, Varying) else Varying.BY_THREAD
        for name in written:
            if self.parted[target].get(name) not in (why, Varying.BY_DATA):
                self.parted[target][name] = why
                self.waiting.add(target)

    def _step(self, index: int, instruction: Instruction) -> None:
        guard = (instruction.guard,) if instruction.guard is not None else ()
        for name in registers_of((*instruction.operands, *guard)):
            if name in self.several and name in self.values:
                self.used[index, name] = self.values[name]
        made = self._made(index, instruction) if (names := self._followed(instruction)) else None
        if made is None:  # nothing is written, or an operand has no value yet
            return
        for name in names:
            if name not in self.several:
                self._note(self.values, name, made, self.users.get(name, ()))
            elif guard and name in self.values:
                self.values[name] = join(self.values[name], made)
            else:
                self.values[name] = made

    def _followed(self, instruction: Instruction) -> list[str]:
        return [name for name in written_registers(instruction) if name not in self.floats]

    def _note(self, held: dict[str, Value], name: str, value: Value, users: Iterable[int]) -> None:
        before = held.get(name)
        if before is value or before is Varying.BY_DATA:
            return
        joined = value if before is None else join(before, value)
        if before is None or not same(before, joined):
            held[name] = Varying.BY_DATA if self.gives_up else joined
            self.waiting.update(users)

    def _all(self, number: int) -> Numbers:
        return np.full(self.place.threads, number, dtype=np.int64)

    def uniform(self, number: int | None = None) -> Known:
        return Known(self._all(number or 0), number is not None)

    # -- operands --

    def operand(self, operand: Operand | None) -> Value | None:
        """None: no value yet."""
        if isinstance(operand, Register):
            return Varying.BY_DATA if operand.name in self.floats else self.values.get(operand.name)
        if isinstance(operand, Negated):
            value = self.values.get(operand.register.name)
            return exact(lambda a: 1 - a, value) or value
        if isinstance(operand, Immediate):
            return self.uniform(signed(operand.bits)) if operand.width == 0 else self.uniform()
        if isinstance(operand, Special):
            known = self.specials.get(operand.name)
            if known is not None:
                return Known(known, True)
            return Varying.BY_THREAD if operand.name in ("%warpid", "%clock") else self.uniform()
        if isinstance(operand, SymbolOperand):
            space = "shared" if operand.name in self.place.shared else "module"
            return Known(self._all(operand.offset), True, Origin(space, operand.name))
        if isinstance(operand, Address):
            base = self.operand(operand.base)
            return replace(base, values=base.values + operand.offset) if isinstance(base, Known) else base
        if isinstance(operand, Vector):
            return mixed([self.operand(item) for item in operand.items])
        return self.uniform()

    # -- instructions --

    def _made(self, index: int, instruction: Instruction) -> Value | None:
        opcode, modifiers = instruction.opcode, instruction.modifiers
        sources = instruction.operands[1:]
        if opcode == "ld" and "param" in modifiers:
            return self._parameter(instruction)
        if opcode in ("ld", "ldu"):
            address = self.operand(sources[0]) if sources else None
            if address is None:
                return None
            return self.uniform() if isinstance(address, Known) and address.is_uniform else Varying.BY_DATA
        values = [self.operand(source) for source in sources]
        if any(value is None for value in values):
            return None
        if opcode == "shfl":
            return shuffled(modifiers, [value for value in values if value is not None])
        if opcode in _FROM_OTHERS or len(written_registers(instruction)) > 1:
            return Varying.BY_DATA if opcode in _FROM_OTHERS else mixed(values)
        known = [value for value in values if isinstance(value, Known)]
        if len(known) < len(values) or not known or not is_whole(modifiers):
            return mixed(values)
        made = compute(index, opcode, modifiers, known)
        return made if made is not None else mixed(values)

    def _parameter(self, instruction: Instruction) -> Value:
        address = instruction.operands[1]
        if not isinstance(address, Address) or not isinstance(address.base, SymbolOperand):
            return self.uniform()
        key = (address.base.name, address.base.offset + address.offset)
        if key in self.place.tensors:
            return Known(self._all(0), True, Origin("tensor", self.place.tensors[key]))
        kind = instruction.modifiers[-1]
        held = self.place.numbers.get(key)
        if held is None or kind[0] == "f" or "v2" in instruction.modifiers or "v4" in instruction.modifiers:
            return self.uniform()
        size = int(kind[1:]) // 8
        return self.uniform(int.from_bytes(held[:size], "little", signed=kind[0] != "u" or size == 8))
