"""Rules on the order of things: barriers in conditions, copies nobody waits for, loads that stores hold back."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilewright.lint.catalogue import found
from tilewright.lint.kernel_reading import Access, KernelReading, grows_from_itself
from tilewright.lint.register_values import registers_of, written_registers
from tilewright.lint.thread_numbers import Known, Varying
from tilewright.ptx.syntax import Instruction, Register
from tilewright.records import LintFinding, LintRule
from tilewright.records.emulation import kernel_line
from tilewright.records.gpu import WARP_LANES

_SHARED_READS = ("ld", "ldmatrix", "wmma")
_TENSOR_OPCODES = frozenset(("mma", "wmma", "wgmma", "tcgen05"))
_PASSES_ON = frozenset(("cvt", "mov", "prmt", "shl", "and", "shr"))
_PLAIN_LOAD = frozenset(("global", "b8", "b16", "b32", "b64", "u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64")) | {
    *("f16", "f32", "f64", "v2", "v4", "bf16"),
}


# -- barriers --


def barriers(reading: KernelReading) -> Iterator[LintFinding]:
    """Barriers of the whole block on a way that only some of its threads go."""
    waiting = [index for index, one in enumerate(reading.function.body) if _is_block_barrier(one)]
    if not waiting:
        return
    for branch, instruction in reading.branches():
        if not _parts_threads(reading, branch, instruction):
            continue
        region = reading.region(branch)
        for index in waiting:
            if reading.block_of(index) in region:
                line = kernel_line(reading.function.body[index].places)
                at = kernel_line(instruction.places)
                told = f"the condition at line {at}" if at is not None else "a condition"
                evidence = f"{told} sends threads of one block different ways (block {reading.place.index})"
                yield found(LintRule.DIVERGENT_BARRIER, reading.kernel, line, evidence)


def _is_block_barrier(instruction: Instruction) -> bool:
    """`__syncthreads()`: all threads at barrier 0; others are for parts of a block."""
    if (
        instruction.opcode not in ("bar", "barrier")
        or "sync" not in instruction.modifiers
        or "cluster" in instruction.modifiers
    ):
        return False
    first = instruction.operands[0] if instruction.operands else None
    return len(instruction.operands) == 1 and getattr(first, "bits", None) == 0


def _parts_threads(reading: KernelReading, branch: int, instruction: Instruction) -> bool:
    """Whether a branch surely sends threads of the block different ways.

    Where they meet again only to leave, those that skip the barrier are gone: whole warps may go, parts of one may not.
    """
    predicate = reading.predicate(branch)
    meeting = reading.flow.reconvergence[branch]
    leaves = meeting is None or reading.function.body[meeting].opcode in ("ret", "exit")
    if not isinstance(predicate, Known):
        return predicate is Varying.BY_THREAD and not leaves and _turns_differ(reading, instruction)
    mask, certain = reading.state(reading.block_of(branch))
    width = WARP_LANES if leaves else len(mask)
    groups = [
        predicate.values[start : start + width][mask[start : start + width]] for start in range(0, len(mask), width)
    ]
    return predicate.anchored and certain and any(len(group) and np.ptp(group) for group in groups)


def _turns_differ(reading: KernelReading, instruction: Instruction) -> bool:
    """Of a loop that counts from a known start to a known end: whether some threads go round it more often."""
    body = reading.function.body
    written = reading.definitions.get(instruction.guard.name, []) if instruction.guard is not None else []
    tests = [index for index in written if body[index].opcode == "setp"]
    if len(tests) != 1 or body[tests[0]].modifiers[0] not in ("lt", "ge"):
        return False
    _, counter, last = body[tests[0]].operands[:3]
    end = reading.value_of(tests[0], last)
    if not isinstance(counter, Register) or not isinstance(end, Known) or end.number is None:
        return False
    start, step = _counted(reading, counter.name)
    if start is None or step is None or step <= 0:
        return False
    turns = -((start.values - end.number) // step)
    return bool(np.ptp(np.maximum(turns, 0)))


def _counted(reading: KernelReading, name: str) -> tuple[Known | None, int | None]:
    """Where a counter starts and how far it goes in a turn, if it is made of just these."""
    start: Known | None = None
    step: int | None = None
    for index in reading.definitions.get(name, []):
        instruction = reading.function.body[index]
        values = [reading.value_of(index, operand) for operand in instruction.operands[1:]]
        first, second = values[0], values[-1]
        if instruction.opcode == "add" and name in registers_of(instruction.operands[1:2]) and step is None:
            step = second.number if isinstance(second, Known) else None
        elif start is None and isinstance(first, Known) and first.anchored and instruction.opcode == "mov":
            start = first
        else:
            return None, None
    return start, step


# -- asynchronous copies --


def copies(reading: KernelReading) -> Iterator[LintFinding]:
    """cp.async in a kernel that never waits, or whose data is read on a way without a wait."""
    body = reading.function.body
    started = [index for index, one in enumerate(body) if _is_copy(one)]
    if not started or any(_is_wait(one) for one in body):
        return
    reads = [index for index, one in enumerate(body) if _reads_shared(one)]
    for index in started:
        if any(reading.may_follow(index, read) for read in reads):
            evidence = "the kernel reads shared memory after this cp.async and has no cp.async.wait"
            yield found(LintRule.UNWAITED_COPY, reading.kernel, kernel_line(body[index].places), evidence)


def _is_copy(instruction: Instruction) -> bool:
    words = instruction.modifiers
    return instruction.opcode == "cp" and "async" in words and "bulk" not in words and ("ca" in words or "cg" in words)


def _is_wait(instruction: Instruction) -> bool:
    words = instruction.modifiers
    return instruction.opcode == "cp" and ("wait_group" in words or "wait_all" in words or "mbarrier" in words)


def _reads_shared(instruction: Instruction) -> bool:
    words = [word.partition("::")[0] for word in instruction.modifiers]
    return instruction.opcode in _SHARED_READS and ("shared" in words or instruction.opcode == "ldmatrix")


# -- loads behind stores --


def restrict(reading: KernelReading) -> Iterator[LintFinding]:
    """Loads of a tensor that is only read, in a loop with stores to another, which may be the same for all it knows."""
    moves = [one for one in reading.accesses if one.space == "global"]
    stores = [one for one in moves if not one.is_load]
    if _stores_unknown(reading, stores):
        return
    written = {one.origin for one in stores}  # and, further down, those told already
    for access in moves:
        if not access.is_load or access.origin is None or access.origin in written or access.origin.space != "tensor":
            continue
        if not set(access.instruction.modifiers) <= _PLAIN_LOAD:
            continue
        beside = next((one for one in stores if reading.in_one_loop(access.index, one.index)), None)
        if beside is not None and beside.origin is not None:
            evidence = f"{access.origin.name} is only read, but its load waits for the store to {beside.origin.name}"
            at = f" at line {beside.line}" if beside.line is not None else ""
            written.add(access.origin)
            yield found(LintRule.MISSING_RESTRICT, reading.kernel, access.line, evidence + at)


def _stores_unknown(reading: KernelReading, stores: list[Access]) -> bool:
    known = {one.index for one in stores if one.origin is not None}
    writing = ("st", "red", "atom")
    return any(
        one.opcode in writing and index not in known and "shared" not in one.modifiers and "local" not in one.modifiers
        for index, one in enumerate(reading.function.body)
    )


# -- matrix products --


def tensor_cores(reading: KernelReading) -> Iterator[LintFinding]:
    """Sums of products of 16-bit numbers where one factor follows rows of threads and the other columns."""
    body = reading.function.body
    if any(instruction.opcode in _TENSOR_OPCODES for instruction in body):
        return
    loads = {one.index: one for one in reading.accesses if one.is_load}
    for index, instruction in enumerate(body):
        if instruction.opcode != "fma" or reading.block_of(index) not in reading.loop_blocks:
            continue
        (name,) = written_registers(instruction) or ("",)
        if not grows_from_itself(reading.function, reading.definitions, name, index):
            continue
        factors = [_loaded(reading, loads, operand) for operand in instruction.operands[1:3]]
        if all(one is not None and one.size == 2 for one in factors) and _is_outer(*factors):
            evidence = "a sum of products of 16-bit numbers, each used by a row or a column of threads, without mma"
            yield found(LintRule.IDLE_TENSOR_CORES, reading.kernel, kernel_line(instruction.places), evidence)


def _loaded(reading: KernelReading, loads: dict[int, Access], operand: object) -> Access | None:
    """The load a factor comes from, through conversions only."""
    for _ in range(8):
        if not isinstance(operand, Register):
            return None
        places = reading.definitions.get(operand.name, [])
        if len(places) != 1:
            return None
        instruction = reading.function.body[places[0]]
        if places[0] in loads:
            return loads[places[0]]
        if instruction.opcode not in _PASSES_ON:
            return None
        operand = next((Register(name) for name in registers_of(instruction.operands[1:])), None)
    return None


def _is_outer(first: Access | None, second: Access | None) -> bool:
    if first is None or second is None:
        return False
    rows, columns = first.address.values, second.address.values
    pairs = len(np.unique(np.stack([rows, columns]), axis=1)[0])
    return pairs > len(np.unique(rows)) > 1 and pairs > len(np.unique(columns)) > 1
