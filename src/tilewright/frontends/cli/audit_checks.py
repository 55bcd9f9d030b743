"""Whether a kernel is right: the referee's verdict where there is a reference, else every checker at odd sizes."""

from __future__ import annotations

import contextlib
import difflib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tilewright import records
from tilewright.devices.emulation.listing import costly_lines
from tilewright.frontends.cli.check import CheckOptions, check_file, sizes_follow
from tilewright.frontends.cli.imported_checks import past_tensor
from tilewright.frontends.report.audit import Correctness, Speed, Suggestion, Weight
from tilewright.frontends.report.checks import CheckOutcome, CheckReport
from tilewright.frontends.report.facts import roofline_of
from tilewright.importing.calls import Given
from tilewright.importing.sizes import ODD, ROUND, small_arguments
from tilewright.kernel_file import ArgumentValue, Choice, KernelFile
from tilewright.lint.catalogue import RULES
from tilewright.measure import Stopwatch, what_if
from tilewright.measure.emulated_counts import NotCounted
from tilewright.measure.evidence import profile_figures
from tilewright.measure.performance_model import PlanModel
from tilewright.measure.preparation import NotPrepared
from tilewright.prompts.verdict_text import remedy_of, verdict_text, verdict_words
from tilewright.records import (
    Emulation,
    FindingRecord,
    GpuProfile,
    KernelProfile,
    LintFinding,
    LintRule,
    Measured,
    Severity,
    Task,
    TensorSpec,
)
from tilewright.tasks.errors import BadArgument

Say = Callable[[str], None]
Judged = tuple[Correctness, tuple[Suggestion, ...]]
_SCHEDULES = 3
_SAMPLED_BLOCKS = 8
_WHOLE_ELEMENTS = 1 << 18  # up to which a call that has no smaller one is run whole
_SECONDS = 60.0
_LINE_NUMBER = re.compile(
    r"(?P<before>(?P<said>(?<!PTX )\bline )|^[ >]*)(?P<number>\d+)(?(said)\b|(?= \|))", re.MULTILINE
)
_WORDS = {CheckOutcome.CLEAN: "no fault found", CheckOutcome.FINDINGS: "at fault"}


def judged_by_referee(verdict: records.Verdict, judged: KernelFile, file: KernelFile) -> Judged:
    """`judged` is the file as the referee had it, with lines that `file` does not have."""
    lines = _own_lines(judged.text, file.text)
    told = _renumbered(verdict_text(verdict, judged.text), lines)
    if isinstance(verdict, records.Passed):
        count = sum(one.status is records.CaseStatus.RIGHT for one in verdict.cases)
        judge = f"the referee, against the reference, in {count} cases: sizes, values and layouts that go wrong"
        return Correctness(True, verdict_words(verdict), judge, "", (*verdict.notes, *verdict.unjudged)), ()
    judge = "the referee, against the reference"
    if isinstance(verdict, records.Unsupported):
        return Correctness(None, verdict_words(verdict), judge, told), ()
    evidence = verdict.evidence
    if isinstance(evidence, records.Crashed) and evidence.ran_out:
        return Correctness(None, f"not decided: it {evidence.reason}", judge, told), ()
    found: tuple[FindingRecord, ...] = evidence.findings if isinstance(evidence, records.Crashed) else ()
    suggestions = _of_findings(found, file, lines)
    if not suggestions:
        line = lines.get(evidence.line or 0) if isinstance(evidence, records.Crashed) else None
        suggestions = (_wrong(verdict_words(verdict), told, line, file),)
        if isinstance(evidence, records.WrongValues) and evidence.drops_nan:
            suggestions = (replace(suggestions[0], weight=Weight.FAULT),)
    return Correctness(False, verdict_words(verdict), judge, told), suggestions


def _own_lines(judged: str, own: str) -> dict[int, int]:
    """The number of each line that both texts have, in the text that its owner knows."""
    blocks = difflib.SequenceMatcher(a=judged.splitlines(), b=own.splitlines(), autojunk=False).get_matching_blocks()
    return {one.a + k + 1: one.b + k + 1 for one in blocks for k in range(one.size)}


def _renumbered(text: str, lines: Mapping[int, int]) -> str:
    """What was said of the judged text with its owner's numbers, in sentences and beside the lines that are shown."""

    def own(found: re.Match[str]) -> str:
        number = str(lines.get(int(found["number"]), found["number"]))
        return found["before"] + (number if found["said"] else number.rjust(len(found["number"])))

    return _LINE_NUMBER.sub(own, text)


def judged_by_checkers(
    file: KernelFile,
    arguments: Mapping[str, ArgumentValue],
    gpu: GpuProfile,
    reference: tuple[Path, str] | None,
    say: Say,
    guessed_lengths: frozenset[str] = frozenset(),
) -> Judged:
    """Small calls, of odd sizes and of round ones, for they take different ways through many kernels; of accesses past
    tensors whose length was guessed nothing is concluded."""
    options = CheckOptions(gpu, Emulation(schedules=_SCHEDULES), reference, seconds=_SECONDS)
    seen: list[CheckReport] = []
    with contextlib.suppress(BadArgument):  # of a reference that takes no other sizes; said again below if of no call
        seen = [check_file(file, call, False, options, say) for call in _small_calls(file, arguments, gpu)]
    blocks = None if seen or _elements(arguments) <= _WHOLE_ELEMENTS else _SAMPLED_BLOCKS
    if not seen:
        if blocks is not None:
            sampled = replace(options.emulation, sampled_blocks=blocks)
            options = replace(options, emulation=sampled, reference=None)
        seen = [check_file(file, dict(arguments), False, options, say)]
    reports = [_within(one, guessed_lengths) for one in seen]
    worst = next((one for one in reports if one.outcome.exit_status == 1), None) or max(
        reports, key=lambda one: one.outcome.exit_status
    )
    found = _of_reports(reports, file)
    whom = "against the reference" if worst.compared else "with nothing to compare results with"
    part = f"{blocks} blocks of each launch" if blocks is not None else "all blocks"
    sizes = "; ".join(", ".join(f"{name} = {text}" for name, text in one.arguments.items()) for one in reports)
    judge = f"the emulator's checkers, {whom}, {part} under {_SCHEDULES} schedules at {sizes}"
    passed = {CheckOutcome.CLEAN: True, CheckOutcome.NOT_EMULABLE: None}.get(worst.outcome, False)
    passed = None if _ran_out_of_time(worst) or (passed and reports != seen) else passed
    agrees = "right at these sizes" if passed and worst.compared else ""
    text = "\n".join((worst.reason, *map(str, worst.diagnostics))).strip()
    notes = dict.fromkeys(f"not checked to the end: {one}" for report in reports for one in report.incomplete)
    words = agrees or _WORDS.get(worst.outcome, worst.outcome.value)
    words = "not decided: the emulator ran out of time" if _ran_out_of_time(worst) else words
    if reports != seen:
        past = {past_tensor(one) for report in seen for one in report.findings} & guessed_lengths or guessed_lengths
        short = ", ".join(sorted(past))
        notes[f"accesses go past {short}, whose length was guessed: say it with --shape, else it means nothing"] = None
    return Correctness(passed, words, judge, text, tuple(notes)), found


def _is_unsure(finding: FindingRecord, guessed_lengths: frozenset[str]) -> bool:
    """Past a tensor whose length was guessed, or so far from all that it may be."""
    outside = finding.kind is records.FindingKind.OUT_OF_BOUNDS_GLOBAL
    return bool(guessed_lengths) and outside and past_tensor(finding) in {*guessed_lengths, ""}


def _within(report: CheckReport, guessed_lengths: frozenset[str]) -> CheckReport:
    """The report without accesses past tensors of a guessed length, and what only follows from them."""
    kept = tuple(one for one in report.findings if not _is_unsure(one, guessed_lengths))
    if kept == report.findings:
        return report
    outcome = CheckOutcome.CLEAN if not kept and report.outcome is CheckOutcome.FINDINGS else report.outcome
    return replace(report, findings=kept, outcome=outcome)


def _small_calls(
    file: KernelFile, arguments: Mapping[str, ArgumentValue], gpu: GpuProfile
) -> list[dict[str, ArgumentValue]]:
    """None where a size may be left behind: tensors and numbers are made smaller together where they are equal."""
    if not sizes_follow(file, arguments):
        return []
    whole = {name: tuple(map(int, one)) if isinstance(one, tuple) else one for name, one in arguments.items()}
    call = [Given.of(name, value) for name, value in whole.items()]
    tried = (small_arguments(file, call, gpu, ways) for ways in (ODD, ROUND))
    found = [one for one in tried if one is not None]
    return found[:1] if found[1:] == found[:1] else found


def _elements(arguments: Mapping[str, ArgumentValue]) -> int:
    return sum(math.prod(one.shape) for one in arguments.values() if isinstance(one, TensorSpec))


def _of_reports(reports: Sequence[CheckReport], file: KernelFile) -> tuple[Suggestion, ...]:
    """Each fault once, with the call it was seen in; one of odd sizes alone weighs less."""
    found: dict[tuple[str, int | None], Suggestion] = {}
    for number, report in reversed(tuple(enumerate(reports))):
        sizes = ", ".join(f"{name} = {text}" for name, text in report.arguments.items())
        odd = number == 0 and len(reports) > 1
        for one in _of_report(report, file):
            told = replace(one, evidence=f"{one.evidence} (at {'the odd sizes ' if odd else ''}{sizes})")
            found.setdefault((one.what, one.line), replace(told, weight=Weight.FAULT) if odd else told)
    return tuple(found.values())


def _ran_out_of_time(report: CheckReport) -> bool:
    """Which the emulator may have done, and not the kernel."""
    return report.outcome is CheckOutcome.FAULTED and report.reason.startswith(records.FaultKind.TIME.value)


def _of_report(report: CheckReport, file: KernelFile) -> tuple[Suggestion, ...]:
    made = list(_of_findings(report.findings, file))
    if _ran_out_of_time(report):
        return tuple(made)
    made += [_wrong(f"{one.name} is wrong", one.message, None, file) for one in report.results if not one.agrees]
    if not made and report.outcome not in (CheckOutcome.CLEAN, CheckOutcome.NOT_EMULABLE):
        first = next((one for one in report.diagnostics if one.severity is records.Severity.ERROR), None)
        line = first.line if first is not None else None
        made.append(_wrong(report.outcome.value, str(first) if first is not None else report.reason, line, file))
    return tuple(made)


def _of_findings(
    findings: Iterable[FindingRecord], file: KernelFile, lines: Mapping[int, int] | None = None
) -> tuple[Suggestion, ...]:
    """One for each kind of fault at each line."""
    made: dict[tuple[records.FindingKind, int | None], Suggestion] = {}
    for one in findings:
        line = one.line if lines is None else lines.get(one.line or 0)
        told = _renumbered(
            ": ".join(part for part in (str(one.thread or ""), one.where, one.detail) if part), lines or {}
        )
        found = Suggestion(
            Weight.WRONG, one.kind.value, one.kernel, line, source_at(file, line), told, "", remedy_of(one.kind)
        )
        made.setdefault((one.kind, line), found)
    return tuple(made.values())


def _wrong(what: str, evidence: str, line: int | None, file: KernelFile) -> Suggestion:
    return Suggestion(Weight.WRONG, what, "", line, source_at(file, line), evidence, "", "")


def source_at(file: KernelFile, line: int | None) -> str:
    lines: Sequence[str] = file.text.splitlines()
    return lines[line - 1].strip() if line is not None and 0 < line <= len(lines) else ""


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
