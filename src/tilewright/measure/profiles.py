"""A GPU's own counters of a candidate, in a few lines for somebody who is to improve it."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.devices.protocol import Device
from tilewright.measure.preparation import Prepared, job_inputs
from tilewright.records import Completed, Job, KernelProfile, Limits, LineSamples, Task, Watch

_SECONDS = 180.0
_LAUNCHES = 3  # shown in full
_WAITS = 4
_SOURCE_WIDTH = 150
_LEAST_WAIT = 0.03
_LEAST_CONFLICTS = 0.05  # of all shared-memory passes
_MB = 1e6


def profile(prepared: Prepared, task: Task, gpu: Device) -> Completed | str:
    """What the counters say of the plan at the task's sizes, or why they say nothing."""
    job = Job(
        id="profile",
        arch=prepared.evaluation.gpu.arch,
        cubin=prepared.build.cubin if prepared.build else b"",
        plan=prepared.plan,
        inputs=job_inputs(task, prepared.sizes, 0),
        returns=(),
        limits=Limits(_SECONDS, int(0.8 * prepared.evaluation.gpu.memory_bytes) or Limits().device_bytes),
        watch=Watch.COUNTERS,
    )
    execution = gpu.execute(job)
    if not isinstance(execution, Completed):
        return f"{execution.kind.value}: {execution.message}"
    return execution if execution.profiles else execution.not_watched or "the device reads no counters"


def profile_text(done: Completed, source: str) -> str:
    """At most some thirty lines a launch."""
    lines = source.splitlines()
    heaviest = sorted(done.profiles, key=lambda one: -one.duration_us)[:_LAUNCHES]
    parts = [
        f"Counters of {done.device}, read by Nsight Compute with a cold cache (a launch alone takes longer than among "
        "others):"
    ]
    for one in heaviest:
        parts += [f"{one.kernel}: {one.duration_us:.1f} us", *_figures(one), *_waits(one), *_lines(one, lines)]
    if len(done.profiles) > _LAUNCHES:
        parts.append(f"({len(done.profiles) - _LAUNCHES} shorter launches are not shown.)")
    return "\n".join(parts)


def _figures(one: KernelProfile) -> list[str]:
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
    return parts


def _waits(one: KernelProfile) -> list[str]:
    shown = [f"{reason} {share:.0%}" for reason, share in list(one.waits.items())[:_WAITS] if share >= _LEAST_WAIT]
    return [f"  of {one.samples} samples of warps, these waited for: {', '.join(shown)}"] if shown else []


def _lines(one: KernelProfile, source: Sequence[str]) -> list[str]:
    if not one.lines:
        return []
    rows = ["  line  samples  waiting most for (a line that calls an inlined function counts its samples too)"]
    return rows + [_line(line, one.samples, source) for line in one.lines]


def _line(one: LineSamples, total: int, source: Sequence[str]) -> str:
    reason = next(iter(one.waits), "nothing")
    text = source[one.line - 1].strip() if 0 < one.line <= len(source) else ""
    text = text if len(text) <= _SOURCE_WIDTH else text[:_SOURCE_WIDTH] + "..."
    return f"  {one.line:>4}  {one.samples / max(total, 1):>7.1%}  {reason:<40}  {text}"
