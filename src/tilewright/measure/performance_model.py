"""The performance model: emulated counts in, one stated score out. docs/measurement.md has the formula and its limits.

Each launch has a time for every resource it uses, as if the launch used nothing else. They overlap, but not perfectly:
the launch takes their norm of order 4, which is the largest where one stands out and 1.19 times as much where two are
equal. Launches add up. The constants are those of Hopper; other GPUs differ in the figures of their profile.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from tilewright.devices.emulation.listing import Listing, listing_of
from tilewright.measure.emulated_counts import CountedLaunch, CountedPlan
from tilewright.measure.in_flight import loads_in_flight
from tilewright.measure.work import SCHEDULERS, LaunchTraffic, Work, least_traffic, library_work, plan_traffic, work_of
from tilewright.records import (
    FIRST_LAUNCH_US,
    REACHED_BANDWIDTH,
    Clearing,
    GpuProfile,
    LibraryCall,
    Modelled,
    ModelTerm,
    Occupancy,
    Task,
)
from tilewright.toolchain import launch_occupancy

ORDER = 4.0
L2_BYTES_PER_CYCLE = 40.0  # for each multiprocessor of the GPU, all together
SM_BYTES_PER_CYCLE = 64.0  # that one multiprocessor can take from L2
MEMORY_LATENCY_US = 0.8
L2_LATENCY_US = 0.2
CHAIN_CYCLES = 3.0  # of a warp for each of its instructions, were it alone
EXCHANGE_CYCLES = 10.0  # more, for a shared load or a shuffle
BARRIER_CYCLES = 40.0
ATOMIC_TIMES = 4.0  # what an atomic sector costs in L2 beside a plain one
NEXT_LAUNCH_US = 1.0
COUNTED_WAVES = 8  # up to so many waves of blocks, a last one that is not full counts as full
# Of the vendor's figure for tensor cores, by instruction: what is reached in a long product.
_SYNCHRONOUS_TENSOR = {90: 0.62, 100: 0.45, 103: 0.45}
_REACHED_TENSOR = 0.85


@dataclass(frozen=True)
class LaunchFacts:
    """What is known of a launch before any time is: its work, its traffic, and how its blocks fill the GPU."""

    counted: CountedLaunch
    listing: Listing
    work: Work
    traffic: LaunchTraffic
    occupancy: Occupancy
    waves: float
    in_flight: float  # loads of a warp


@dataclass(frozen=True)
class LaunchModel:
    """One launch and its time by resource."""

    facts: LaunchFacts
    terms: tuple[ModelTerm, ...]

    @property
    def time_us(self) -> float:
        return norm(term.time_us for term in self.terms)


@dataclass(frozen=True)
class PlanModel:
    """A whole plan."""

    counted: CountedPlan
    launches: tuple[LaunchModel, ...]
    modelled: Modelled


def norm(times_us: Iterable[float]) -> float:
    return math.pow(math.fsum(math.pow(time, ORDER) for time in times_us), 1.0 / ORDER)


def model_plan(counted: CountedPlan, task: Task, floor_us: float) -> PlanModel:
    """The score of a counted candidate."""
    gpu = task.profile
    prepared = counted.prepared
    file = prepared.evaluation.file
    listings = [listing_of(one.counts, file.name, file.text) for one in counted.launches]
    works = [work_of(one, listing, gpu) for one, listing in zip(counted.launches, listings, strict=True)]
    residents = [launch_occupancy(one.launch, one.kernel.resources, gpu) for one in counted.launches]
    resident_blocks = [gpu.sms * max(one.blocks_per_sm, 1) for one in residents]
    waves = [one.grid_blocks / blocks for one, blocks in zip(counted.launches, resident_blocks, strict=True)]
    traffics = plan_traffic(prepared, works, waves, gpu)
    flights = loads_in_flight(prepared.build) if prepared.build else {}
    launches = tuple(
        _launch(LaunchFacts(one, listing, work, traffic, resident, count, flights[one.launch.kernel]), gpu)
        for one, listing, work, traffic, resident, count in zip(
            counted.launches, listings, works, traffics, residents, waves, strict=True
        )
    )
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
        reachable_us=max(floor_us, _reachable_us(task, gpu)),
    )
    return PlanModel(counted, launches, modelled)


def _reachable_us(task: Task, gpu: GpuProfile) -> float:
    """What is left of the score when nothing but the least traffic and one launch is counted."""
    rate = gpu.bandwidth_gbs * 1e3 * REACHED_BANDWIDTH
    return FIRST_LAUNCH_US + (least_traffic(task, gpu).total_bytes / rate if rate else 0.0)


def _launch(facts: LaunchFacts, gpu: GpuProfile) -> LaunchModel:
    terms = (
        _device_memory(facts, gpu),
        _l2(facts, gpu),
        _pipe(facts, gpu),
        _issue(facts, gpu),
        _special(facts, gpu),
        _tensor(facts, gpu),
        _latency(facts, gpu),
    )
    return LaunchModel(facts, tuple(term for term in terms if term.time_us > 0))


# -- one resource each --


def _device_memory(facts: LaunchFacts, gpu: GpuProfile) -> ModelTerm:
    traffic = facts.traffic
    rate = gpu.bandwidth_gbs * 1e3 * REACHED_BANDWIDTH  # bytes per microsecond
    detail = f"{_mb(traffic.read_bytes)} read, {_mb(traffic.written_bytes)} written"
    if traffic.again_bytes:
        detail += f", {_mb(traffic.again_bytes)} again because L2 does not hold them"
    if traffic.evicted_bytes:
        detail += f", {_mb(traffic.evicted_bytes)} written back from a cold L2"
    return ModelTerm("device memory", traffic.total_bytes / rate if rate else 0.0, detail)


def _l2(facts: LaunchFacts, gpu: GpuProfile) -> ModelTerm:
    work = facts.work
    plain = work.load_bytes - facts.traffic.l1_bytes + work.store_bytes + work.local_bytes
    moved = plain + ATOMIC_TIMES * work.atomic_bytes
    cycles_us = gpu.clock_ghz * 1e3
    all_us = moved / (L2_BYTES_PER_CYCLE * gpu.sms * cycles_us)
    one_us = _share(facts.counted, gpu) * moved / (SM_BYTES_PER_CYCLE * cycles_us)
    useful = work.ideal_bytes / work.global_bytes if work.global_bytes else 1.0
    return ModelTerm("L2 cache", max(all_us, one_us), f"{_mb(moved)} in sectors, {useful:.0%} of them needed")


def _pipe(facts: LaunchFacts, gpu: GpuProfile) -> ModelTerm:
    work = facts.work
    time_us = _share(facts.counted, gpu) * work.pipe_cycles / (gpu.clock_ghz * 1e3)
    lost = work.conflict_cycles / work.pipe_cycles if work.pipe_cycles else 0.0
    detail = f"{work.pipe_cycles:.3g} passes, {lost:.0%} of them for bank conflicts and scattered requests"
    return ModelTerm("L1 and shared memory", time_us, detail)


def _issue(facts: LaunchFacts, gpu: GpuProfile) -> ModelTerm:
    work = facts.work
    time_us = _share(facts.counted, gpu) * work.issue_slots / (SCHEDULERS * gpu.clock_ghz * 1e3)
    return ModelTerm("issue slots", time_us, f"{work.issue_slots / max(work.warps, 1):.0f} slots for each warp")


def _special(facts: LaunchFacts, gpu: GpuProfile) -> ModelTerm:
    work = facts.work
    time_us = _share(facts.counted, gpu) * work.special_slots / (SCHEDULERS * gpu.clock_ghz * 1e3)
    return ModelTerm("special functions", time_us, f"{work.special_slots / 8 / max(work.warps, 1):.1f} for each warp")


def _tensor(facts: LaunchFacts, gpu: GpuProfile) -> ModelTerm:
    work, counted = facts.work, facts.counted
    groups = any("wgmma" in one.ptx_text or "tcgen05" in one.ptx_text for one in counted.counts.instructions)
    reached = _REACHED_TENSOR if groups else _SYNCHRONOUS_TENSOR.get(gpu.cc, _REACHED_TENSOR)
    time_us = 0.0
    for kind, operations in work.tensor_operations:
        peak = tensor_tflops(kind, gpu)
        if peak:
            whole = _share(facts.counted, gpu) * gpu.sms
            time_us += whole * operations / (peak * reached * 1e6)
    total = sum(operations for _, operations in work.tensor_operations)
    return ModelTerm("tensor cores", time_us, f"{total / 1e9:.3g} Gflop")


def _latency(facts: LaunchFacts, gpu: GpuProfile) -> ModelTerm:
    """What one block takes from its first load to its last store, once for each wave of blocks."""
    work, traffic, waves, in_flight = facts.work, facts.traffic, facts.waves, facts.in_flight
    warps = max(work.warps, 1.0)
    batches = work.load_requests / warps / in_flight
    from_memory = min(1.0, (traffic.read_bytes + traffic.again_bytes) / work.load_bytes) if work.load_bytes else 0.0
    wait_us = MEMORY_LATENCY_US * from_memory + L2_LATENCY_US * (1.0 - from_memory)
    cycles = (
        CHAIN_CYCLES * work.issue_slots + EXCHANGE_CYCLES * work.exchanges + BARRIER_CYCLES * work.barriers
    ) / warps
    one_us = batches * wait_us + cycles / (gpu.clock_ghz * 1e3)
    counted_waves = max(1.0, math.ceil(waves) if waves <= COUNTED_WAVES else waves)
    detail = f"{waves:.2f} waves of blocks, {batches:.1f} waits of {in_flight:.1f} loads in each warp"
    return ModelTerm("latency", counted_waves * one_us, detail)


def tensor_tflops(kind: str, gpu: GpuProfile) -> float:
    """The vendor's figure for tensor cores at a kind of `tensor_operations`."""
    if "f64" in kind or "fp64" in kind:
        return gpu.f64_tflops
    if "tf32" in kind:
        return gpu.tf32_tflops
    if "fp16" in kind or "bf16" in kind:
        return gpu.half_tflops
    return gpu.byte_tflops


def _share(counted: CountedLaunch, gpu: GpuProfile) -> float:
    """Of the launch's work, what the busiest multiprocessor does."""
    blocks = max(counted.grid_blocks, 1)
    return math.ceil(blocks / gpu.sms) / blocks


# -- beside the launches --


def _library_us(call: LibraryCall, counted: CountedPlan, task: Task) -> float:
    """A vendor step: the memory it must move or the products it must do, at the share of the peak that is reached."""
    gpu = task.profile
    moved, flops, dtype = library_work(call, counted.prepared)
    memory_us = moved / (gpu.bandwidth_gbs * 1e3 * REACHED_BANDWIDTH) if gpu.bandwidth_gbs else 0.0
    peak = gpu.f32_tflops if dtype == "f32" else gpu.f64_tflops if dtype == "f64" else gpu.half_tflops
    return norm((memory_us, flops / (peak * _REACHED_TENSOR * 1e6) if peak else 0.0))


def _overhead_us(counted: CountedPlan, gpu: GpuProfile) -> float:
    plan = counted.prepared.plan
    cleared = [buffer for buffer in plan.buffers if buffer.clearing is Clearing.ZEROED]
    steps = len(plan.steps) + len(cleared)
    fill_us = sum(one.spec.storage_bytes for one in cleared) / (gpu.bandwidth_gbs * 1e3) if gpu.bandwidth_gbs else 0.0
    return FIRST_LAUNCH_US + NEXT_LAUNCH_US * max(steps - 1, 0) + fill_us


def _plan_terms(launches: tuple[LaunchModel, ...], library_us: float, overhead_us: float) -> tuple[ModelTerm, ...]:
    """The terms of all launches by name, longest first; with several launches the detail is the heaviest's."""
    names = dict.fromkeys(term.name for launch in launches for term in launch.terms)
    terms = []
    for name in names:
        found = [term for launch in launches for term in launch.terms if term.name == name]
        heaviest = max(found, key=lambda term: term.time_us)
        terms.append(ModelTerm(name, math.fsum(term.time_us for term in found), heaviest.detail))
    if library_us:
        terms.append(ModelTerm("library steps", library_us, "from the sizes alone; nothing of them is emulated"))
    terms.append(ModelTerm("launches", overhead_us, f"{len(launches)} in the plan"))
    return tuple(sorted(terms, key=lambda term: -term.time_us))


def _mb(count: float) -> str:
    return f"{count / 1e6:.3g} MB"
