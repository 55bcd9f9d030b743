"""What fixing one thing would gain: the plan is modelled again with changed counts, without emulating it again."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection
from dataclasses import replace

from tilewright.measure.emulated_counts import CountedLaunch
from tilewright.measure.performance_model import LINE_BYTES, PlanModel, model_plan
from tilewright.records import SECTOR_BYTES, InstructionRecord, Task
from tilewright.records.emulation import kernel_line

Change = Callable[[CountedLaunch], CountedLaunch]

_WIDEST_BYTES, _LANES = 16, 32
_LOCAL = re.compile(r"(?:@!?\S+\s+)?(?:ld|st)\.\S*\blocal\b")


def speedup_with(model: PlanModel, task: Task, change: Change) -> float:
    """The speedup of the plan if every launch were changed so.

    No resource gets slower: fewer sectors come from further away on average, but not later.
    """
    counted = replace(model.counted, launches=tuple(map(change, model.counted.launches)))
    changed = model_plan(counted, task, model.modelled.floor_us)
    saved_us = 0.0
    for old, new in zip(model.launches, changed.launches, strict=True):
        now = {term.name: term.time_us for term in new.terms}
        shorter = (replace(term, time_us=min(term.time_us, now.get(term.name, 0.0))) for term in old.terms)
        saved_us += old.time_us - replace(old, terms=tuple(shorter)).time_us
    return _times(model, saved_us)


def speedup_without(model: PlanModel, name: str) -> float:
    """The speedup if one resource took no time."""
    left = (replace(one, terms=tuple(term for term in one.terms if term.name != name)) for one in model.launches)
    return _times(model, math.fsum(one.time_us for one in model.launches) - math.fsum(one.time_us for one in left))


def _times(model: PlanModel, saved_us: float) -> float:
    left_us = model.modelled.time_us - saved_us
    return model.modelled.time_us / left_us if left_us > 0 else 1.0


# -- changes --


def at_lines(kernel: str, lines: Collection[int], change: Callable[[InstructionRecord], InstructionRecord]) -> Change:
    """Change the instructions at some lines of one kernel."""

    def changed(launch: CountedLaunch) -> CountedLaunch:
        if launch.counts.kernel != kernel:
            return launch
        instructions = tuple(
            change(one) if kernel_line(one.places) in lines else one for one in launch.counts.instructions
        )
        return replace(launch, counts=replace(launch.counts, instructions=instructions))

    return changed


def coalesced(one: InstructionRecord) -> InstructionRecord:
    """Accesses with the fewest sectors, lines and passes that carry their bytes."""
    sectors = min(one.sectors, one.ideal_sectors)
    return replace(
        one,
        sectors=sectors,
        lines=min(one.lines, -(-sectors * SECTOR_BYTES // LINE_BYTES)),
        passes=min(one.passes, one.ideal_passes or one.passes),
    )


def in_registers(one: InstructionRecord) -> InstructionRecord:
    """Accesses to local memory removed."""
    gone = _LOCAL.match(one.ptx_text) is not None
    return replace(one, executions=0, active_lanes=0, requests=0, bytes=0) if gone else one


def in_f32(one: InstructionRecord) -> InstructionRecord:
    """f64 arithmetic done in f32."""
    return replace(one, ptx_text=one.ptx_text.replace(".f64", ".f32"))


def vectorised(one: InstructionRecord) -> InstructionRecord:
    """16 bytes per lane, so fewer requests for the same sectors."""
    each = one.bytes / max(one.requests * _LANES, 1)
    if not one.sectors or not one.requests or each >= _WIDEST_BYTES:
        return one
    fewer = max(each, 1.0) / _WIDEST_BYTES
    return replace(
        one,
        requests=max(1, round(one.requests * fewer)),
        executions=max(1, round(one.executions * fewer)),
        active_lanes=max(1, round(one.active_lanes * fewer)),
    )


def without_spills(kernel: str) -> Change:
    def changed(launch: CountedLaunch) -> CountedLaunch:
        if launch.counts.kernel != kernel:
            return launch
        resources = replace(launch.kernel.resources, spill_store_bytes=0, spill_load_bytes=0)
        return replace(launch, kernel=replace(launch.kernel, resources=resources))

    return changed
