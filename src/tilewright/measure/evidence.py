"""A page of text on where a candidate's time goes, for whoever improves it.

Numbers that are emulated, modelled or read from the machine code are marked as such.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tilewright import records
from tilewright.devices.emulation.listing import Listing
from tilewright.devices.protocol import Device
from tilewright.measure.gpu_timing import gpu_job
from tilewright.measure.performance_model import LaunchModel, PlanModel
from tilewright.records import Completed, KernelProfile, Measured, PackedLaunch
from tilewright.toolchain import BuiltPlan, ToolchainError, highlights, launch_occupancy

LINES = 12  # source lines shown
_SOURCE_WIDTH = 150
_MIX = 6
_LAUNCHES = 3  # shown in full
_WIDEST_BYTES = 16
_PROFILE_SECONDS = 180.0
_WAITS = 4
_LEAST_WAIT = 0.03
_LEAST_CONFLICTS = 0.05  # of all shared-memory passes
_MB = 1e6
_ACCESS = re.compile(r"(?:@!?\S+\s+)?(ld|st)\.(\S*\bglobal\b\S*)")
_VECTOR = re.compile(r"\.v(\d)\b")
_TYPE = re.compile(r"\.[bsuf](\d+)\b")


def evidence_text(model: PlanModel, measured: Measured | None = None) -> str:
    """The report of a modelled candidate: some sixty lines at most."""
    modelled = model.modelled
    sizes = ", ".join(f"{name} = {size}" for name, size in modelled.sizes.items())
    parts = _measured(measured)
    parts.append(
        f"Emulated and modelled for {modelled.gpu} at {sizes} (no GPU ran this; the model ranks, it is no clock): "
        f"score {modelled.time_us:.1f} us +- {modelled.uncertainty:.0%}, roofline floor {modelled.floor_us:.1f} us."
    )
    seen = model.counted.counted_at
    if seen != modelled.sizes:
        smaller = ", ".join(f"{name} = {size}" for name, size in seen.items() if size != modelled.sizes[name])
        parts.append(f"Counts come from {modelled.sampled_blocks} blocks at {smaller}, scaled up.")
    else:
        parts.append(f"Counts come from {modelled.sampled_blocks} of {modelled.grid_blocks} blocks, scaled up.")
    parts += _terms(model)
    heaviest = sorted(model.launches, key=lambda launch: -launch.time_us)[:_LAUNCHES]
    sass = _sass(model.counted.prepared.build)
    for launch in heaviest:
        parts += ["", *_launch(launch, sass)]
    if len(model.launches) > _LAUNCHES:
        parts.append(f"({len(model.launches) - _LAUNCHES} lighter launches are not shown.)")
    return "\n".join(parts)


def static_text(prepared: BuiltPlan, problem: str, measured: Measured | None = None) -> str:
    """The report without counts: resources, occupancy and machine code."""
    parts = [*_measured(measured), f"No counts: {problem}"]
    build, gpu = prepared.build, prepared.evaluation.gpu
    sass = _sass(build)
    for step in prepared.plan.steps:
        if isinstance(step, PackedLaunch) and build is not None:
            resources = build.kernel(step.kernel).resources
            resident = launch_occupancy(step, resources, gpu)
            reached = gpu.sms_reached(math.prod(step.cluster or (1,)))
            waves = math.prod(step.grid) / (reached * max(resident.blocks_per_sm, 1))
            parts += ["", _grid(step, waves), _resources(step, resources, resident), *_code(sass.get(step.kernel, {}))]
    return "\n".join(parts)


def _measured(measured: Measured | None) -> list[str]:
    if measured is None:
        return []
    others = ", ".join(f"{one.name} {one.median_us:.1f} us" for one in measured.baselines)
    floor = f"roofline floor {measured.floor_us:.1f} us"
    return [f"Measured on {measured.gpu}: {measured.time_us:.1f} us; {others or 'no baselines'}; {floor}."]


def _terms(model: PlanModel) -> list[str]:
    terms = model.modelled.terms
    lines = ["Time each resource alone would need (they overlap as far as blocks take turns; launches come on top):"]
    lines += [f"  {term.name:<22}{term.time_us:>9.2f} us   {term.detail}" for term in terms]
    bounds = model.modelled.bounds
    if bounds:
        close = [term.name for term in bounds[1:] if term.time_us > 0.7 * bounds[0].time_us]
        lines.append(f"Bound by {bounds[0].name}" + (f", with {', '.join(close)} close behind." if close else "."))
    return lines


def _launch(launch: LaunchModel, sass: Mapping[str, Mapping[str, int]]) -> list[str]:
    facts = launch.facts
    packed, summary = facts.counted.launch, facts.listing.summary
    mix = ", ".join(f"{total.kind.value} {total.share:.0%}" for total in summary.mix[:_MIX] if total.share >= 0.01)
    return [
        f"{_grid(packed, facts.waves)}: {launch.time_us:.1f} us",
        _resources(packed, facts.counted.kernel.resources, facts.occupancy),
        f"  a warp has about {facts.code.in_flight:.1f} loads in flight when it waits; "
        f"{summary.active_lanes:.1f} of 32 lanes active",
        f"  instructions: {mix}",
        *_code(sass.get(packed.kernel, {})),
        *_narrow(facts.counted.counts.instructions),
        *_table(facts.listing),
    ]


def _grid(launch: PackedLaunch, waves: float) -> str:
    grid, block = _dim(launch.grid), _dim(launch.block)
    return f"{launch.kernel} (launch at line {launch.line}), grid {grid} of {block} threads, {waves:.2f} waves"


def _resources(launch: PackedLaunch, resources: records.Resources, resident: records.Occupancy) -> str:
    spills = resources.spill_bytes
    smem = launch.dynamic_smem_bytes + resources.static_smem_bytes
    return (
        f"  {resources.registers} registers, {f'{spills} bytes spilled' if spills else 'no spills'}, "
        f"{smem} bytes of shared memory; {resident.blocks_per_sm} blocks = {resident.warps_per_sm} warps per SM, "
        f"{resident.fraction:.0%} of what it holds, limited by {resident.limiter.value}"
    )


def _code(counts: Mapping[str, int]) -> list[str]:
    listed = ", ".join(f"{name} {count}" for name, count in counts.items())
    return [f"  in the machine code, run or not: {listed}"] if counts else []


def _narrow(instructions: Iterable[records.InstructionRecord]) -> list[str]:
    """The share of global accesses narrower than 16 bytes."""
    requests: dict[str, list[int]] = {"ld": [0, 0], "st": [0, 0]}  # narrow ones, and all
    for one in instructions:
        found = _ACCESS.match(one.ptx_text)
        types = _TYPE.findall(found[2]) if found else []
        if found and types and one.requests:
            vector = _VECTOR.search(found[2])
            wide = int(types[-1]) // 8 * (int(vector[1]) if vector else 1)
            requests[found[1]][0] += one.requests if wide < _WIDEST_BYTES else 0
            requests[found[1]][1] += one.requests
    parts = [
        f"{narrow / total:.0%} of the {what}"
        for (narrow, total), what in zip(requests.values(), ("loads", "stores"), strict=True)
        if narrow
    ]
    return [f"  narrower than 16 bytes, of the global requests that ran: {', '.join(parts)}"] if parts else []


def _table(listing: Listing) -> list[str]:
    instructions = max(sum(one.warp_instructions for one in listing.lines), 1)
    sectors = max(sum(one.sectors for one in listing.lines), 1)
    passes = max(sum(one.passes for one in listing.lines), 1)
    shown = sorted(
        listing.lines,
        key=lambda one: -(one.warp_instructions / instructions + one.sectors / sectors + 0.5 * one.passes / passes),
    )[:LINES]
    lines = ["  line  instr.  sectors/request (ideal)  passes/request (ideal)  source"]
    for one in sorted(shown, key=lambda one: one.line):
        memory = _per_request(one.sectors, one.ideal_sectors, one.global_requests)
        shared = _per_request(one.passes, one.ideal_passes, one.shared_requests)
        source = _shortened(one.source.strip())
        share = one.warp_instructions / instructions
        lines.append(f"  {one.line:>4}  {share:>6.1%}  {memory:<23}  {shared:<22}  {source}")
    return lines


def _per_request(actual: int, ideal: int, requests: int) -> str:
    if not requests:
        return "-"
    mark = " !" if actual >= 2 * ideal and actual - ideal >= requests else ""
    return f"{actual / requests:.1f} ({ideal / requests:.1f}){mark}"


def _sass(build: records.Build | None) -> Mapping[str, Mapping[str, int]]:
    if build is None:
        return {}
    try:
        return highlights(build)
    except ToolchainError:
        return {}  # no disassembler: report the rest


def _shortened(source: str) -> str:
    return source if len(source) <= _SOURCE_WIDTH else source[:_SOURCE_WIDTH] + "..."


def _dim(extent: tuple[int, int, int]) -> str:
    return "x".join(map(str, extent)) if extent[1:] != (1, 1) else str(extent[0])


# -- hardware counters --


def profile(prepared: BuiltPlan, task: records.Task, gpu: Device) -> Completed | str:
    """Hardware counters of the plan at the task's sizes, or why there are none."""
    job = gpu_job("profile", prepared, task, _PROFILE_SECONDS)
    execution = gpu.execute(replace(job, watch=records.Watch.COUNTERS))
    if not isinstance(execution, Completed):
        return f"{execution.kind.value}: {execution.message}"
    return execution if execution.profiles else execution.not_watched or "the device reads no counters"


def profile_text(done: Completed, source: str) -> str:
    """The counters as text: some thirty lines per launch at most."""
    lines = source.splitlines()
    heaviest = sorted(done.profiles, key=lambda one: -one.duration_us)[:_LAUNCHES]
    parts = [
        f"Counters of {done.device}, read by Nsight Compute with a cold cache (a launch alone takes longer than among "
        "others):"
    ]
    for one in heaviest:
        parts += [f"{one.kernel}: {one.duration_us:.1f} us", *profile_figures(one), *_lines(one, lines)]
    if len(done.profiles) > _LAUNCHES:
        parts.append(f"({len(done.profiles) - _LAUNCHES} shorter launches are not shown.)")
    return "\n".join(parts)


def profile_figures(one: KernelProfile) -> list[str]:
    """The counters of a whole launch."""
    figures = one.figures
    peaks = [
        f"{name.removesuffix(' %')} {figures[name]:.0f} %"
        for name in ("memory %", "L2 %", "L1 %", "issue slots %", "tensor cores %")
        if figures.get(name, 0.0) >= 1.0
    ]
    parts = [f"  of the peak: {', '.join(peaks)}"] if peaks else []
    if "bytes read" in figures and "bytes written" in figures:
        moved = f"{figures['bytes read'] / _MB:.1f} MB read, {figures['bytes written'] / _MB:.1f} MB written"
        hits = f"; L2 hits {figures['L2 hits %']:.0f} %" if "L2 hits %" in figures else ""
        parts.append(f"  device memory: {moved}{hits}")
    if "warps per scheduler" in figures and "eligible warps per scheduler" in figures:
        parts.append(
            f"  per scheduler: {figures['warps per scheduler']:.1f} warps resident, of which "
            f"{figures['eligible warps per scheduler']:.2f} can issue in a cycle"
        )
    accesses = [
        f"{figures[f'{what} sectors'] / figures[f'{what} requests']:.1f} sectors per {what}"
        for what in ("load", "store")
        if figures.get(f"{what} requests") and f"{what} sectors" in figures
    ]
    parts += (
        [f"  global accesses: {', '.join(accesses)} (16 is 16 bytes a thread, all of them used)"] if accesses else []
    )
    if figures.get("bank conflicts", 0.0) > _LEAST_CONFLICTS * figures.get("shared wavefronts", 0.0):
        share = figures["bank conflicts"] / max(figures.get("shared wavefronts", 0.0), 1.0)
        parts.append(f"  bank conflicts: {share:.0%} of the passes through shared memory")
    if figures.get("local requests"):
        parts.append(f"  registers spilled or arrays in local memory: {figures['local requests']:,.0f} requests")
    shown = [f"{reason} {share:.0%}" for reason, share in list(one.waits.items())[:_WAITS] if share >= _LEAST_WAIT]
    return [*parts, *([f"  of {one.samples} samples of warps, these waited for: {', '.join(shown)}"] if shown else [])]


def _lines(profile: KernelProfile, source: Sequence[str]) -> list[str]:
    header = "  line  samples  waiting most for (a line that calls an inlined function counts its samples too)"
    rows = [header] if profile.lines else []
    for one in profile.lines:
        reason = next(iter(one.waits), "nothing")
        text = source[one.line - 1].strip() if 0 < one.line <= len(source) else ""
        rows.append(f"  {one.line:>4}  {one.samples / max(profile.samples, 1):>7.1%}  {reason:<40}  {_shortened(text)}")
    return rows
