"""What a plan asks of the GPU: of each resource of a launch, of device memory, and of the vendor's library."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from tilewright import records
from tilewright.devices.emulation.listing import Listing, class_of
from tilewright.measure.emulated_counts import OUTWARD, CountedLaunch, is_store
from tilewright.measure.machine_code import CodeCost, f64_cycles
from tilewright.records import SECTOR_BYTES, USABLE_L2, WARP_LANES, GpuProfile, InstructionRecord, LibraryCall
from tilewright.records.emulation import kernel_line
from tilewright.toolchain import BuiltPlan

SCHEDULERS = 4
WIDE_SECTORS = 4  # sectors of a request of 128 bytes
SECTORS_PER_CYCLE = 4  # of one multiprocessor's L1 cache

# Machine instructions per PTX instruction of a class, roughly; 1 by default. Moves and parameters cost nothing.
_ISSUED = {"move": 0.0, "parameter": 0.0, "constant load": 0.5, "other": 0.5}
_EXACT = re.compile(r"(?:@!?\S+\s+)?(?:div|sqrt|rcp)\.rn")
_EXACT_ISSUED = 8.0  # a correctly rounded division or root is a short routine
_PAST_L1 = re.compile(
    r"(?:@!?\S+\s+)?(?:cp\.async\S*\.(?:cg|bulk)|ld\S*\.(?:cg|cv|volatile|relaxed|acquire|L1::no_allocate))\b"
)
_LOADS = ("global load", "generic load", "asynchronous copy")
_STORES = ("global store", "generic store")
_ATOMICS = ("global atomic", "generic atomic")
_LOCAL = ("local load", "local store")
_EXCHANGES = ("shared load", "warp exchange")
_BARRIERS = ("synchronisation",)

SMALL_BYTES = 4 << 20  # a tensor up to this stays in L2 while others stream through
HELD_BY_L1 = 64 << 10  # small tensors up to this together stay in L1

_PRODUCTS = ("mm", "bmm", "matmul", "addmm", "baddbmm", "linear", "convolution", "conv1d", "conv2d", "conv3d")


@dataclass(frozen=True)
class Work:
    """One launch over its whole grid. Cycles are of the named unit, summed over the grid."""

    warps: float
    pipe_cycles: float  # of a multiprocessor's load/store pipe to L1 and shared memory
    conflict_cycles: float  # of these, for bank conflicts and uncoalesced requests
    load_bytes: float  # in whole sectors
    fetched_bytes: float  # of these, what misses L1
    aligned_bytes: float  # of those, without the extra sector of a misaligned request
    store_bytes: float
    atomic_bytes: float
    atomic_requests: float
    local_bytes: float
    short_lookups: float  # of loads in L2: those that return less than half a line of 128 bytes
    half_lookups: float  # of loads in L2: those beyond one per line that return at least half a line
    part_stores: float  # of stores in L2: those beyond one per line
    ideal_bytes: float  # in the fewest sectors that carry what the lanes asked for
    strided_bytes: float  # of loads: sectors that one lane reads piece by piece
    ptx_cost: CodeCost  # estimated from PTX, where there is no disassembler
    tensor_operations: tuple[tuple[str, float], ...]  # by kind

    @property
    def global_bytes(self) -> float:
        return self.load_bytes + self.store_bytes + self.atomic_bytes


def work_of(counted: CountedLaunch, listing: Listing, gpu: GpuProfile, merged: Collection[int] = ()) -> Work:
    """The work of one launch. `merged` are lines as `merged_lines` finds them."""
    scale = counted.scale
    instructions = counted.counts.instructions
    mix = {total.kind.value: total.warp_instructions for total in listing.summary.mix}
    traffic = {one.kind.value: one for one in listing.summary.traffic}
    warps = float(counted.grid_blocks * counted.block_warps)
    spilled = warps * WARP_LANES * _spill_bytes(counted)

    def sector_bytes(kinds: Iterable[str]) -> float:
        return scale * SECTOR_BYTES * sum(traffic[kind].sectors for kind in kinds if kind in traffic)

    copied_out = scale * SECTOR_BYTES * sum(one.sectors for one in instructions if OUTWARD in one.ptx_text)
    loaded = sector_bytes(_LOADS) - copied_out
    loads = [one for one in listing.summary.traffic if one.kind.value in _LOADS]
    misaligned = sum(min(one.requests, one.sectors - one.ideal_sectors) for one in loads)
    strided = sum(max(0, one.sectors - one.ideal_sectors - one.requests) for one in loads)
    fetched = scale * SECTOR_BYTES * sum(_fetched(one) for one in instructions if one.sectors and _loads(one))
    local = spilled + scale * sum(traffic[kind].bytes for kind in _LOCAL if kind in traffic)
    passed = [
        replace(one, passes=min(one.passes, one.ideal_passes)) if kernel_line(one.places) in merged else one
        for one in instructions
    ]
    excess = scale * sum(_excess_cycles(one) for one in passed)
    pipe = scale * sum(_pipe_cycles(one) for one in passed) + scale * mix.get("warp exchange", 0)
    return Work(
        warps=warps,
        pipe_cycles=pipe + local / (SECTOR_BYTES * SECTORS_PER_CYCLE),
        conflict_cycles=excess,
        load_bytes=loaded,
        fetched_bytes=fetched,
        aligned_bytes=min(fetched, loaded - scale * SECTOR_BYTES * misaligned),
        store_bytes=sector_bytes(_STORES) + copied_out,
        atomic_bytes=sector_bytes(_ATOMICS),
        atomic_requests=scale * sum(traffic[kind].requests for kind in _ATOMICS if kind in traffic),
        local_bytes=local,
        short_lookups=scale * sum(_short_lookups(one) for one in instructions if one.lines and _loads(one)),
        half_lookups=scale * sum(_half_lookups(one) for one in instructions if one.lines and _loads(one)),
        part_stores=scale
        * sum(
            max(0.0, one.lines - one.sectors / WIDE_SECTORS)
            for one in instructions
            if one.lines and is_store(one.ptx_text)
        ),
        strided_bytes=scale * SECTOR_BYTES * strided,
        ideal_bytes=scale * SECTOR_BYTES * sum(one.ideal_sectors for one in traffic.values()),
        ptx_cost=_ptx_cost(mix, instructions, counted, gpu),
        tensor_operations=tuple((one.kind.value, scale * one.count) for one in listing.summary.tensor_operations),
    )


def _loads(one: InstructionRecord) -> bool:
    return class_of(one.ptx_text).value in _LOADS and OUTWARD not in one.ptx_text


def _fetched(one: InstructionRecord) -> int:
    return one.sectors if _PAST_L1.match(one.ptx_text) else one.new_sectors


def _short_lookups(one: InstructionRecord) -> float:
    """Lines touched beyond those that the sectors would fill by halves. Small requests hit L1."""
    return max(0.0, one.lines - one.sectors / 2.0) if one.sectors >= WIDE_SECTORS * one.requests else 0.0


def _half_lookups(one: InstructionRecord) -> float:
    """Lines touched beyond those that the sectors would fill, without `_short_lookups`."""
    halves = min(float(one.lines), one.sectors / 2.0)
    return max(0.0, halves - one.sectors / WIDE_SECTORS) if one.sectors >= WIDE_SECTORS * one.requests else 0.0


def _ptx_cost(
    mix: dict[str, int], instructions: Iterable[InstructionRecord], counted: CountedLaunch, gpu: GpuProfile
) -> CodeCost:
    warps = counted.counts.blocks * counted.block_warps
    exact = sum(one.executions for one in instructions if _EXACT.match(one.ptx_text))
    slots = sum(_ISSUED.get(kind, 1.0) * count for kind, count in mix.items()) + _EXACT_ISSUED * exact
    loads, exchanges, barriers = (sum(mix.get(kind, 0) for kind in kinds) for kinds in (_LOADS, _EXCHANGES, _BARRIERS))
    units = {
        unit: cycles * mix.get(kind, 0)
        for unit, (kind, cycles) in {"special": ("special function", 8.0), "f64": ("fp64", f64_cycles(gpu))}.items()
    }
    alone = (3.0 * slots + 10.0 * exchanges + 40.0 * barriers) / warps
    together = float(counted.block_warps) if barriers else 1.0
    return CodeCost(slots, units, loads / 2.0 / warps, loads / warps, alone, together, 1)


def _pipe_cycles(one: InstructionRecord) -> float:
    """Cycles of the load/store pipe: a pass each, or four sectors each; uncoalesced ones one by one."""
    if one.sectors:
        return max(one.requests, one.ideal_sectors / SECTORS_PER_CYCLE) + _excess_cycles(one) + one.passes
    return float(one.passes)


def _excess_cycles(one: InstructionRecord) -> float:
    if one.sectors:
        # The extra sector of a misaligned request lies in a line that is read anyway.
        return float(max(0, one.sectors - one.ideal_sectors - one.requests))
    return float(max(0, one.passes - one.ideal_passes))


def _spill_bytes(counted: CountedLaunch) -> float:
    """Bytes that a thread spills and reloads, if each spill runs as often as the average instruction."""
    resources = counted.kernel.resources
    static = resources.spill_bytes
    ran = [one for one in counted.counts.instructions if one.executions]
    if not static or not ran:
        return 0.0
    warps = counted.counts.blocks * counted.block_warps
    return static * counted.counts.warp_instructions / len(ran) / max(warps, 1)


# -- between device memory and the L2 cache --
#
# Counts say how many sectors a launch touches, not which. Every byte of its tensors is taken to move once. The excess
# is attributed first to small tensors, which caches hold, then to large ones, if the working set does not fit.


@dataclass(frozen=True)
class LaunchTraffic:
    """Bytes of one launch that cross between device memory and L2."""

    read_bytes: float
    written_bytes: float
    again_bytes: float  # read again after L2 evicted them
    evicted_bytes: float  # dirty lines of others, written back first
    l1_bytes: float  # served by L1, which do not even reach L2
    counter_bytes: float = 0.0  # of cleared buffers, the targets of atomics

    @property
    def total_bytes(self) -> float:
        return self.read_bytes + self.written_bytes + self.again_bytes + self.evicted_bytes


@dataclass(frozen=True)
class _Caches:
    l2_bytes: float
    l1_bytes: float  # of each, for what is read again and again
    l1_count: int  # each fetches it once


def plan_traffic(
    prepared: BuiltPlan, works: Sequence[Work], waves: Sequence[float], l1_rooms: Sequence[float], gpu: GpuProfile
) -> tuple[LaunchTraffic, ...]:
    """The traffic of every launch in order, the first on a cache full of dirty lines. `l1_rooms` is the L1 capacity of
    each."""
    buffers = {buffer.name: buffer for buffer in prepared.plan.buffers}
    sizes = {name: spec.storage_bytes for name, spec in prepared.evaluation.tensors}
    sizes |= {name: one.spec.storage_bytes for name, one in buffers.items()}
    in_place = {one.name for one in prepared.evaluation.file.plan.op.parameters if one.in_place}
    usable = USABLE_L2 * gpu.l2
    written_before = {name for name, one in buffers.items() if one.clearing is not records.Clearing.UNDEFINED}
    cleared = {name for name, one in buffers.items() if one.clearing is records.Clearing.ZEROED}
    in_cache: set[str] = set()
    found: list[LaunchTraffic] = []
    for step in prepared.plan.steps:
        names = prepared.plan.tensors_of(step)
        if isinstance(step, records.PackedLaunch):
            readable = {name for name in names if name not in buffers or name in written_before}
            writable = {name for name in names if name in buffers or name in in_place}
            read = {name: sizes[name] for name in readable}
            written = sum(sizes[name] for name in writable)
            number = len(found)
            caches = _Caches(usable, min(l1_rooms[number], HELD_BY_L1), gpu.sms)
            made = _launch_traffic(works[number], waves[number], read, written, in_cache, caches)
            found.append(replace(made, counter_bytes=float(sum(sizes[name] for name in names & cleared))))
        written_before |= {name for name in names if name in buffers}
        footprint = sum(sizes[name] for name in names)
        in_cache = names if footprint <= usable else set()
    return _with_evictions(found, usable)


def _launch_traffic(
    work: Work, waves: float, readable: dict[str, int], writable: int, in_cache: set[str], caches: _Caches
) -> LaunchTraffic:
    distinct = float(sum(readable.values()))
    hot = float(sum(size for name, size in readable.items() if name in in_cache))
    read = min(work.load_bytes, distinct) * (1.0 - hot / distinct) if distinct else 0.0
    written = min(work.store_bytes + work.atomic_bytes, float(writable))
    excess = max(0.0, work.aligned_bytes - distinct)
    small = [size for size in readable.values() if size <= SMALL_BYTES]
    large = distinct - sum(small)
    of_small = min(excess, len(small) * large) if large else excess
    working = distinct * min(1.0, 1.0 / max(waves, 1e-9))
    lost = max(0.0, 1.0 - caches.l2_bytes / working) if working else 0.0
    beyond = excess - of_small
    again = min(beyond, large) * lost * _far_apart(beyond / large if large else 0.0)
    held = max(0.0, of_small - caches.l1_count * sum(small)) if sum(small) <= caches.l1_bytes else 0.0
    return LaunchTraffic(read, written, again, 0.0, held)


def _far_apart(times: float) -> float:
    """Of data read `times` more than once, the fraction that is not re-read at once. Up to a half, these are the edges
    of neighbouring tiles, such as windows of three with stride two; all of it is a second pass."""
    return min(1.0, max(0.0, (times - 0.55) / 0.4))


def least_traffic(task: records.Task, gpu: GpuProfile) -> LaunchTraffic:
    """The least traffic of one launch: all inputs in and all outputs out, on a cache full of dirty lines."""
    written = float(sum(spec.storage_bytes for spec in task.output_specs().values()))
    written += sum(task.specs()[one.name].storage_bytes for one in task.tensors if one.in_place)
    least = LaunchTraffic(task.moved_bytes - written, written, 0.0, 0.0, 0.0)
    return _with_evictions([least], USABLE_L2 * gpu.l2)[0]


def _with_evictions(launches: list[LaunchTraffic], usable: float) -> tuple[LaunchTraffic, ...]:
    """The first launch pays for the dirty lines in the cache, less what the plan leaves there itself."""
    if not launches:
        return ()
    touched = math.fsum(one.read_bytes + one.written_bytes for one in launches)
    left = min(usable, math.fsum(one.written_bytes for one in launches))
    evicted = max(0.0, min(usable, touched) - left)
    first = launches[0]
    return (replace(first, evicted_bytes=evicted), *launches[1:])


# -- vendor library calls --


def library_work(call: LibraryCall, prepared: BuiltPlan) -> tuple[int, float, str]:
    """Bytes moved, floating-point operations (0 where unknown) and their dtype."""
    specs = {**dict(prepared.evaluation.tensors), **{one.name: one.spec for one in prepared.plan.buffers}}
    given = [specs[one.name] for one in call.arguments if isinstance(one, records.TensorArgument)]
    target = specs[call.target]
    moved = sum(spec.storage_bytes for spec in (*given, target))
    return moved, _operations(call.function.rpartition(".")[2], given, target), str(target.dtype)


def _operations(name: str, given: list[records.TensorSpec], target: records.TensorSpec) -> float:
    """Two per multiply-add: the elements of the result times the length of a dot product."""
    if name not in _PRODUCTS:
        return 0.0
    operands = given[1:] if name in ("addmm", "baddbmm") else given
    if len(operands) < 2 or operands[0].ndim < 2 or operands[1].ndim < 2:
        return 0.0
    length = operands[0].shape[-1]
    if name.startswith("conv"):
        length = math.prod(operands[1].shape[1:])
    return 2.0 * target.numel * length
