"""What a launch asks of each resource, as sums over the whole grid: plain arithmetic on emulated counts."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tilewright.devices.emulation.listing import Listing
from tilewright.measure.counting import CountedLaunch
from tilewright.records import GpuProfile, InstructionRecord
from tilewright.records.gpu import SECTOR_BYTES, WARP_LANES

SCHEDULERS = 4
SECTORS_PER_CYCLE = 4  # that the L1 cache of one multiprocessor passes on

# Instructions of a class that one PTX instruction becomes, roughly; those not named count 1. Moves and parameters are
# folded into the instructions that use them.
_ISSUED = {"move": 0.0, "parameter": 0.0, "constant load": 0.5, "other": 0.5}
_WIDE_F64 = (80, 90, 100)  # elsewhere two lanes of a multiprocessor do f64
_EXACT = re.compile(r"(?:@!?\S+\s+)?(?:div|sqrt|rcp)\.rn")
_EXACT_ISSUED = 8.0  # a correctly rounded division or root is a short routine
_LOADS = ("global load", "generic load", "asynchronous copy")
_STORES = ("global store", "generic store")
_ATOMICS = ("global atomic", "generic atomic")
_LOCAL = ("local load", "local store")
_EXCHANGES = ("shared load", "warp exchange")


@dataclass(frozen=True)
class Work:
    """One launch over its whole grid. Cycles are of the unit named, summed over the grid."""

    warps: float
    issue_slots: float  # of one scheduler
    special_slots: float  # of one scheduler's special function unit, 4 lanes wide
    pipe_cycles: float  # of one multiprocessor's path to L1 and shared memory
    conflict_cycles: float  # the part of them that bank conflicts and scattered requests add
    load_bytes: float  # in whole sectors
    store_bytes: float
    atomic_bytes: float
    local_bytes: float
    ideal_bytes: float  # the fewest sectors that carry what the lanes asked for
    load_requests: float
    exchanges: float  # shared loads and shuffles
    barriers: float
    tensor_operations: tuple[tuple[str, float], ...]  # by kind

    @property
    def global_bytes(self) -> float:
        return self.load_bytes + self.store_bytes + self.atomic_bytes


def work_of(counted: CountedLaunch, listing: Listing, gpu: GpuProfile) -> Work:
    """The work of one launch; `listing` is that of its counts."""
    scale = counted.scale
    instructions = counted.counts.instructions
    mix = {total.kind.value: total.warp_instructions for total in listing.summary.mix}
    traffic = {one.kind.value: one for one in listing.summary.traffic}
    warps = float(counted.grid_blocks * counted.block_warps)
    spilled = warps * WARP_LANES * _spill_bytes(counted)

    def sector_bytes(kinds: Iterable[str]) -> float:
        return scale * SECTOR_BYTES * sum(traffic[kind].sectors for kind in kinds if kind in traffic)

    local = spilled + scale * sum(traffic[kind].bytes for kind in _LOCAL if kind in traffic)
    excess = scale * sum(_excess_cycles(one) for one in instructions)
    pipe = scale * sum(_pipe_cycles(one) for one in instructions) + scale * mix.get("warp exchange", 0)
    return Work(
        warps=warps,
        issue_slots=scale * _issue_slots(mix, instructions, gpu),
        special_slots=scale * 8 * mix.get("special function", 0),
        pipe_cycles=pipe + local / (SECTOR_BYTES * SECTORS_PER_CYCLE),
        conflict_cycles=excess,
        load_bytes=sector_bytes(_LOADS),
        store_bytes=sector_bytes(_STORES),
        atomic_bytes=sector_bytes(_ATOMICS),
        local_bytes=local,
        ideal_bytes=scale * SECTOR_BYTES * sum(one.ideal_sectors for one in traffic.values()),
        load_requests=scale * sum(traffic[kind].requests for kind in _LOADS if kind in traffic),
        exchanges=scale * sum(mix.get(kind, 0) for kind in _EXCHANGES),
        barriers=scale * mix.get("synchronisation", 0),
        tensor_operations=tuple((one.kind.value, scale * one.count) for one in listing.summary.tensor_operations),
    )


def _issue_slots(mix: dict[str, int], instructions: Iterable[InstructionRecord], gpu: GpuProfile) -> float:
    lanes = gpu.f32_tflops * 1e3 / (2 * gpu.sms * gpu.clock_ghz) if gpu.clock_ghz else 128.0
    narrow_f32 = max(1.0, 128.0 / max(lanes, 1.0))  # 64 lanes on some multiprocessors
    costs = {**_ISSUED, "fp32": narrow_f32, "fp64": 4.0 if gpu.cc in _WIDE_F64 else 64.0}
    exact = sum(one.executions for one in instructions if _EXACT.match(one.ptx_text))
    return sum(costs.get(kind, 1.0) * count for kind, count in mix.items()) + _EXACT_ISSUED * exact


def _pipe_cycles(one: InstructionRecord) -> float:
    """Cycles of the path to L1 and shared memory: a pass each, or four sectors each; scattered ones one by one."""
    if one.sectors:
        return max(one.requests, one.ideal_sectors / SECTORS_PER_CYCLE) + _excess_cycles(one) + one.passes
    return float(one.passes)


def _excess_cycles(one: InstructionRecord) -> float:
    if one.sectors:
        # A request that is merely misaligned touches one sector more than it needs, in a line that is open anyway.
        return float(max(0, one.sectors - one.ideal_sectors - one.requests))
    return float(max(0, one.passes - one.ideal_passes))


def _spill_bytes(counted: CountedLaunch) -> float:
    """Bytes that a thread spills and fills, if each spill in the code runs as often as the average instruction."""
    resources = counted.kernel.resources
    static = resources.spill_store_bytes + resources.spill_load_bytes
    ran = [one for one in counted.counts.instructions if one.executions]
    if not static or not ran:
        return 0.0
    warps = counted.counts.blocks * counted.block_warps
    return static * counted.counts.warp_instructions / len(ran) / max(warps, 1)
