"""Runs a plan under several schedules: outputs of the first and of those that differ, merged findings of all.

Each schedule has its own order of warps and blocks, addresses and poison; results that depend on any of them vary.
After the last of several, the plan is called again on the memory that it left, as it would be on a GPU.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tilewright.devices.contents import POISON_BYTE
from tilewright.devices.emulation.leftovers import constant_fills, mixed_fill, widths_of
from tilewright.devices.emulation.plan_memory import Perturbation, PlanMemory
from tilewright.devices.emulation.plan_run import Announce, PlanOutcome, announce_nothing, run_plan
from tilewright.records import BoundPlan, Check, EmulatedRun, Emulation, FindingKind, FindingRecord

if TYPE_CHECKING:
    from tilewright.ptx.program import Program

_RACES = (FindingKind.RACE_SHARED, FindingKind.RACE_GLOBAL)
# Not global memory, where an earlier call may have left a value.
_NEVER_WRITTEN = (FindingKind.UNINITIALISED_SHARED, FindingKind.UNINITIALISED_LOCAL)
# In f32, f16 and bf16: NaN; a large number, which shows in a maximum; a large negative one; zero, which sums hide. As
# integers all but zero are far outside every tensor.
_POISONS = (POISON_BYTE, 0x7B, 0xFB, 0x00)
_MANY_FROM = 2  # schedules before that have few blocks side by side, which part further in what they do
_PLACES_APART = 3  # address seeds between schedules, so that consecutive seeds do not repeat them


def run_schedules(
    program: Program | None,
    plan: BoundPlan,
    make_memory: Callable[[Perturbation], PlanMemory],
    emulation: Emulation,
    returned: Sequence[str],
    announce: Announce = announce_nothing,
) -> PlanOutcome:
    """Run the plan once per schedule, on new memory. Raises as `run_plan` does."""
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
    """Addresses and poison vary with schedule and seed; a single run never uses zero poison, which looks harmless."""
    first = emulation.seed % (len(_POISONS) - 1)
    place = emulation.seed + _PLACES_APART * schedule
    poison = _POISONS[(first + schedule) % len(_POISONS)]
    return Perturbation(emulation.schedule_seed(schedule), place, poison, many=schedule >= _MANY_FROM)


@dataclass(frozen=True)
class _Runs:
    """Repeated runs of one plan."""

    program: Program | None
    plan: BoundPlan
    make_memory: Callable[[Perturbation], PlanMemory]
    returned: Sequence[str]
    announce: Announce

    def again(self, used: PlanMemory, emulation: Emulation, circumstances: Perturbation) -> PlanOutcome:
        """The next call, in order, on the memory that the last one left, with fewer checkers."""
        quick = _without(emulation, Check.COUNTERS, Check.RACES, Check.COVERAGE, Check.UNINITIALISED)
        in_order = replace(circumstances, seed=None, inherits=True, packed=True)
        memory = self.make_memory(in_order)
        memory.inherit(used, self.plan.buffers)
        return _noted(run_plan(self.program, self.plan, memory, quick, in_order, self.announce))

    def results(self, outcome: PlanOutcome) -> tuple[bytes, ...]:
        return tuple(outcome.memory.content(name).tobytes() for name in self.returned)

    def settled(self, emulation: Emulation, circumstances: Perturbation) -> PlanOutcome:
        """A run in which reads of uninitialised memory are findings only if the results depend on them."""
        memory = self.make_memory(circumstances)
        outcome = _noted(run_plan(self.program, self.plan, memory, emulation, circumstances, self.announce))
        found = outcome.emulated.findings
        read = tuple(one for one in found if one.kind in _NEVER_WRITTEN)
        if not read or not outcome.succeeded or not self._indifferent(outcome, read, emulation, circumstances):
            return outcome
        return _apart(outcome, read)

    def _indifferent(
        self, outcome: PlanOutcome, reads: Sequence[FindingRecord], emulation: Emulation, circumstances: Perturbation
    ) -> bool:
        """Whether whatever may be in unwritten memory gives the same results and no further findings."""
        known = {_key(one) for one in outcome.emulated.findings}
        quick = _without(emulation, Check.COUNTERS, Check.RACES, Check.COVERAGE, Check.UNINITIALISED)
        used = outcome.memory
        for other in self._other_contents(reads, emulation, circumstances):
            memory = self.make_memory(other)
            memory.memory.remains = used.memory.remains
            again = _noted(run_plan(self.program, self.plan, memory, quick, other, self.announce))
            if not again.succeeded or any(_key(one) not in known for one in again.emulated.findings):
                return False
            if any(_differs(outcome.memory, again.memory, name) for name in self.returned):
                return False
        return True

    def _other_contents(
        self, reads: Sequence[FindingRecord], emulation: Emulation, circumstances: Perturbation
    ) -> Iterator[Perturbation]:
        """What earlier blocks left, twice; the other poisons; a mixture; and, in order, the kernels' constants."""
        yield from (replace(circumstances, inherits=True),) * 2
        yield from (replace(circumstances, poison=poison) for poison in _POISONS if poison != circumstances.poison)
        if self.program is None:
            return
        module, widths = self.program.module, widths_of(reads)
        fills = [mixed_fill(module, widths, zlib.crc32(f"{emulation.seed} {self.plan}".encode()))]
        if circumstances.seed is None and emulation.schedules > 1:
            fills += constant_fills(module, widths)
        yield from (replace(circumstances, fill=fill) for fill in fills)


def _noted(outcome: PlanOutcome) -> PlanOutcome:
    """Bulk stores pending at a block's end are harmless: an H200 keeps the shared memory until they have read it."""
    last = (one for one in outcome.emulated.findings if one.kind is FindingKind.ASYNC_NOT_CONSUMED)
    return _apart(outcome, tuple(one for one in last if ".global.shared::cta" in one.ptx_text))


def _apart(outcome: PlanOutcome, harmless: tuple[FindingRecord, ...]) -> PlanOutcome:
    emulated = outcome.emulated
    rest = tuple(one for one in emulated.findings if one not in harmless)
    return replace(outcome, emulated=replace(emulated, findings=rest, harmless=(*emulated.harmless, *harmless)))


def _differs(first: PlanMemory, other: PlanMemory, name: str) -> bool:
    """Whether the written elements of a tensor differ, or the set of them."""
    written, unequal = first.memory.written(name), first.content(name) != other.content(name)
    return bool(((unequal & written) | (written != other.memory.written(name))).any())


def _without(emulation: Emulation, *checks: Check) -> Emulation:
    """The emulation without these checks."""
    return replace(emulation, checks=tuple(check for check in emulation.checks if check not in checks))


def _summary(runs: Sequence[EmulatedRun], varying: set[str], schedules: int) -> EmulatedRun:
    found = merged(run.findings for run in runs)
    findings = tuple(replace(one, schedules=min(one.schedules, schedules)) for one in found)
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
    """Merged findings: as first seen, with the greatest count and the number of runs that had it."""
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
    # Which side of a race is reported depends on the schedule.
    if finding.kind in _RACES and finding.other_line is not None and finding.line is not None:
        return finding.kind, finding.launch_line, frozenset((finding.line, finding.other_line))
    return finding.kind, finding.launch_line, finding.ptx_line, finding.line
