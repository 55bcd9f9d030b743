"""One plan under several schedules: outputs of the first, findings of all, the same fault seen again being one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tilewright.devices.emulation.plan_memory import PlanMemory
from tilewright.devices.emulation.plan_run import Announce, PlanOutcome, announce_nothing, run_plan
from tilewright.records import (
    BoundPlan,
    Check,
    EmulatedRun,
    Emulation,
    FindingKind,
    FindingRecord,
    PackedLaunch,
)

if TYPE_CHECKING:
    from tilewright.ptx.program import Program

_RACES = (FindingKind.RACE_SHARED, FindingKind.RACE_GLOBAL)


@dataclass(frozen=True)
class ScheduledRun:
    """All schedules of a plan, or those up to the first that went wrong."""

    emulated: EmulatedRun
    memory: PlanMemory  # as the first schedule left it
    stopped_by: FindingRecord | None
    stopped_at: PackedLaunch | None
    counter_left: FindingRecord | None


def run_schedules(
    program: Program | None,
    plan: BoundPlan,
    make_memory: Callable[[], PlanMemory],
    emulation: Emulation,
    returned: Sequence[str],
    announce: Announce = announce_nothing,
) -> ScheduledRun:
    """Run the plan once for each schedule, on fresh memory. Raises as `run_plan` does."""
    first = make_memory()
    outcomes = [run_plan(program, plan, first, emulation, emulation.schedule_seed(0), announce)]
    varying: set[str] = set()
    while len(outcomes) < emulation.schedules and _went_well(outcomes[-1]):
        memory = make_memory()
        seed = emulation.schedule_seed(len(outcomes))
        outcomes.append(run_plan(program, plan, memory, _without_counters(emulation), seed, announce))
        if _went_well(outcomes[-1]):
            varying |= {name for name in returned if first.content(name).tobytes() != memory.content(name).tobytes()}
    last = outcomes[-1]
    return ScheduledRun(_summary(outcomes, varying), first, last.stopped_by, last.stopped_at, last.counter_left)


def _went_well(outcome: PlanOutcome) -> bool:
    return outcome.stopped_by is None and outcome.counter_left is None


def _without_counters(emulation: Emulation) -> Emulation:
    """Counts of one schedule are enough."""
    return replace(emulation, checks=tuple(check for check in emulation.checks if check is not Check.COUNTERS))


def _summary(outcomes: Sequence[PlanOutcome], varying: set[str]) -> EmulatedRun:
    return EmulatedRun(
        findings=merged(outcome.findings for outcome in outcomes),
        counts=outcomes[0].counts,
        thread_instructions=outcomes[0].thread_instructions,
        schedules=len(outcomes),
        varying=tuple(sorted(varying)),
        printed=outcomes[0].printed,
        seconds=sum(outcome.seconds for outcome in outcomes),
        incomplete=tuple(dict.fromkeys(sentence for outcome in outcomes for sentence in outcome.incomplete)),
    )


def merged(runs: Iterable[Sequence[FindingRecord]]) -> tuple[FindingRecord, ...]:
    """Findings of all runs, each once: as first seen, with the greatest count and how many runs saw it."""
    kept: dict[Hashable, FindingRecord] = {}
    for findings in runs:
        seen: set[Hashable] = set()
        for finding in findings:
            key = _key(finding)
            known = kept.get(key)
            if known is None:
                kept[key] = finding
            else:
                more = 0 if key in seen else 1
                kept[key] = replace(known, count=max(known.count, finding.count), schedules=known.schedules + more)
            seen.add(key)
    return tuple(kept.values())


def _key(finding: FindingRecord) -> Hashable:
    # Which side of a race is noticed depends on the schedule; it is one race.
    if finding.kind in _RACES and finding.other_line is not None and finding.line is not None:
        return finding.kind, finding.launch_line, frozenset((finding.line, finding.other_line))
    return finding.kind, finding.launch_line, finding.ptx_line, finding.line
