"""Where the time of a kernel goes, and what each thing that costs it would gain at most, were it mended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tilewright.devices.emulation.listing import costly_lines
from tilewright.frontends.audit.correctness import source_at
from tilewright.frontends.audit.report import Speed, Suggestion, Weight
from tilewright.frontends.view.counting import roofline_of
from tilewright.kernel_file import Choice, KernelFile
from tilewright.lint.catalogue import RULES
from tilewright.measure import Stopwatch, what_if
from tilewright.measure.emulated_counts import NotCounted
from tilewright.measure.evidence import profile_figures
from tilewright.measure.performance_model import PlanModel
from tilewright.measure.preparation import NotPrepared
from tilewright.records import KernelProfile, LintFinding, LintRule, Measured, Severity, Task

_COUNTED = (LintRule.UNCOALESCED, LintRule.BANK_CONFLICT)  # told better by counts, line by line
_WEIGHTS = {Severity.ERROR: Weight.FAULT, Severity.WARNING: Weight.COST, Severity.REMARK: Weight.REMARK}
_AT_BOUND = 1.05  # of the least that the model gives the task
_MOST_WAITS, _LEAST_WAIT = 2, 0.15  # lines where the GPU's counters saw warps wait; of all samples
_BY_LINES = {LintRule.NARROW_LOAD: what_if.wide, LintRule.ACCIDENTAL_DOUBLE: what_if.in_single}

# What helps against each resource of the model.
_REMEDIES = {
    "device memory": "move fewer bytes: read each input once, keep what is used again in registers or shared memory, "
    "fuse with the operations before and after, store 16-bit values",
    "L2 cache": "let neighbouring lanes touch neighbouring elements, and read shared things once per block through "
    "shared memory; add up in registers before atomics",
    "L1 and shared memory": "fewer and wider exchanges: 16 bytes a lane, values kept in registers, rows padded or "
    "swizzled, neighbouring lanes at neighbouring elements",
    "issue slots": "fewer instructions: vector loads, index arithmetic outside loops and in 32 bits, unrolled loops, "
    "tensor cores for products",
    "special functions": "__expf, exp2f with the factor folded in, one reciprocal for many divisions",
    "tensor cores": "larger tiles, and on Hopper wgmma fed by TMA, which reach more of the peak than mma.sync",
    "starting blocks": "fewer and longer blocks: more elements for each thread, or blocks that stay and go on",
    "latency": "more loads under way: vectors, unrolled loops, cp.async ahead of use; more blocks, or a long row "
    "shared by several blocks",
}


@dataclass(frozen=True)
class Timed:
    """What is known of a kernel's speed before anything is made of it."""

    speed: Speed
    model: PlanModel | None
    profiles: tuple[KernelProfile, ...] = ()


def timed(file: KernelFile, stopwatch: Stopwatch, measured: Measured | None, choice: Choice | None = None) -> Timed:
    """Modelled, with the measured time and the GPU's counters where there is one. Raises `NotPrepared`."""
    done = stopwatch.profiled(file, choice)
    profiles = () if isinstance(done, str) else done.profiles
    longest = max(profiles, key=lambda one: one.duration_us, default=None)
    counters = tuple(line.strip() for line in profile_figures(longest)) if longest is not None else ()
    evidence = stopwatch.evidence(file, choice)
    try:
        model = stopwatch.model(file, choice)
    except NotCounted as problem:
        said = f"not modelled: {problem}"
        return Timed(Speed(measured, said, counters=counters, evidence=evidence), None, profiles)
    modelled = model.modelled
    shown = measured or modelled
    speed = Speed(
        shown,
        terms=modelled.terms,
        bound_by=modelled.bounds[0].name if modelled.bounds else "",
        reachable_us=modelled.reachable_us,
        counters=counters,
        evidence=evidence,
        roofline=roofline_of(model, stopwatch.task.profile, shown.time_us, measured is not None),
    )
    return Timed(speed, model, profiles)


def cost_suggestions(file: KernelFile, task: Task, found: Timed, lint: Sequence[LintFinding]) -> Iterator[Suggestion]:
    """What lint reads, what counts and counters tell by line, and the resource that bounds it."""
    model = found.model
    for one in lint:
        if model is None or one.rule not in _COUNTED:
            gain = _lint_gain(model, task, one) if model is not None else None
            place, said = (one.kernel, one.line, source_at(file, one.line)), (one.evidence, one.why, one.remedy)
            yield Suggestion(_WEIGHTS[one.severity], one.rule.value, *place, *said, gain)
    yield from _waits(found.profiles, file)
    if model is not None:
        yield from _costly(model, task, file)
        yield from _bottleneck(model)


def _lint_gain(model: PlanModel, task: Task, finding: LintFinding) -> float | None:
    if finding.rule is LintRule.SPILL:
        return what_if.times_as_fast(model, task, what_if.without_spills(finding.kernel))
    if finding.rule is LintRule.LOCAL_ARRAY:
        everywhere = range(1, 1 << 20)  # the array is declared at one line and used at others
        return what_if.times_as_fast(model, task, what_if.at_lines(finding.kernel, everywhere, what_if.in_registers))
    change = _BY_LINES.get(finding.rule)
    if change is None or finding.line is None:
        return None
    return what_if.times_as_fast(model, task, what_if.at_lines(finding.kernel, {finding.line}, change))


def _costly(model: PlanModel, task: Task, file: KernelFile) -> Iterator[Suggestion]:
    """Lines whose requests take more sectors or passes than their bytes need, by the emulator's counts."""
    for launch in model.launches:
        for one in costly_lines(launch.facts.listing):
            gain = what_if.times_as_fast(model, task, what_if.at_lines(one.kernel, {one.line}, what_if.ideal))
            shared = "shared" in one.message
            what = "bank conflicts" if shared else "uncoalesced access"
            rule = RULES[LintRule.BANK_CONFLICT if shared else LintRule.UNCOALESCED]
            place = (one.kernel, one.line, source_at(file, one.line))
            yield Suggestion(Weight.COST, what, *place, one.message, rule.why, rule.remedy, gain)


def _bottleneck(model: PlanModel) -> Iterator[Suggestion]:
    modelled = model.modelled
    bounds = modelled.bounds
    if not bounds or modelled.time_us <= _AT_BOUND * modelled.reachable_us:
        return
    term = bounds[0]
    heaviest = max(model.launches, key=lambda launch: launch.time_us)
    share = term.time_us / modelled.time_us
    evidence = f"{term.time_us:.1f} us alone, {share:.0%} of the whole as modelled: {term.detail}"
    gain = what_if.without_term(model, term.name)
    remedy = _REMEDIES.get(term.name, "")
    kernel = heaviest.facts.counted.launch.kernel
    why = "of all resources it takes the longest; what others take hides behind it"
    yield Suggestion(Weight.COST, f"bound by {term.name}", kernel, None, "", evidence, why, remedy, gain)


def _waits(profiles: Sequence[KernelProfile], file: KernelFile) -> Iterator[Suggestion]:
    """Lines where the GPU's own counters saw warps wait."""
    for one in profiles:
        heavy = sorted(one.lines, key=lambda line: -line.samples)
        for line in heavy[:_MOST_WAITS]:
            share = line.samples / max(one.samples, 1)
            if share >= _LEAST_WAIT:
                reason = next(iter(line.waits), "nothing")
                evidence = f"{share:.0%} of the samples of warps are here, most of them waiting for {reason} (counters)"
                source = source_at(file, line.line)
                yield Suggestion(Weight.COST, "warps wait here", one.kernel, line.line, source, evidence, "", "")


def not_modelled(reason: NotPrepared | str) -> Timed:
    return Timed(Speed(None, str(reason)), None)
