"""Rules on addresses: past the end, wrapped, misaligned, scattered over sectors or banks, one address for all."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tilewright.lint.catalogue import found
from tilewright.lint.kernel_reading import Access, KernelReading
from tilewright.lint.thread_numbers import Known, greatest_of
from tilewright.records import LintFinding, LintRule, ThreadRecord
from tilewright.records.gpu import SECTOR_BYTES, WARP_LANES

# A request that takes so many times what it needs, and so many more sectors or passes, is worth a word.
_TIMES = 4.0
_MORE = 3.0
_FILLED = 2.0  # where neighbouring accesses bring it below, the cache makes up for it
_BANK_BYTES = 4
_BANKS = 32
_ATOMIC_FLOATS = frozenset(("f16", "f16x2", "bf16", "bf16x2", "f32", "f64"))
_LARGE_BYTES = 1 << 20  # of a tensor: below that launches cost more than loads


def bounds(reading: KernelReading) -> Iterator[LintFinding]:
    """Threads that surely go past the end of a tensor."""
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
        evidence = f"{_thread(reading, thread)} {verb} {access.size} bytes {where} {access.origin.name} = {spec}"
        yield found(LintRule.MISSING_BOUNDS, reading.kernel, access.line, evidence)


def overflow(reading: KernelReading) -> Iterator[LintFinding]:
    for access in reading.accesses:
        if access.address.wrapped is None or access.origin is None or access.origin.name not in reading.tensors:
            continue
        widening = reading.function.body[access.address.wrapped]
        index = reading.value_of(access.address.wrapped, widening.operands[1])
        # Of threads that stay away from the access, or whose index ends below zero, nothing is said.
        beyond = isinstance(index, Known) and (not index.anchored or index.values > greatest_of(widening.modifiers[-1]))
        if not (access.active & beyond).any():
            continue
        spec = reading.tensors[access.origin.name]
        evidence = (
            f"at {access.origin.name} = {spec} an index of block {reading.place.index} is beyond 32 bits before it is "
            f"widened ({widening.opcode}.{'.'.join(widening.modifiers)})"
        )
        yield found(LintRule.INDEX_OVERFLOW, reading.kernel, access.line, evidence)


def alignment(reading: KernelReading) -> Iterator[LintFinding]:
    """Threads whose offset, or whose distance from another thread's, is no multiple of what they move."""
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


def coalescing(reading: KernelReading) -> Iterator[LintFinding]:
    for access in reading.accesses:
        if access.space != "global" or access.instruction.opcode not in ("ld", "st") or _is_rare(reading, access):
            continue
        taken, ideal = _mean([_sectors(addresses, access.size) for addresses in _full(access)])
        if taken >= _TIMES * ideal and taken - ideal >= _MORE and not _is_filled(reading, access):
            verb = "loads" if access.is_load else "stores"
            evidence = f"a warp's {verb} touch {taken:.0f} sectors of 32 bytes, {ideal:.0f} would carry the bytes"
            yield found(LintRule.UNCOALESCED, reading.kernel, access.line, evidence)


def banks(reading: KernelReading) -> Iterator[LintFinding]:
    for access in reading.accesses:
        if access.space != "shared" or access.instruction.opcode in ("atom", "red") or _is_rare(reading, access):
            continue
        taken, ideal = _mean([_passes(addresses, access.size) for addresses in _full(access)])
        if taken >= _TIMES * ideal and taken - ideal >= _MORE:
            verb = "loads" if access.is_load else "stores"
            evidence = f"a warp's {verb} take {taken:.0f} passes over the banks, {ideal:.0f} would do"
            yield found(LintRule.BANK_CONFLICT, reading.kernel, access.line, evidence)


def atomics(reading: KernelReading) -> Iterator[LintFinding]:
    """Float atomics by whole warps on one address; compilers gather integer ones themselves."""
    for access in reading.accesses:
        instruction = access.instruction
        if instruction.opcode not in ("atom", "red") or instruction.modifiers[-1] not in _ATOMIC_FLOATS:
            continue
        together = [addresses for addresses in access.warps() if len(addresses) > 1]
        if access.certain and together and all((one == one[0]).all() for one in together):
            evidence = f"all {len(together[0])} lanes of a warp add to one address"
            yield found(LintRule.SERIAL_ATOMIC, reading.kernel, access.line, evidence)


def narrow_loads(reading: KernelReading) -> Iterator[LintFinding]:
    """Loads whose threads take neighbouring elements one by one, in code that never takes more at once."""
    loads = [one for one in reading.accesses if one.space == "global" and one.instruction.opcode == "ld"]
    wide = {one.origin for one in loads if one.size >= 8}
    for access in loads:
        if access.origin is None or access.origin in wide or not _takes_vectors(reading, access):
            continue
        siblings = _siblings(reading, access, loads)
        together = access.size * len(siblings)
        stride = _stride(access)
        if len(siblings) > 1 and stride == together and together % 16 == 0 and siblings[0] is access:
            evidence = f"{len(siblings)} loads of {access.size} bytes each lie side by side in every thread"
            yield found(LintRule.NARROW_LOAD, reading.kernel, access.line, evidence)
        elif access.size <= 2 and stride == access.size:
            evidence = (
                f"a thread takes {access.size} byte{'s' if access.size > 1 else ''} of {access.origin.name} at a time"
            )
            yield found(LintRule.NARROW_LOAD, reading.kernel, access.line, evidence)


# -- what the rules count --


def _is_rare(reading: KernelReading, access: Access) -> bool:
    return reading.block_of(access.index) in reading.rare


def _exact(reading: KernelReading) -> Iterator[Access]:
    for access in reading.accesses:
        known = access.origin is not None and access.origin.space == "tensor" and access.origin.name in reading.tensors
        if known and access.space == "global" and access.certain and access.address.anchored and access.active.any():
            yield access


def _full(access: Access) -> list[NDArray[np.int64]]:
    """Warps of which most lanes take part: the others are edges."""
    return [addresses for addresses in access.warps() if len(addresses) >= WARP_LANES // 2]


def _mean(counts: list[tuple[int, int]]) -> tuple[float, float]:
    if not counts:
        return 0.0, 1.0
    return sum(taken for taken, _ in counts) / len(counts), sum(ideal for _, ideal in counts) / len(counts)


def _sectors(addresses: NDArray[np.int64], size: int) -> tuple[int, int]:
    """Sectors touched, and the fewest that hold the different bytes asked for."""
    distinct = np.unique(addresses)
    ends = np.concatenate([distinct // SECTOR_BYTES, (distinct + size - 1) // SECTOR_BYTES])
    return len(np.unique(ends)), -(-len(distinct) * size // SECTOR_BYTES)


def _passes(addresses: NDArray[np.int64], size: int) -> tuple[int, int]:
    """Passes over the banks: lanes of wide accesses are served in groups, equal words once."""
    group = WARP_LANES * _BANK_BYTES // max(size, _BANK_BYTES)
    taken = ideal = 0
    for start in range(0, len(addresses), group):
        part = addresses[start : start + group]
        words = np.unique((part[:, None] + np.arange(0, max(size, 4), _BANK_BYTES)) // _BANK_BYTES)
        taken += int(np.bincount(words % _BANKS).max())
        ideal += 1
    return taken, ideal


def _stride(access: Access) -> int | None:
    steps = {int(step) for addresses in _full(access) for step in np.unique(np.diff(addresses))}
    return steps.pop() if len(steps) == 1 else None


def _siblings(reading: KernelReading, access: Access, loads: list[Access]) -> list[Access]:
    """The loads of the same block that go on where the one before ends, in their order in memory."""
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
    """The register an address is made of; the offset beside it is a constant."""
    written = access.instruction.operands[0 if access.instruction.opcode == "st" else 1]
    return str(getattr(written, "base", written))


def _is_filled(reading: KernelReading, access: Access) -> bool:
    """Whether accesses beside it use the rest of the sectors, which the cache still holds."""
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


def _takes_vectors(reading: KernelReading, access: Access) -> bool:
    assert access.origin is not None
    spec = reading.tensors.get(access.origin.name)
    if spec is None or not spec.shape or spec.storage_bytes < _LARGE_BYTES:
        return False
    return spec.is_contiguous and spec.shape[-1] * spec.dtype.itemsize % 16 == 0


def _thread(reading: KernelReading, thread: int) -> str:
    x, y, _ = reading.place.block
    return str(ThreadRecord(reading.place.index, (thread % x, thread // x % y, thread // (x * y))))
