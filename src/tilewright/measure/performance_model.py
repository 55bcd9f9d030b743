"""The performance model: emulated counts in, a modelled time out. docs/measurement.md has the formula and its limits.

Each launch gets a time per resource, as if it used nothing else. Data movement and work overlap as far as there are
blocks, warps or prefetched copies to take turns; no launch is faster than the serial latency of its warps. Times of
launches add up. The constants are Hopper's; other GPUs differ by their profile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tilewright.devices.emulation.listing import Listing, make_listing
from tilewright.measure.emulated_counts import CountedLaunch, CountedPlan
from tilewright.measure.machine_code import CodeCost, code_cost, merged_lines
from tilewright.measure.work import SCHEDULERS, LaunchTraffic, Work, least_traffic, library_work, plan_traffic, work_of
from tilewright.records import (
    FIRST_LAUNCH_US,
    SECTOR_BYTES,
    WARP_LANES,
    Build,
    Clearing,
    GpuProfile,
    LibraryCall,
    Modelled,
    ModelTerm,
    Occupancy,
    Task,
    memory_us,
)
from tilewright.toolchain import launch_occupancy

# Fitted to two thirds of the rows of benchmarks/bench_model.py; the rest is held out.
L2_BYTES_PER_CYCLE = 38.0  # per multiprocessor, all together; traffic to memory passes L2 twice
SHORT_LOOKUP_BYTES = 80.0  # cost of an L2 lookup that returns less than half a line
PART_LOOKUP_BYTES = 38.0  # cost of one that returns half a line or stores a part of one
SM_BYTES_PER_CYCLE = 64.0  # from L2 to one multiprocessor
MEMORY_LATENCY_US, L2_LATENCY_US, L1_LATENCY_US = 0.52, 0.45, 0.02
DELAYED, CROWDED = 1.87, 2.0  # slowdown of a warp that shares its scheduler with so many, or more
BLOCK_LATENCY_US = 0.31  # until a block's first instruction has its operands
ATOMIC_TIMES = 4.0  # cost of an atomic sector in L2 over a plain one
SAME_SECTOR_US = 0.012  # between two atomics on one sector
BLOCK_START_US = 0.03  # between two blocks of a multiprocessor
NEXT_LAUNCH_US = 0.95
NEARLY_FULL = 0.02  # a wave that lacks no more than this counts as full
FEW_WAVES = 2.9  # with more, blocks no longer end together
L1_BYTES, LINE_BYTES = 200 << 10, 128
BESIDE_SHARED = 28 << 10  # of L1 that shared memory cannot take
# Orders of the p-norms of overlapping times: 1 is the sum, infinity the maximum.
SIDE_ORDER = 6.9  # resources that data pass one after the other
TURNS_ORDER = 1.2  # loading and working: 1 and this for each doubling of those who take turns
KINDS_ORDER = 0.45  # kinds of work: this more
LATENCY_ORDER = 1.9  # throughput and the latency of a single warp
OUT_OF_STEP = 0.29  # this more for each doubling of those who take turns: they wait at other times
# Fraction of the vendor's tensor core peak reached in a long GEMM, by instruction.
_SYNCHRONOUS_TENSOR = {90: 0.62, 100: 0.45, 103: 0.45}
_REACHED_TENSOR = 0.8
# Relative error that two thirds of the measured rows stay within, by bottleneck.
UNCERTAIN = {"device memory": 0.08}
UNCERTAIN_ELSE = 0.13
_MEMORY_SIDE = ("device memory", "L2 cache")


@dataclass(frozen=True)
class LaunchInputs:
    """What the model knows of a launch: its work, its traffic, and how its blocks fill the GPU."""

    counted: CountedLaunch
    listing: Listing
    work: Work
    traffic: LaunchTraffic
    occupancy: Occupancy
    waves: float
    code: CodeCost

    @property
    def rounds(self) -> float:
        """Blocks that one resident slot runs in sequence; of few waves, a partial one counts as a whole."""
        return max(1.0, self.waves + (math.ceil(self.waves) - self.waves) * min(1.0, FEW_WAVES / max(self.waves, 1.0)))

    @property
    def full_waves(self) -> int:
        return math.floor(self.waves + NEARLY_FULL)

    @property
    def last_wave(self) -> float:
        """The fraction of a wave that is left after the full ones."""
        return max(0.0, self.waves - self.full_waves)

    @property
    def l1_bytes(self) -> float:
        """Bytes that L1 caches serve: small tensors, and sectors that a block reads again soon.

        Where each lane reads a line of its own, there may be too many lines.
        """
        work = self.work
        room = LINE_BYTES * WARP_LANES * self.occupancy.warps_per_sm <= L1_BYTES
        again = work.load_bytes - work.fetched_bytes
        return min(work.load_bytes, self.traffic.l1_bytes + (again if room else max(0.0, again - work.strided_bytes)))

    @property
    def repeats(self) -> float:
        """How often a warp repeats what an emulated one did: once, where blocks were sampled."""
        return self.counted.scale * self.counted.counts.blocks / max(self.counted.grid_blocks, 1)

    @property
    def blocks_at_once(self) -> float:
        """Resident blocks per multiprocessor, averaged over a partial wave."""
        return max(1.0, min(1.0, self.waves) * self.occupancy.blocks_per_sm)

    @property
    def warps_per_scheduler(self) -> float:
        return max(1.0, self.blocks_at_once * self.counted.block_warps / SCHEDULERS)

    @property
    def takers(self) -> float:
        """Who takes turns at loading and working on a multiprocessor: groups of warps that meet at a barrier."""
        return self.blocks_at_once * self.code.stages * max(1.0, self.counted.block_warps / self.code.together)


@dataclass(frozen=True)
class LaunchModel:
    """One launch with its time per resource."""

    facts: LaunchInputs
    terms: tuple[ModelTerm, ...]

    @property
    def time_us(self) -> float:
        """Data movement and work take turns, and no turn is shorter than its latency."""
        times = {term.name: term.time_us for term in self.terms}
        latency_us, starting_us = times.pop("latency", 0.0), times.pop("starting blocks", 0.0)
        turns = 1.0 + TURNS_ORDER * math.log2(1.0 + self.facts.takers)
        moving = norm((time for name, time in times.items() if name in _MEMORY_SIDE), SIDE_ORDER)
        working = norm((time for name, time in times.items() if name not in _MEMORY_SIDE), turns + KINDS_ORDER)
        return self._by_waves(norm((moving, working + starting_us), turns), latency_us / self.facts.rounds)

    def _by_waves(self, busy_us: float, latency_us: float) -> float:
        """Full waves, then the last partial one, which takes as long as a single block. Of many waves, blocks end at
        all times, so the last one overlaps with others."""
        facts = self.facts
        order = LATENCY_ORDER + OUT_OF_STEP * math.log2(1.0 + facts.takers)
        full, last = facts.full_waves, facts.last_wave
        if not full or not last:
            return norm((busy_us, latency_us * max(full, 1)), order)
        last_us = busy_us * last / facts.waves
        alone_us = norm((last_us, latency_us), order) - last_us
        full_us = norm((busy_us - last_us, latency_us * full), order)
        return full_us + last_us + alone_us * min(1.0, FEW_WAVES / facts.waves)


@dataclass(frozen=True)
class PlanModel:
    """A whole plan."""

    counted: CountedPlan
    launches: tuple[LaunchModel, ...]
    modelled: Modelled


def norm(times_us: Iterable[float], order: float) -> float:
    """The p-norm of overlapping times."""
    times = list(times_us)
    longest = max(times, default=0.0)
    return longest * math.fsum((time / longest) ** order for time in times) ** (1.0 / order) if longest else 0.0


def model_plan(counted: CountedPlan, task: Task, floor_us: float) -> PlanModel:
    """Model a counted candidate."""
    gpu = task.profile
    prepared = counted.prepared
    file = prepared.evaluation.file
    listings = [make_listing(one.counts, file.name, file.text) for one in counted.launches]
    works = [
        work_of(one, listing, gpu, merged_lines(prepared.build, one.launch.kernel, one.counts.instructions))
        for one, listing in zip(counted.launches, listings, strict=True)
    ]
    residents = [launch_occupancy(one.launch, one.kernel.resources, gpu) for one in counted.launches]
    resident_blocks = [
        _reached(one, gpu) * max(resident.blocks_per_sm, 1)
        for one, resident in zip(counted.launches, residents, strict=True)
    ]
    waves = [one.grid_blocks / blocks for one, blocks in zip(counted.launches, resident_blocks, strict=True)]
    rooms = [_l1_room(one, resident, gpu) for one, resident in zip(counted.launches, residents, strict=True)]
    traffics = plan_traffic(prepared, works, waves, rooms, gpu)
    codes = [_code(prepared.build, one, work, gpu) for one, work in zip(counted.launches, works, strict=True)]
    inputs = zip(counted.launches, listings, works, traffics, residents, waves, codes, strict=True)
    launches = tuple(model_launch(LaunchInputs(*each), gpu) for each in inputs)
    library_us = math.fsum(_library_us(call, counted, task) for call in counted.library_calls)
    overhead_us = _overhead_us(counted, gpu)
    time_us = math.fsum(launch.time_us for launch in launches) + library_us + overhead_us
    heaviest = max(launches, key=lambda launch: launch.time_us, default=None)
    modelled = Modelled(
        gpu=gpu.name,
        sizes=task.sizes,
        terms=_plan_terms(launches, library_us, overhead_us),
        time_us=time_us,
        floor_us=floor_us,
        occupancy=heaviest.facts.occupancy.fraction if heaviest else 0.0,
        spill_bytes=sum(one.kernel.resources.spill_bytes for one in counted.launches),
        sampled_blocks=counted.sampled_blocks,
        grid_blocks=counted.grid_blocks,
        launches=len(launches),
        reachable_us=max(floor_us, FIRST_LAUNCH_US + _memory_us(least_traffic(task, gpu), gpu)),
        uncertainty=UNCERTAIN.get(_plan_terms(launches, 0.0, 0.0)[0].name, UNCERTAIN_ELSE),
        registers=heaviest.facts.counted.kernel.resources.registers if heaviest else 0,
    )
    return PlanModel(counted, launches, modelled)


def model_launch(facts: LaunchInputs, gpu: GpuProfile) -> LaunchModel:
    def term(name: str, time_us: float) -> ModelTerm:
        return ModelTerm(name, time_us, _DETAILS[name]((facts,)))

    pipe_us = _share(facts.counted, gpu) * facts.work.pipe_cycles / (gpu.clock_ghz * 1e3)
    terms = (
        term("device memory", _memory_us(facts.traffic, gpu)),
        term("L2 cache", _l2_us(facts, gpu)),
        term("L1 and shared memory", pipe_us),
        _issue(facts, gpu),
        term("tensor cores", _tensor_us(facts, gpu)),
        term("starting blocks", BLOCK_START_US * math.ceil(facts.counted.grid_blocks / gpu.sms)),
        _latency(facts, gpu),
    )
    return LaunchModel(facts, tuple(one for one in terms if one.time_us > 0))


# -- the resources --


def _device_memory_detail(launches: Sequence[LaunchInputs]) -> str:
    read, written, again, evicted = (
        math.fsum(getattr(one.traffic, name) for one in launches)
        for name in ("read_bytes", "written_bytes", "again_bytes", "evicted_bytes")
    )
    detail = f"{_mb(read)} read, {_mb(written)} written"
    if again:
        detail += f", {_mb(again)} again because L2 does not hold them"
    if evicted:
        detail += f", {_mb(evicted)} written back from a cold L2"
    return detail


def _l2_us(facts: LaunchInputs, gpu: GpuProfile) -> float:
    work, plain, moved = facts.work, _plain_l2_bytes(facts), _l2_bytes(facts)
    beyond_l1 = 1.0 - facts.l1_bytes / work.load_bytes if work.load_bytes else 0.0
    short = beyond_l1 * (SHORT_LOOKUP_BYTES * work.short_lookups + PART_LOOKUP_BYTES * work.half_lookups)
    short += PART_LOOKUP_BYTES * work.part_stores
    cycles_us = gpu.clock_ghz * 1e3
    all_us = (moved + short) / (L2_BYTES_PER_CYCLE * gpu.sms * cycles_us)
    one_us = _share(facts.counted, gpu) * plain / (SM_BYTES_PER_CYCLE * cycles_us)
    time_us, same_us = max(all_us, one_us), _same_sector_us(facts)
    # Atomics that queue for one sector block their L2 slice; blocks that wait for each other have nothing else to do.
    return max(time_us, same_us) if facts.counted.launch.cooperative else time_us + same_us


def _plain_l2_bytes(facts: LaunchInputs) -> float:
    return facts.work.load_bytes - facts.l1_bytes + facts.work.store_bytes + facts.work.local_bytes


def _l2_bytes(facts: LaunchInputs) -> float:
    work, traffic = facts.work, facts.traffic
    moved = _plain_l2_bytes(facts) + work.store_bytes + traffic.read_bytes + traffic.again_bytes
    return moved + ATOMIC_TIMES * work.atomic_bytes


def _l2_detail(launches: Sequence[LaunchInputs]) -> str:
    whole = math.fsum(one.work.global_bytes for one in launches)
    useful = math.fsum(one.work.ideal_bytes for one in launches) / whole if whole else 1.0
    return f"{_mb(math.fsum(map(_l2_bytes, launches)))} in sectors, {useful:.0%} of them needed"


def _same_sector_us(facts: LaunchInputs) -> float:
    """Atomics on one sector, serialised. Blocks that wait for each other count arrivals on a line of their own."""
    work, traffic = facts.work, facts.traffic
    if facts.counted.launch.cooperative:
        return SAME_SECTOR_US * work.atomic_requests / max(traffic.counter_bytes / LINE_BYTES, 1.0)
    return SAME_SECTOR_US * work.atomic_bytes / max(traffic.counter_bytes or traffic.written_bytes, SECTOR_BYTES)


def _pipe_detail(launches: Sequence[LaunchInputs]) -> str:
    cycles = math.fsum(one.work.pipe_cycles for one in launches)
    lost = math.fsum(one.work.conflict_cycles for one in launches) / cycles if cycles else 0.0
    return f"{cycles:.3g} passes, {lost:.0%} of them for bank conflicts and scattered requests"


def _issue(facts: LaunchInputs, gpu: GpuProfile) -> ModelTerm:
    """Issue slots of the schedulers, or the cycles of the busiest functional unit."""
    code = facts.code
    busiest, cycles = max(code.unit_cycles.items(), key=lambda unit: unit[1], default=("", 0.0))
    needed = max(code.slots, cycles)
    whole = facts.counted.scale * needed
    time_us = _share(facts.counted, gpu) * whole / (SCHEDULERS * gpu.clock_ghz * 1e3)
    detail = f"{facts.counted.scale * code.slots / max(facts.work.warps, 1):.0f} slots for each warp"
    return ModelTerm("issue slots", time_us, detail if needed == code.slots else f"{detail}; {busiest} units bind")


def _tensor_us(facts: LaunchInputs, gpu: GpuProfile) -> float:
    work, counted = facts.work, facts.counted
    groups = any("wgmma" in one.ptx_text or "tcgen05" in one.ptx_text for one in counted.counts.instructions)
    reached = _REACHED_TENSOR if groups else _SYNCHRONOUS_TENSOR.get(gpu.cc, _REACHED_TENSOR)
    time_us = 0.0
    for kind, operations in work.tensor_operations:
        peak = tensor_tflops(kind, gpu)
        if peak:
            whole = _share(facts.counted, gpu) * gpu.sms
            time_us += whole * operations / (peak * reached * 1e6)
    return time_us


def _tensor_detail(launches: Sequence[LaunchInputs]) -> str:
    total = math.fsum(operations for one in launches for _, operations in one.work.tensor_operations)
    return f"{total / 1e9:.3g} Gflop"


def _starting_detail(launches: Sequence[LaunchInputs]) -> str:
    return f"{sum(one.counted.grid_blocks for one in launches):,} of them"


def _latency(facts: LaunchInputs, gpu: GpuProfile) -> ModelTerm:
    """The latency of a single warp from its first to its last instruction, once per round of blocks."""
    work, traffic, code = facts.work, facts.traffic, facts.code
    loaded = max(work.load_bytes, 1.0)
    near = facts.l1_bytes / loaded
    far = min(1.0 - near, (traffic.read_bytes + traffic.again_bytes) / loaded)
    wait_us = MEMORY_LATENCY_US * far + L2_LATENCY_US * (1.0 - far - near) + L1_LATENCY_US * near
    delayed = 1.0 + (DELAYED - 1.0) * min(1.0, facts.warps_per_scheduler / CROWDED)
    one_us = BLOCK_LATENCY_US + code.waits * wait_us + delayed * code.alone_cycles / (gpu.clock_ghz * 1e3)
    meeting_us = _same_sector_us(facts) if facts.counted.launch.cooperative else 0.0  # all blocks wait for it
    detail = f"{facts.waves:.2f} waves of blocks, {code.waits:.1f} waits of {code.in_flight:.1f} loads in each warp"
    return ModelTerm("latency", facts.rounds * facts.repeats * one_us + meeting_us, detail)


def _memory_us(traffic: LaunchTraffic, gpu: GpuProfile) -> float:
    read = traffic.read_bytes + traffic.again_bytes
    return memory_us(read, traffic.written_bytes, traffic.evicted_bytes, gpu.bandwidth_gbs)


def _code(build: Build | None, one: CountedLaunch, work: Work, gpu: GpuProfile) -> CodeCost:
    warps = max(one.counts.blocks * one.block_warps, 1)
    if build is None:
        return work.ptx_cost
    return code_cost(build, one.launch.kernel, one.counts.instructions, warps, one.block_warps, gpu) or work.ptx_cost


def tensor_tflops(kind: str, gpu: GpuProfile) -> float:
    """The vendor's tensor core peak for a kind of `tensor_operations`."""
    if "f64" in kind or "fp64" in kind:
        return gpu.f64_tflops
    if "tf32" in kind:
        return gpu.tf32_tflops
    if "fp16" in kind or "bf16" in kind:
        return gpu.half_tflops
    return gpu.byte_tflops


def _share(counted: CountedLaunch, gpu: GpuProfile) -> float:
    """The busiest multiprocessor's share of the launch's work."""
    blocks = max(counted.grid_blocks, 1)
    return math.ceil(blocks / _reached(counted, gpu)) / blocks


def _reached(counted: CountedLaunch, gpu: GpuProfile) -> int:
    """Multiprocessors that the launch can use; clusters do not fit everywhere."""
    return gpu.sms_reached(math.prod(counted.launch.cluster or (1,)))


def _l1_room(counted: CountedLaunch, resident: Occupancy, gpu: GpuProfile) -> float:
    shared = counted.launch.dynamic_smem_bytes + counted.kernel.resources.static_smem_bytes + gpu.reserved_smem_block
    return gpu.smem_sm + BESIDE_SHARED - max(resident.blocks_per_sm, 1) * shared


# -- the plan --


def _library_us(call: LibraryCall, counted: CountedPlan, task: Task) -> float:
    """A vendor library call: its memory traffic or its products, at the fraction of the peak that is reached."""
    gpu = task.profile
    moved, flops, dtype = library_work(call, counted.prepared)
    peak = gpu.f32_tflops if dtype == "f32" else gpu.f64_tflops if dtype == "f64" else gpu.half_tflops
    products_us = flops / (peak * _REACHED_TENSOR * 1e6) if peak else 0.0
    return norm((memory_us(moved, 0.0, 0.0, gpu.bandwidth_gbs), products_us), SIDE_ORDER)


def _overhead_us(counted: CountedPlan, gpu: GpuProfile) -> float:
    plan = counted.prepared.plan
    cleared = [buffer for buffer in plan.buffers if buffer.clearing is Clearing.ZEROED]
    steps = len(plan.steps) + len(cleared)
    fill_us = sum(one.spec.storage_bytes for one in cleared) / (gpu.bandwidth_gbs * 1e3) if gpu.bandwidth_gbs else 0.0
    return FIRST_LAUNCH_US + NEXT_LAUNCH_US * max(steps - 1, 0) + fill_us


# Resources whose amounts add up over launches; for the others the heaviest launch is shown.
_DETAILS: dict[str, Callable[[Sequence[LaunchInputs]], str]] = {
    "device memory": _device_memory_detail,
    "L2 cache": _l2_detail,
    "L1 and shared memory": _pipe_detail,
    "tensor cores": _tensor_detail,
    "starting blocks": _starting_detail,
}


def _plan_terms(launches: tuple[LaunchModel, ...], library_us: float, overhead_us: float) -> tuple[ModelTerm, ...]:
    terms = []
    for name in dict.fromkeys(term.name for launch in launches for term in launch.terms):
        found = [(term, launch.facts) for launch in launches for term in launch.terms if term.name == name]
        if name in _DETAILS:
            detail = _DETAILS[name]([facts for _, facts in found])
        else:
            heaviest, facts = max(found, key=lambda pair: pair[0].time_us)
            detail = heaviest.detail + (f", in {facts.counted.launch.kernel}" if len(found) > 1 else "")
        terms.append(ModelTerm(name, math.fsum(term.time_us for term, _ in found), detail))
    if library_us:
        terms.append(ModelTerm("library steps", library_us, "from the sizes alone; nothing of them is emulated"))
    terms.append(ModelTerm("launches", overhead_us, f"{len(launches)} in the plan"))
    return tuple(sorted(terms, key=lambda term: -term.time_us))


def _mb(count: float) -> str:
    return f"{count / 1e6:.3g} MB"
