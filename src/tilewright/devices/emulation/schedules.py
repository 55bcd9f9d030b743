"""One plan under several schedules: outputs of the first, findings of all, the same fault seen again being one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tilewright.devices.emulation.plan_memory import PlanMemory
from tilewright.devices.emulation.plan_run import Announce, PlanOutcome, announce_nothing, run_plan
from tilewright.records import BoundPlan, Check, EmulatedRun, Emulation, FindingKind, FindingRecord

if TYPE_CHECKING:
    from tilewright.ptx.program import Program

_RACES = (FindingKind.RACE_SHARED, FindingKind.RACE_GLOBAL)


def run_schedules(
    program: Program | None,
    plan: BoundPlan,
    make_memory: Callable[[], PlanMemory],
    emulation: Emulation,
    returned: Sequence[str],
    announce: Announce = announce_nothing,
) -> PlanOutcome:
    """Run the plan once for each schedule, on fresh memory. Raises as `run_plan` does."""
    first = run_plan(program, plan, make_memory(), emulation, emulation.schedule_seed(0), announce)
    outcomes = [first]
    varying: set[str] = set()
    while len(outcomes) < emulation.schedules and outcomes[-1].went_well:
        seed = emulation.schedule_seed(len(outcomes))
        latest = run_plan(program, plan, make_memory(), _without_counters(emulation), seed, announce)
        outcomes.append(latest)
        if latest.went_well:
            varying |= {name for name in returned if _bytes(first, name) != _bytes(latest, name)}
    emulated = _summary([outcome.emulated for outcome in outcomes], varying)
    return replace(outcomes[-1], emulated=emulated, memory=first.memory)


def _bytes(outcome: PlanOutcome, name: str) -> bytes:
    return outcome.memory.content(name).tobytes()


def _without_counters(emulation: Emulation) -> Emulation:
    """Counts of one schedule are enough."""
    return replace(emulation, checks=tuple(check for check in emulation.checks if check is not Check.COUNTERS))


def _summary(runs: Sequence[EmulatedRun], varying: set[str]) -> EmulatedRun:
    return replace(
        runs[0],
        findings=merged(run.findings for run in runs),
        schedules=len(runs),
        varying=tuple(sorted(varying)),
        seconds=sum(run.seconds for run in runs),
        coverage=tuple(one for run in runs for one in run.coverage),
        incomplete=tuple(dict.fromkeys(sentence for run in runs for sentence in run.incomplete)),
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
