"""One plan under several schedules: outputs of the first and of those that differ, findings of all.

The same fault seen again is one. Each schedule has an order of warps and blocks, addresses and poison of its own: what
depends on any of them shows as results that vary. After the last of several, the plan is called once more on the memory
that it leaves behind, as a GPU would be.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tilewright.devices.contents import POISON_BYTE
from tilewright.devices.emulation.plan_memory import Perturbation, PlanMemory
from tilewright.devices.emulation.plan_run import Announce, PlanOutcome, announce_nothing, run_plan
from tilewright.records import BoundPlan, Check, EmulatedRun, Emulation, FindingKind, FindingRecord

if TYPE_CHECKING:
    from tilewright.ptx.program import Program

_RACES = (FindingKind.RACE_SHARED, FindingKind.RACE_GLOBAL)
# Not of global memory: what an earlier call left there could be found again.
_NEVER_WRITTEN = (FindingKind.UNINITIALISED_SHARED, FindingKind.UNINITIALISED_LOCAL)
# NaN; a large number, of which a maximum is made; a large negative one; zero, which sums do not show. In f32, f16 and
# bf16 alike, and as whole numbers far outside every tensor, but for the last.
_POISONS = (POISON_BYTE, 0x7B, 0xFB, 0x00)
_PLACES_APART = 3  # of one schedule and the next, so that the next seed's are others


def run_schedules(
    program: Program | None,
    plan: BoundPlan,
    make_memory: Callable[[Perturbation], PlanMemory],
    emulation: Emulation,
    returned: Sequence[str],
    announce: Announce = announce_nothing,
) -> PlanOutcome:
    """Run the plan once for each schedule, on fresh memory. Raises as `run_plan` does."""
    runs = _Runs(program, plan, make_memory, returned, announce)
    first = runs.settled(emulation, _circumstances(emulation, 0))
    outcomes, varying = [first], set[str]()
    others: dict[tuple[bytes, ...], PlanMemory] = {}

    def compare(latest: PlanOutcome) -> None:
        outcomes.append(latest)
        differing = {name for name in returned if _differs(first.memory, latest.memory, name)}
        if latest.succeeded and differing:
            varying.update(differing)
            others.setdefault(runs.results(latest), latest.memory)

    while len(outcomes) < emulation.schedules and outcomes[-1].succeeded:
        number = len(outcomes)
        compare(runs.settled(_without(emulation, Check.COUNTERS), _circumstances(emulation, number)))
    schedules = len(outcomes)
    if schedules > 1 and outcomes[-1].succeeded:
        compare(runs.again(outcomes[-1].memory, emulation, _circumstances(emulation, schedules - 1)))
    emulated = _summary([outcome.emulated for outcome in outcomes], varying, schedules)
    return replace(outcomes[-1], emulated=emulated, memory=first.memory, others=tuple(others.values()))


def _circumstances(emulation: Emulation, schedule: int) -> Perturbation:
    """Where tensors lie differs from schedule to schedule and from seed to seed, the first among them."""
    place = emulation.seed + _PLACES_APART * schedule
    return Perturbation(emulation.schedule_seed(schedule), place, _poison(emulation, schedule))


def _poison(emulation: Emulation, schedule: int) -> int:
    """Another for every seed and schedule; the only one of a run is never zero, which looks harmless."""
    first = emulation.seed % (len(_POISONS) - 1)
    return _POISONS[(first + schedule) % len(_POISONS)]


@dataclass(frozen=True)
class _Runs:
    """One plan, run again and again."""

    program: Program | None
    plan: BoundPlan
    make_memory: Callable[[Perturbation], PlanMemory]
    returned: Sequence[str]
    announce: Announce

    def run(self, emulation: Emulation, circumstances: Perturbation) -> PlanOutcome:
        memory = self.make_memory(circumstances)
        return _noted(run_plan(self.program, self.plan, memory, emulation, circumstances, self.announce))

    def again(self, used: PlanMemory, emulation: Emulation, circumstances: Perturbation) -> PlanOutcome:
        """The next call after one that left its memory so, in order; what was looked for then is not looked for now."""
        memory = self.make_memory(circumstances)
        memory.inherit(used, self.plan.buffers)
        quick = _without(emulation, Check.COUNTERS, Check.RACES, Check.COVERAGE, Check.UNINITIALISED)
        in_order = replace(circumstances, seed=None)
        return _noted(run_plan(self.program, self.plan, memory, quick, in_order, self.announce))

    def results(self, outcome: PlanOutcome) -> tuple[bytes, ...]:
        return tuple(outcome.memory.content(name).tobytes() for name in self.returned)

    def settled(self, emulation: Emulation, circumstances: Perturbation) -> PlanOutcome:
        """A run in which reads of what nothing wrote are findings only if something comes of what was read."""
        outcome = self.run(emulation, circumstances)
        found = outcome.emulated.findings
        read = tuple(one for one in found if one.kind in _NEVER_WRITTEN)
        if not read or not outcome.succeeded or not self._indifferent(outcome, emulation, circumstances):
            return outcome
        return _apart(outcome, read)

    def _indifferent(self, outcome: PlanOutcome, emulation: Emulation, circumstances: Perturbation) -> bool:
        """Whether every poison gives these results, and no faults but these."""
        known = {_key(one) for one in outcome.emulated.findings}
        quick = _without(emulation, Check.COUNTERS, Check.RACES, Check.UNINITIALISED)
        for poison in _POISONS:
            if poison == circumstances.poison:
                continue
            again = self.run(quick, replace(circumstances, poison=poison))
            if not again.succeeded or any(_key(one) not in known for one in again.emulated.findings):
                return False
            if any(_differs(outcome.memory, again.memory, name) for name in self.returned):
                return False
        return True


def _noted(outcome: PlanOutcome) -> PlanOutcome:
    """Bulk stores that their block ends with are no fault: an H200 keeps the shared memory until they have read it."""
    last = (one for one in outcome.emulated.findings if one.kind is FindingKind.ASYNC_NOT_CONSUMED)
    return _apart(outcome, tuple(one for one in last if ".global.shared::cta" in one.ptx_text))


def _apart(outcome: PlanOutcome, harmless: tuple[FindingRecord, ...]) -> PlanOutcome:
    emulated = outcome.emulated
    rest = tuple(one for one in emulated.findings if one not in harmless)
    return replace(outcome, emulated=replace(emulated, findings=rest, harmless=(*emulated.harmless, *harmless)))


def _differs(first: PlanMemory, other: PlanMemory, name: str) -> bool:
    """Whether a tensor holds something else, where it holds anything, or is written elsewhere."""
    written, unequal = first.memory.written(name), first.content(name) != other.content(name)
    return bool(((unequal & written) | (written != other.memory.written(name))).any())


def _without(emulation: Emulation, *checks: Check) -> Emulation:
    """Without counters, say: those of one schedule are enough."""
    return replace(emulation, checks=tuple(check for check in emulation.checks if check not in checks))


def _summary(runs: Sequence[EmulatedRun], varying: set[str], schedules: int) -> EmulatedRun:
    found = merged(run.findings for run in runs)
    findings = tuple(replace(one, schedules=min(one.schedules, schedules)) for one in found)  # the call after is none
    known = {_key(one) for one in findings}
    return replace(
        runs[0],
        findings=findings,
        schedules=schedules,
        varying=tuple(sorted(varying)),
        seconds=sum(run.seconds for run in runs),
        coverage=tuple(one for run in runs for one in run.coverage),
        incomplete=tuple(dict.fromkeys(sentence for run in runs for sentence in run.incomplete)),
        harmless=tuple(one for one in merged(run.harmless for run in runs) if _key(one) not in known),
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
