"""A compiled kernel as the rules see it: one block of a launch, its memory accesses, and the threads active in each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tilewright.lint.register_values import (
    BlockPlace,
    RegisterValues,
    evaluate_registers,
    region_of,
    registers_of,
    written_registers,
)
from tilewright.lint.thread_values import Known, Origin, Value, Varying
from tilewright.ptx.control_flow import ControlFlow, branch_targets, flow, immediate_post_dominators
from tilewright.ptx.syntax import Address, Function, Immediate, Instruction, Module, Operand, Register
from tilewright.records import Dim3, PackedLaunch, TensorSpec
from tilewright.records.emulation import kernel_line
from tilewright.records.gpu import reached

Mask = NDArray[np.bool_]
_MOVES = ("ld", "st", "atom", "red", "ldmatrix", "cp")
_WIDTHS = {"v2": 2, "v4": 4, "v8": 8}


@dataclass(frozen=True, eq=False)
class Access:
    """One instruction that accesses global or shared memory, for all threads of the block."""

    index: int  # into the function's body
    instruction: Instruction
    space: str  # "global" or "shared"
    size: int  # bytes of one thread
    address: Known
    active: Mask  # the threads that reach it, as far as is known
    certain: bool  # whether exactly these do

    @property
    def origin(self) -> Origin | None:
        return self.address.origin

    @property
    def line(self) -> int | None:
        return kernel_line(self.instruction.places)

    @property
    def is_load(self) -> bool:
        return self.instruction.opcode in ("ld", "ldmatrix")

    def warps(self) -> Iterator[NDArray[np.int64]]:
        """The addresses of each warp's active threads."""
        for start in range(0, len(self.active), 32):
            taking = self.active[start : start + 32]
            if taking.any():
                yield self.address.values[start : start + 32][taking]


@dataclass(frozen=True, eq=False)
class BlockAnalysis:
    """One block of one launch."""

    function: Function
    launch: PackedLaunch
    place: BlockPlace
    tensors: dict[str, TensorSpec]
    flow: ControlFlow
    registers: RegisterValues

    @property
    def kernel(self) -> str:
        return self.launch.kernel

    @cached_property
    def loop_blocks(self) -> frozenset[int]:
        """Basic blocks inside a loop."""
        return frozenset(block for block in range(len(self.flow.blocks)) if block in self._behind[block])

    @cached_property
    def _behind(self) -> list[frozenset[int]]:
        """For each basic block, those that can run after it."""
        blocks = self.flow.blocks
        return [frozenset(reached(block.successors, lambda one: blocks[one].successors)) for block in blocks]

    def may_follow(self, first: int, second: int) -> bool:
        """Whether an instruction can run after another."""
        block, following = self.block_of(first), self.block_of(second)
        return following in self._behind[block] or (block == following and second > first)

    def in_one_loop(self, first: int, second: int) -> bool:
        block, other = self.block_of(first), self.block_of(second)
        return other in self._behind[block] and block in self._behind[other]

    def value_of(self, index: int, operand: Operand) -> Value:
        """The value of an instruction's operand."""
        if isinstance(operand, Register):
            return self.registers.at(index, operand.name)
        if isinstance(operand, Immediate) and operand.width == 0:
            return Known(np.full(self.place.threads, operand.bits, dtype=np.int64), True)
        return Varying.BY_DATA

    @cached_property
    def definitions(self) -> dict[str, list[int]]:
        """For each register, the instructions that write it."""
        found: dict[str, list[int]] = {}
        for index, instruction in enumerate(self.function.body):
            for name in written_registers(instruction):
                found.setdefault(name, []).append(index)
        return found

    def block_of(self, index: int) -> int:
        return self._block_of[index]

    @cached_property
    def _block_of(self) -> list[int]:
        return [number for number, block in enumerate(self.flow.blocks) for _ in range(block.start, block.end)]

    def predicate(self, index: int) -> Value | None:
        """The predicate of a guarded instruction: 1 in the threads that execute it."""
        instruction = self.function.body[index]
        if instruction.guard is None:
            return None
        value = self.registers.at(index, instruction.guard.name)
        if instruction.guard_negated and isinstance(value, Known) and value.anchored:
            return Known(1 - value.values, True)
        return value

    def region(self, branch: int) -> frozenset[int]:
        """The basic blocks between a branch and its reconvergence point."""
        meeting = self.flow.reconvergence.get(branch)
        return region_of(self.flow, self.block_of(branch), None if meeting is None else self.block_of(meeting))

    def branches(self) -> Iterator[tuple[int, Instruction]]:
        for index in self.flow.reconvergence:
            yield index, self.function.body[index]

    @cached_property
    def rare(self) -> frozenset[int]:
        """Basic blocks behind data-dependent branches: how many threads reach them is unknown."""
        found: set[int] = set()
        for index, _ in self.branches():
            if self.predicate(index) is Varying.BY_DATA:
                found |= self.region(index)
        return frozenset(found)

    # -- active threads --

    @cached_property
    def states(self) -> list[tuple[Mask, bool]]:
        """For each basic block, the threads that reach it, and whether that is certain."""
        blocks = self.flow.blocks
        everyone = np.ones(self.place.threads, dtype=bool)
        if not blocks:
            return []
        forward = [tuple(s for s in block.successors if s > number) for number, block in enumerate(blocks)]
        backward = [[b for b in range(len(blocks)) if number in blocks[b].successors] for number in range(len(blocks))]
        dominators = immediate_post_dominators(backward, [number == 0 for number in range(len(blocks))])
        meetings = immediate_post_dominators([block.successors for block in blocks], [block.leaves for block in blocks])
        states: list[tuple[Mask, bool] | None] = [None] * len(blocks)
        states[0] = (everyone, True)
        for number in range(1, len(blocks)):
            before = dominators[number]
            if before is not None and meetings[before] == number and states[before] is not None:
                states[number] = states[before]
                continue
            arriving = [self._along(b, number, states[b]) for b in backward[number] if number in forward[b]]
            came = [state for state in arriving if state is not None]
            # A loop's first iteration stands for the others only if all threads leave it together.
            again = any(number not in forward[b] for b in backward[number]) and not self._leave_together(number)
            mask = np.logical_or.reduce([state[0] for state in came]) if came else everyone
            states[number] = (mask, bool(came) and len(came) == len(arriving) and all(s[1] for s in came) and not again)
        return [state or (everyone, False) for state in states]

    def _leave_together(self, head: int) -> bool:
        """Whether no branch out of a loop diverges."""
        inside = [block for block in self._behind[head] if head in self._behind[block]]
        for block in inside:
            predicate = self.predicate(self.flow.blocks[block].end - 1)
            leaving = any(following not in inside for following in self.flow.blocks[block].successors)
            if leaving and not (predicate is None or (isinstance(predicate, Known) and predicate.is_uniform)):
                return False
        return True

    def _along(self, block: int, following: int, state: tuple[Mask, bool] | None) -> tuple[Mask, bool] | None:
        if state is None:
            return None
        mask, certain = state
        end = self.flow.blocks[block].end - 1
        last = self.function.body[end]
        predicate = self.predicate(end) if last.opcode in ("bra", "ret", "exit") else None
        if predicate is None:
            return state if last.opcode != "brx" else (mask, False)
        if not isinstance(predicate, Known) or not predicate.anchored:
            return mask, False
        taken = predicate.values != 0
        target = (
            {self.block_of(t) for t in branch_targets(self.function, last) if t < len(self.function.body)}
            if last.opcode == "bra"
            else set()
        )
        return mask & (taken if following in target else ~taken), certain

    # -- accesses --

    @cached_property
    def accesses(self) -> tuple[Access, ...]:
        """Every access with an address known well enough to compare lanes."""
        found = []
        for index, instruction in enumerate(self.function.body):
            if instruction.opcode in _MOVES:
                access = self._access(index, instruction)
                found += [access] if access is not None else []
        return tuple(found)

    def _access(self, index: int, instruction: Instruction) -> Access | None:
        written = instruction.opcode in ("st", "red", "cp")
        operand = instruction.operands[0 if written else 1] if len(instruction.operands) > 1 else None
        if not isinstance(operand, Address) or operand.coordinates or "bulk" in instruction.modifiers:
            return None
        base = self.registers.at(index, operand.base.name) if isinstance(operand.base, Register) else None
        if not isinstance(base, Known):
            return None
        space = _space(instruction, base.origin)
        size = _size(instruction)
        if space is None or size is None:
            return None
        address = Known(base.values + operand.offset, base.anchored, base.origin, base.wrapped)
        mask, certain = self.states[self.block_of(index)]
        predicate = self.predicate(index)
        if isinstance(predicate, Known) and predicate.anchored:
            mask = mask & (predicate.values != 0)
        elif predicate is not None:
            certain = False
        return Access(index, instruction, space, size, address, mask, certain)


def read_kernel(
    module: Module, launch: PackedLaunch, tensors: dict[str, TensorSpec], index: Dim3
) -> BlockAnalysis | None:
    """The block at `index` of a launch; None where the module does not contain the kernel."""
    function = module.functions.get(launch.symbol)
    if function is None or len(function.parameters) != len(launch.parameters):
        return None
    variables = (*module.variables, *function.variables)
    shared = frozenset(variable.name for variable in variables if variable.space.value == "shared")
    numbers: dict[tuple[str, int], bytes] = {}
    pointers: dict[tuple[str, int], str] = {}
    tensor_at = {field.offset: field.tensor for field in launch.pointers}
    for parameter, (offset, size) in zip(function.parameters, launch.parameters, strict=True):
        for inner in range(0, size, 1 if size < 256 else size):
            numbers[parameter.name, inner] = launch.block_template[offset + inner : offset + size]
            if offset + inner in tensor_at:
                pointers[parameter.name, inner] = tensor_at[offset + inner]
    place = BlockPlace(launch.block, launch.grid, index, shared, numbers, pointers)
    graph = flow(function)
    return BlockAnalysis(function, launch, place, tensors, graph, evaluate_registers(function, graph, place))


def grows_from_itself(function: Function, definitions: dict[str, list[int]], name: str, place: int) -> bool:
    """Whether an instruction's result depends on the previous value of its own register, as an accumulator does."""
    seen: set[str] = set()
    waiting = [place]
    while waiting:
        for used in registers_of(function.body[waiting.pop()].operands[1:]):
            if used == name:
                return True
            if used not in seen:
                seen.add(used)
                waiting += definitions.get(used, []) if len(definitions.get(used, [])) == 1 else []
    return False


def _space(instruction: Instruction, origin: Origin | None) -> str | None:
    for modifier in instruction.modifiers:
        name = modifier.partition("::")[0]
        if name in ("global", "shared"):
            return name
        if name in ("local", "const", "param"):
            return None
    return {"tensor": "global", "shared": "shared"}.get(origin.space) if origin is not None else None


def _size(instruction: Instruction) -> int | None:
    if instruction.opcode == "ldmatrix":
        return 16
    if instruction.opcode == "cp":
        size = instruction.operands[2] if len(instruction.operands) > 2 else None
        return getattr(size, "bits", None)
    kind = instruction.modifiers[-1]
    digits = {"bf16": "16", "bf16x2": "32", "f16x2": "32"}.get(kind, kind[1:])
    count = next((_WIDTHS[modifier] for modifier in instruction.modifiers if modifier in _WIDTHS), 1)
    return int(digits) // 8 * count if digits.isdigit() and int(digits) >= 8 else None
