"""Rules on memory: out of bounds, overflowing, misaligned and uncoalesced accesses, bank conflicts, barriers and
copies."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tilewright.lint.catalogue import found
from tilewright.lint.kernel_reading import Access, BlockAnalysis, grows_from_itself
from tilewright.lint.register_values import registers_of, written_registers
from tilewright.lint.thread_values import Known, Varying, max_value
from tilewright.ptx.syntax import Instruction, Register
from tilewright.records import LintFinding, LintRule, ThreadRecord
from tilewright.records.emulation import kernel_line
from tilewright.records.gpu import SECTOR_BYTES, WARP_LANES

# A request is reported if it needs so many times the minimum, and so many more sectors or passes.
_TIMES = 4.0
_MORE = 3.0
_FILLED = 2.0  # with neighbouring accesses below this, the cache makes up for it
_BANK_BYTES = 4
_BANKS = 32
_ATOMIC_FLOATS = frozenset(("f16", "f16x2", "bf16", "bf16x2", "f32", "f64"))
_LARGE_BYTES = 1 << 20  # of a tensor: below, launches cost more than loads


def bounds(reading: BlockAnalysis) -> Iterator[LintFinding]:
    """Threads that certainly access memory past the end of a tensor."""
    for access in _exact(reading):
        assert access.origin is not None
        spec = reading.tensors[access.origin.name]
        past = access.active & (
            (access.address.values < 0) | (access.address.values + access.size > spec.storage_bytes)
        )
        if not past.any() or access.address.wrapped is not None:
            continue
        thread = int(np.argmax(past))
        offset = int(access.address.values[thread])
        where = f"{offset - spec.storage_bytes} bytes after the end of"
        if offset < spec.storage_bytes:
            where = f"{-offset} bytes before" if offset < 0 else "across the end of"
        verb = "reads" if access.is_load else "writes"
        x, y, _ = reading.place.block
        who = ThreadRecord(reading.place.index, (thread % x, thread // x % y, thread // (x * y)))
        evidence = f"{who} {verb} {access.size} bytes {where} {access.origin.name} = {spec}"
        yield found(LintRule.MISSING_BOUNDS, reading.kernel, access.line, evidence)


def overflow(reading: BlockAnalysis) -> Iterator[LintFinding]:
    for access in reading.accesses:
        if access.address.wrapped is None or access.origin is None or access.origin.name not in reading.tensors:
            continue
        widening = reading.function.body[access.address.wrapped]
        index = reading.value_of(access.address.wrapped, widening.operands[1])
        # Inactive threads and negative indices are not reported.
        beyond = isinstance(index, Known) and (not index.anchored or index.values > max_value(widening.modifiers[-1]))
        if not (access.active & beyond).any():
            continue
        spec = reading.tensors[access.origin.name]
        evidence = (
            f"at {access.origin.name} = {spec} an index of block {reading.place.index} is beyond 32 bits before it is "
            f"widened ({widening.opcode}.{'.'.join(widening.modifiers)})"
        )
        yield found(LintRule.INDEX_OVERFLOW, reading.kernel, access.line, evidence)


def alignment(reading: BlockAnalysis) -> Iterator[LintFinding]:
    """Threads whose offset, or distance from another thread's, is not a multiple of the access size."""
    for access in reading.accesses:
        if access.origin is None or not access.certain or not access.active.any() or access.address.wrapped is not None:
            continue
        taking = access.address.values[access.active]
        spec = reading.tensors.get(access.origin.name)
        aligned = access.space == "shared" if spec is None else spec.alignment >= access.size
        odd = (taking if access.address.anchored and aligned else taking - taking[0]) % access.size != 0
        if odd.any():
            what = access.origin.name if spec is None else f"{access.origin.name} = {spec}"
            evidence = f"accesses of {access.size} bytes to {what}, at offsets such as {int(taking[np.argmax(odd)])}"
            yield found(LintRule.MISALIGNED, reading.kernel, access.line, evidence)


def coalescing(reading: BlockAnalysis) -> Iterator[LintFinding]:
    for access in reading.accesses:
        if access.space != "global" or access.instruction.opcode not in ("ld", "st") or _is_rare(reading, access):
            continue
        taken, ideal = _mean([_sectors(addresses, access.size) for addresses in _full(access)])
        if taken >= _TIMES * ideal and taken - ideal >= _MORE and not _is_filled(reading, access):
            verb = "loads" if access.is_load else "stores"
            evidence = f"a warp's {verb} touch {taken:.0f} sectors of 32 bytes, {ideal:.0f} would carry the bytes"
            yield found(LintRule.UNCOALESCED, reading.kernel, access.line, evidence)


def banks(reading: BlockAnalysis) -> Iterator[LintFinding]:
    for access in reading.accesses:
        if access.space != "shared" or access.instruction.opcode in ("atom", "red") or _is_rare(reading, access):
            continue
        taken, ideal = _mean([_passes(addresses, access.size) for addresses in _full(access)])
        if taken >= _TIMES * ideal and taken - ideal >= _MORE:
            verb = "loads" if access.is_load else "stores"
            evidence = f"a warp's {verb} take {taken:.0f} passes over the banks, {ideal:.0f} would do"
            yield found(LintRule.BANK_CONFLICT, reading.kernel, access.line, evidence)


def atomics(reading: BlockAnalysis) -> Iterator[LintFinding]:
    """Float atomics of whole warps on one address; compilers aggregate integer ones."""
    for access in reading.accesses:
        instruction = access.instruction
        if instruction.opcode not in ("atom", "red") or instruction.modifiers[-1] not in _ATOMIC_FLOATS:
            continue
        together = [addresses for addresses in access.warps() if len(addresses) > 1]
        if access.certain and together and all((one == one[0]).all() for one in together):
            evidence = f"all {len(together[0])} lanes of a warp add to one address"
            yield found(LintRule.SERIAL_ATOMIC, reading.kernel, access.line, evidence)


def narrow_loads(reading: BlockAnalysis) -> Iterator[LintFinding]:
    """Adjacent elements loaded one by one, in code without vector loads."""
    loads = [one for one in reading.accesses if one.space == "global" and one.instruction.opcode == "ld"]
    wide = {one.origin for one in loads if one.size >= 8}
    for access in loads:
        if access.origin is None or access.origin in wide or not _takes_vectors(reading, access):
            continue
        siblings = _siblings(reading, access, loads)
        together = access.size * len(siblings)
        steps = {int(step) for addresses in _full(access) for step in np.unique(np.diff(addresses))}
        stride = steps.pop() if len(steps) == 1 else None
        if len(siblings) > 1 and stride == together and together % 16 == 0 and siblings[0] is access:
            evidence = f"{len(siblings)} loads of {access.size} bytes each lie side by side in every thread"
            yield found(LintRule.NARROW_LOAD, reading.kernel, access.line, evidence)
        elif access.size <= 2 and stride == access.size:
            evidence = (
                f"a thread takes {access.size} byte{'s' if access.size > 1 else ''} of {access.origin.name} at a time"
            )
            yield found(LintRule.NARROW_LOAD, reading.kernel, access.line, evidence)


# -- helpers --


def _is_rare(reading: BlockAnalysis, access: Access) -> bool:
    return reading.block_of(access.index) in reading.rare


def _exact(reading: BlockAnalysis) -> Iterator[Access]:
    for access in reading.accesses:
        known = access.origin is not None and access.origin.space == "tensor" and access.origin.name in reading.tensors
        if known and access.space == "global" and access.certain and access.address.anchored and access.active.any():
            yield access


def _full(access: Access) -> list[NDArray[np.int64]]:
    """Warps with most lanes active; the others are edges."""
    return [addresses for addresses in access.warps() if len(addresses) >= WARP_LANES // 2]


def _mean(counts: list[tuple[int, int]]) -> tuple[float, float]:
    if not counts:
        return 0.0, 1.0
    return sum(taken for taken, _ in counts) / len(counts), sum(ideal for _, ideal in counts) / len(counts)


def _sectors(addresses: NDArray[np.int64], size: int) -> tuple[int, int]:
    """Sectors accessed, and the minimum for the distinct bytes."""
    distinct = np.unique(addresses)
    ends = np.concatenate([distinct // SECTOR_BYTES, (distinct + size - 1) // SECTOR_BYTES])
    return len(np.unique(ends)), -(-len(distinct) * size // SECTOR_BYTES)


def _passes(addresses: NDArray[np.int64], size: int) -> tuple[int, int]:
    """Passes over the banks, and the minimum: wide accesses are served in groups of lanes, equal words once."""
    group = WARP_LANES * _BANK_BYTES // max(size, _BANK_BYTES)
    taken = ideal = 0
    for start in range(0, len(addresses), group):
        part = addresses[start : start + group]
        words = np.unique((part[:, None] + np.arange(0, max(size, 4), _BANK_BYTES)) // _BANK_BYTES)
        taken += int(np.bincount(words % _BANKS).max())
        ideal += 1
    return taken, ideal


def _siblings(reading: BlockAnalysis, access: Access, loads: list[Access]) -> list[Access]:
    block = reading.block_of(access.index)
    near = [
        one
        for one in loads
        if one.origin == access.origin
        and one.size == access.size
        and reading.block_of(one.index) == block
        and one.address.anchored == access.address.anchored
        and _base(one) == _base(access)
    ]
    near.sort(key=lambda one: int(one.address.values[0]))
    return [
        one
        for position, one in enumerate(near)
        if int(one.address.values[0] - near[0].address.values[0]) == position * access.size
    ]


def _base(access: Access) -> str:
    """The base register of an address, without its constant offset."""
    written = access.instruction.operands[0 if access.instruction.opcode == "st" else 1]
    return str(getattr(written, "base", written))


def _is_filled(reading: BlockAnalysis, access: Access) -> bool:
    """Whether nearby accesses use the rest of the sectors while the cache holds them."""
    beside = [
        one
        for one in reading.accesses
        if one.instruction.opcode == access.instruction.opcode
        and one.origin == access.origin
        and one.size == access.size
        and (_base(one) == _base(access) or (one.address.anchored and access.address.anchored))
        and not np.ptp(one.address.values - access.address.values)
    ]
    lanes = np.flatnonzero(access.active)[:WARP_LANES]
    taken, ideal = _sectors(np.concatenate([one.address.values[lanes] for one in beside]), access.size)
    return taken < _FILLED * ideal


def _takes_vectors(reading: BlockAnalysis, access: Access) -> bool:
    assert access.origin is not None
    spec = reading.tensors.get(access.origin.name)
    if spec is None or not spec.shape or spec.storage_bytes < _LARGE_BYTES:
        return False
    return spec.is_contiguous and spec.shape[-1] * spec.dtype.itemsize % 16 == 0


# -- rules on synchronisation --

_SHARED_READS = ("ld", "ldmatrix", "wmma")
_TENSOR_OPCODES = frozenset(("mma", "wmma", "wgmma", "tcgen05"))
_PASSES_ON = frozenset(("cvt", "mov", "prmt", "shl", "and", "shr"))
_PLAIN_LOAD = frozenset(("global", "b8", "b16", "b32", "b64", "u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64")) | {
    *("f16", "f32", "f64", "v2", "v4", "bf16"),
}


def barriers(reading: BlockAnalysis) -> Iterator[LintFinding]:
    """Barriers of the whole block on a path that only some of its threads take."""
    waiting = [index for index, one in enumerate(reading.function.body) if _is_block_barrier(one)]
    if not waiting:
        return
    for branch, instruction in reading.branches():
        if not _diverges(reading, branch, instruction):
            continue
        region = reading.region(branch)
        for index in waiting:
            if reading.block_of(index) in region:
                line = kernel_line(reading.function.body[index].places)
                at = kernel_line(instruction.places)
                condition = f"the condition at line {at}" if at is not None else "a condition"
                evidence = f"{condition} sends threads of one block different ways (block {reading.place.index})"
                yield found(LintRule.DIVERGENT_BARRIER, reading.kernel, line, evidence)


def _is_block_barrier(instruction: Instruction) -> bool:
    """`__syncthreads()`, barrier 0 for all threads; others are for parts of a block."""
    if (
        instruction.opcode not in ("bar", "barrier")
        or "sync" not in instruction.modifiers
        or "cluster" in instruction.modifiers
    ):
        return False
    first = instruction.operands[0] if instruction.operands else None
    return len(instruction.operands) == 1 and getattr(first, "bits", None) == 0


def _diverges(reading: BlockAnalysis, branch: int, instruction: Instruction) -> bool:
    """Whether a branch certainly diverges within the block. Where threads reconverge only to exit, whole warps may skip
    the barrier, but not parts of one."""
    predicate = reading.predicate(branch)
    meeting = reading.flow.reconvergence[branch]
    leaves = meeting is None or reading.function.body[meeting].opcode in ("ret", "exit")
    if not isinstance(predicate, Known):
        return predicate is Varying.BY_THREAD and not leaves and _trip_counts_differ(reading, instruction)
    mask, certain = reading.states[reading.block_of(branch)]
    width = WARP_LANES if leaves else len(mask)
    groups = [
        predicate.values[start : start + width][mask[start : start + width]] for start in range(0, len(mask), width)
    ]
    return predicate.anchored and certain and any(len(group) and np.ptp(group) for group in groups)


def _trip_counts_differ(reading: BlockAnalysis, instruction: Instruction) -> bool:
    """Whether threads run a loop with known bounds different numbers of times."""
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


def _counted(reading: BlockAnalysis, name: str) -> tuple[Known | None, int | None]:
    """A loop counter's start and step, if it has no other definitions."""
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


# -- rules on asynchronous copies --


def copies(reading: BlockAnalysis) -> Iterator[LintFinding]:
    """cp.async in a kernel without any wait, whose data is then read."""
    body = reading.function.body
    copying = [(index, set(one.modifiers)) for index, one in enumerate(body) if one.opcode == "cp"]
    started = [i for i, words in copying if "async" in words and "bulk" not in words and words & {"ca", "cg"}]
    if not started or any(words & {"wait_group", "wait_all", "mbarrier"} for _, words in copying):
        return
    reads = [index for index, one in enumerate(body) if one.opcode in _SHARED_READS and _is_shared(one)]
    for index in started:
        if any(reading.may_follow(index, read) for read in reads):
            evidence = "the kernel reads shared memory after this cp.async and has no cp.async.wait"
            yield found(LintRule.UNWAITED_COPY, reading.kernel, kernel_line(body[index].places), evidence)


def _is_shared(instruction: Instruction) -> bool:
    return instruction.opcode == "ldmatrix" or "shared" in [word.partition("::")[0] for word in instruction.modifiers]


# -- rules on loads and arithmetic --


def restrict(reading: BlockAnalysis) -> Iterator[LintFinding]:
    """Loads of a read-only tensor in a loop with stores to another, which the compiler must assume to alias."""
    moves = [one for one in reading.accesses if one.space == "global"]
    stores = [one for one in moves if not one.is_load]
    known = {one.index for one in stores if one.origin is not None}
    for index, one in enumerate(reading.function.body):
        writes = one.opcode in ("st", "red", "atom") and "shared" not in one.modifiers and "local" not in one.modifiers
        if writes and index not in known:
            return  # a store to an unknown tensor
    written = {one.origin for one in stores}  # and those reported already
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


def tensor_cores(reading: BlockAnalysis) -> Iterator[LintFinding]:
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


def _loaded(reading: BlockAnalysis, loads: dict[int, Access], operand: object) -> Access | None:
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
