"""What `build`, `check` and `lint` say of a kernel file: their records, which JSON holds, as blocks."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tilewright import records
from tilewright.devices.emulation.listing import CostlyLine, Listing, listing_text
from tilewright.frontends.report import document as doc
from tilewright.frontends.report.runs import named_values, number_of
from tilewright.kernel_file import ArgumentValue, KernelFile
from tilewright.store import provenance_path
from tilewright.toolchain import LaunchReport
from tilewright.verify.judging_records import ResultVerdict

_RESOURCES = ("GPU", "target", "kernel", "grid x block", "registers", "spills", "shared", "occupancy", "", "limited by")


@dataclass(frozen=True)
class BufferReport:
    name: str
    role: str
    tensor: str  # "bf16[4096, 1024]"
    clearing: str


@dataclass(frozen=True)
class CompiledReport:
    """What the compiler made of a file."""

    cubin_bytes: int
    key: str
    compiler: str
    seconds: float
    warnings: tuple[records.Diagnostic, ...]
    sass: dict[str, dict[str, int]]  # by kernel: telling instructions and how often they stand in the code


@dataclass(frozen=True)
class BuiltTarget:
    """A plan for one GPU. `compiled` is None where it launches nothing: a file of library steps, an empty tensor."""

    gpu: str
    arch: str
    constants: tuple[tuple[str, records.ConstantValue], ...]
    buffers: tuple[BufferReport, ...]
    launches: tuple[LaunchReport, ...]
    library_calls: tuple[str, ...]
    compiled: CompiledReport | None
    why_choice: str = ""  # where the choice of tuned constants comes from


@dataclass(frozen=True)
class FailedTarget:
    """The file does not take these arguments on this GPU, or the compiler rejected it."""

    gpu: str
    arch: str
    applies: bool
    reason: str
    diagnostics: tuple[records.Diagnostic, ...]


@dataclass(frozen=True, kw_only=True)
class KernelCall:
    """A kernel file and the call that it is looked at with."""

    file: str
    identity: str
    op: str
    arguments: dict[str, str]
    guessed: bool  # the shapes were guessed, not given


def call_of(file: KernelFile, arguments: Mapping[str, ArgumentValue], guessed: bool) -> KernelCall:
    given = describe_arguments(arguments)
    return KernelCall(file=file.name, identity=file.identity, op=file.plan.op.name, arguments=given, guessed=guessed)


@dataclass(frozen=True, kw_only=True)
class BuildReport(KernelCall):
    targets: tuple[BuiltTarget | FailedTarget, ...]

    @property
    def succeeded(self) -> bool:
        return all(isinstance(target, BuiltTarget) for target in self.targets)


def describe_arguments(arguments: Mapping[str, ArgumentValue]) -> dict[str, str]:
    return {
        name: "absent" if value is None else str(value) if isinstance(value, records.TensorSpec) else str(value).lower()
        for name, value in arguments.items()
    }


class CheckOutcome(str, Enum):
    """What became of a check; each has its exit status."""

    CLEAN = "clean"
    FINDINGS = "findings"  # a checker found something
    WRONG = "wrong"  # a result differs from the reference
    FAULTED = "faulted"  # the run did not get to its end
    NOT_BUILT = "not built"
    DOES_NOT_APPLY = "does not apply"
    NOT_EMULABLE = "not emulable"

    @property
    def exit_status(self) -> int:
        return {CheckOutcome.CLEAN: 0, CheckOutcome.NOT_EMULABLE: 3}.get(self, 1)


@dataclass(frozen=True, kw_only=True)
class CheckReport(records.EmulatedRun, KernelCall):
    """One kernel file at one set of arguments on one emulated GPU; counts only where they are asked for."""

    gpu: str
    outcome: CheckOutcome
    reason: str  # why it faulted, was not built or does not apply
    results: tuple[ResultVerdict, ...]  # against the reference
    compared: bool  # a reference was given, and the run got to its end
    costs: tuple[CostlyLine, ...]
    listings: tuple[Listing, ...]  # the counts per line
    diagnostics: tuple[records.Diagnostic, ...]
    sampled_blocks: int | None
    lint: tuple[records.LintFinding, ...]  # read without running; what the counts tell better is left out


def arguments_line(arguments: Mapping[str, str], guessed: bool) -> str:
    given = named_values(arguments)
    return f"at {given}" + ("  (guessed; choose with --shape and --set)" if guessed else "")


def _head(report: BuildReport | CheckReport | records.LintReport) -> list[doc.Block]:
    return [
        doc.say(f"{report.file}  {report.identity[:12]}", tone=doc.Tone.STRONG),
        doc.say(arguments_line(report.arguments, report.guessed)),
    ]


# -- what the compiler made --


def build_report(file: KernelFile, report: BuildReport) -> Iterator[doc.Block]:
    """The plan, one row per launch and GPU, then what the compiler had to say."""
    head, arguments = _head(report)
    plan = "\n".join(line for line in file.text.splitlines() if line.lstrip().startswith("//!"))
    yield from (head, doc.Source(plan), arguments)
    built = [target for target in report.targets if isinstance(target, BuiltTarget)]
    launches = [(target, launch) for target in built for launch in target.launches]
    if launches:
        rows = tuple((one.gpu, one.arch, *_resource_cells(launch)) for one, launch in launches)
        yield doc.Table(_RESOURCES, rows, whole=frozenset(_RESOURCES))
    yield from doc.say_each(map(_plan_line, built))
    if launches:
        sass = {target.gpu: target.compiled.sass if target.compiled else {} for target in built}
        highlights = (
            "  ".join(f"{name} {count}" for name, count in sass[one.gpu].get(launch.kernel, {}).items()) or "-"
            for one, launch in launches
        )
        rows = tuple((one.gpu, launch.kernel, names) for (one, launch), names in zip(launches, highlights, strict=True))
        yield doc.Table(("GPU", "kernel", "SASS highlights"), rows)
    names: dict[records.Diagnostic, None] = {}  # the same complaint for every GPU is said once
    for target in report.targets:
        if isinstance(target, FailedTarget):
            what = "not built" if target.applies else "does not apply"
            yield doc.say(f"{target.gpu} ({target.arch}): {what}: {target.reason}", tone=doc.Tone.BAD)
            names |= dict.fromkeys(target.diagnostics)
        elif target.compiled:
            names |= dict.fromkeys(target.compiled.warnings)
    for diagnostic in names:
        yield from diagnostic_blocks(diagnostic)


def diagnostic_blocks(diagnostic: records.Diagnostic) -> Iterator[doc.Block]:
    """The message, the source line, and a caret under the column."""
    yield doc.say(str(diagnostic))
    caret = f"    {' ' * (diagnostic.column - 1)}^" if diagnostic.column else ""
    lines = [f"    {diagnostic.source_line}", caret] if diagnostic.source_line else []
    if text := "\n".join(filter(None, [*lines, *(f"    {note}" for note in diagnostic.notes)])):
        yield doc.Source(text)


def _resource_cells(launch: LaunchReport) -> tuple[doc.Cell, ...]:
    spilled = launch.resources.spill_bytes
    cluster = f" cluster {_dim3(launch.cluster)}" if launch.cluster else ""
    return (
        launch.kernel,
        f"{_dim3(launch.grid)} x {_dim3(launch.block)}{cluster}",
        str(launch.resources.registers),
        f"{spilled} B" if spilled else "none",
        f"{launch.smem_bytes} B",
        doc.Bar(launch.occupancy.fraction),
        f"{launch.occupancy.fraction:.0%}",
        launch.occupancy.limiter.value,
    )


def _plan_line(target: BuiltTarget) -> str:
    constants = ", ".join(f"{name} = {str(value).lower()}" for name, value in target.constants) or "none"
    buffers = ", ".join(f"{b.role} {b.name}: {b.tensor}" for b in target.buffers)
    library = f"; library {', '.join(target.library_calls)}" if target.library_calls else ""
    made = "nothing to launch, so nothing to compile"
    if target.compiled:
        done = target.compiled
        made = f"cubin {done.cubin_bytes / 1024:.1f} KiB in {done.seconds:.3f} s by {done.compiler}"
    constants += f" ({target.why_choice})" if target.why_choice else ""
    return f"{target.gpu}: constants {constants}; {buffers}{library}; {made}"


def _dim3(value: records.Dim3) -> str:
    sizes = list(value)
    while len(sizes) > 1 and sizes[-1] == 1:
        sizes.pop()
    return str(sizes[0]) if len(sizes) == 1 else f"({', '.join(map(str, sizes))})"


# -- what the emulator found --

_OUTCOMES = {CheckOutcome.CLEAN: doc.Tone.GOOD, CheckOutcome.NOT_EMULABLE: doc.Tone.FAIR}
_RACES = (records.FindingKind.RACE_SHARED, records.FindingKind.RACE_GLOBAL)
_SHOWN_COSTS = 12


def check_report(file: KernelFile, report: CheckReport) -> Iterator[doc.Block]:
    """The report; where it has listings, the file too, each line with what it did."""
    lines = file.text.splitlines()
    yield from (*_head(report), doc.say(_ran(report)), doc.say(""))
    for group in _groups(report.findings):
        yield from _finding_blocks(group, lines, report.schedules)
    for diagnostic in report.diagnostics:
        yield from diagnostic_blocks(diagnostic)
    for verdict in report.results:
        mark = doc.Mark("right", doc.Tone.GOOD) if verdict.agrees else doc.Mark("wrong", doc.Tone.BAD)
        yield doc.say(f"{verdict.name}: ", mark, f": {verdict.message}")
    races = any(finding.kind in _RACES for finding in report.findings)
    cause = "as racing threads come first or last" if races else "as atomic operations come in another order, perhaps"
    yield from doc.say_each(f"{name}: its bits differ from schedule to schedule, {cause}" for name in report.varying)
    if report.costs:
        yield doc.say("costs more than it needs (advice, not a fault):", tone=doc.Tone.STRONG)
        shown = report.costs[:_SHOWN_COSTS]
        costs = (doc.Line(one.line, one.source.strip(), (f"{one.kernel}: {one.message}",)) for one in shown)
        yield doc.Excerpt(tuple(costs))
        left = len(report.costs) - len(shown)
        yield from doc.say_each([f"  and {left} more lines; --counters lists them all" * (left > 0)], doc.Tone.FAINT)
    if report.lint:
        yield doc.say("read without running (tilewright lint says more):", tone=doc.Tone.STRONG)
        yield doc.Excerpt(
            tuple(
                _lint_line(one, lines, f"{one.kernel}: {one.rule.value} ({one.severity.value}): {one.evidence}")
                for one in report.lint
            )
        )
    yield from (doc.Source(listing_text(listing)) for listing in report.listings)
    if report.printed:
        yield from (doc.say("the kernel printed:", tone=doc.Tone.STRONG), doc.Source(report.printed))
    yield from doc.say_each((f"not checked to the end: {sentence}" for sentence in report.incomplete), doc.Tone.FAIR)
    yield doc.say(_verdict(report), tone=_OUTCOMES.get(report.outcome, doc.Tone.BAD))


def _groups(findings: Sequence[records.FindingRecord]) -> list[list[records.FindingRecord]]:
    """Findings of one kind at one place together, in the order of their first."""
    groups: dict[Hashable, list[records.FindingRecord]] = {}
    for finding in findings:
        place = finding.line if finding.line is not None else f"PTX {finding.ptx_line}"
        groups.setdefault((finding.kind, finding.kernel, place, finding.other_line), []).append(finding)
    return list(groups.values())


def _finding_blocks(
    findings: Sequence[records.FindingRecord], lines: Sequence[str], schedules: int
) -> Iterator[doc.Block]:
    """What is wrong and in which kernel; the line, underlined; then who did it, where and how often."""
    first = findings[0]
    yield doc.say(doc.Mark(first.kind.value, doc.Tone.BAD), f" in {first.kernel}")
    shown = sorted({line for line in (first.line, first.other_line) if line is not None and 0 < line <= len(lines)})
    if shown:
        yield doc.Excerpt(tuple(doc.Line(number, lines[number - 1], marked=number == first.line) for number in shown))
    if first.line is None:
        yield doc.say(f"  PTX line {first.ptx_line}: {first.ptx_text.strip()}")
    for finding in findings:
        facts = [f"{finding.thread}{_called(finding)}" if finding.thread else "", finding.where, finding.detail]
        words = ": ".join(fact for fact in facts if fact)
        yield doc.say(f"    {words}", doc.Mark(f" - {_how_often(finding, schedules)}", doc.Tone.FAINT))
    yield doc.say("")


def _called(finding: records.FindingRecord) -> str:
    """Where the function of the line was called from, if it was inlined."""
    callers = [place.line for place in finding.places if place.file == records.KERNEL_FILE_NAME]
    return f", called at line {callers[-1]}" if len(callers) > 1 else ""


def _how_often(finding: records.FindingRecord, schedules: int) -> str:
    times = "once" if finding.count == 1 else f"{finding.count:,} times"
    return times if schedules <= 1 else f"{times}, in {finding.schedules} of {schedules} schedules"


def _ran(report: CheckReport) -> str:
    if not report.schedules:
        return f"on an emulated {report.gpu}"
    blocks = "all blocks" if report.sampled_blocks is None else f"{report.sampled_blocks} blocks of each launch"
    schedules = "one schedule" if report.schedules == 1 else f"{report.schedules} schedules"
    return (
        f"on an emulated {report.gpu}: {blocks}, {schedules}, {report.thread_instructions:,} thread instructions each, "
        f"{report.seconds:.2f} s"
    )


def _maker(file: str) -> str:
    """What to give as the reference: the run that the record beside the file names."""
    try:
        return str(json.loads(provenance_path(Path(file)).read_text("utf-8"))["run"])
    except (OSError, ValueError, KeyError):
        return "FILE.py:FUNCTION"


def _verdict(report: CheckReport) -> str:
    reason = f": {report.reason}" if report.reason else ""
    findings = number_of(len(report.findings), "finding")
    if report.outcome is CheckOutcome.CLEAN:
        if report.compared:
            return "clean: no findings, and the results agree with the reference"
        return f"clean: no findings; give --reference {_maker(report.file)} to check the results too"
    if report.outcome is CheckOutcome.FINDINGS:
        return f"{findings}" + ("; the results agree with the reference all the same" if report.compared else "")
    if report.outcome is CheckOutcome.WRONG:
        return f"wrong, with {findings}{reason}"
    return f"{report.outcome.value}{reason}"


# -- what was read and not run --

_SEVERITIES = {
    records.Severity.ERROR: doc.Tone.BAD,
    records.Severity.WARNING: doc.Tone.FAIR,
    records.Severity.REMARK: doc.Tone.STRONG,
}


def lint_report(file: KernelFile, report: records.LintReport) -> Iterator[doc.Block]:
    """Every finding with its line, the evidence, why it matters and what to do; then how many there are."""
    yield from (*_head(report), doc.say(f"for {report.gpu}, built and read, not run"), doc.say(""))
    for one in report.findings:
        head = doc.Mark(f"{one.severity.value}: {one.rule.value}", _SEVERITIES[one.severity])
        yield doc.say(head, f" in {one.kernel}")
        notes = (one.evidence, f"why: {one.why}", f"do:  {one.remedy}")
        yield doc.Excerpt((_lint_line(one, file.text.splitlines(), *notes),))
        yield doc.say("")
    yield from doc.say_each((f"not looked at: {sentence}" for sentence in report.unread), doc.Tone.FAIR)
    unsure = report.findings or report.guessed
    tone = doc.Tone.BAD if report.has_errors else doc.Tone.STRONG if unsure else doc.Tone.GOOD
    yield doc.say(_lint_summary(report), tone=tone)


def failure_report(failure: records.BuildFailure) -> Iterator[doc.Block]:
    for diagnostic in failure.diagnostics:
        yield from diagnostic_blocks(diagnostic)
    yield doc.say(f"not built: {failure.reason.value}", tone=doc.Tone.BAD)


def _lint_line(one: records.LintFinding, lines: Sequence[str], *notes: str) -> doc.Line:
    if one.line is None or not 0 < one.line <= len(lines):
        return doc.Line(None, "(the compiler names no line)", notes)
    return doc.Line(one.line, lines[one.line - 1].strip(), notes)


def _lint_summary(report: records.LintReport) -> str:
    """How many findings there are, at which sizes was looked, and what was not looked at."""
    counts = [(severity, sum(one.severity is severity for one in report.findings)) for severity in records.Severity]
    found = ", ".join(f"{count} {severity.value}{'s' if count > 1 else ''}" for severity, count in counts if count)
    sizes = named_values(report.arguments)
    if not found:
        found = f"no findings at {sizes} (chosen here)" if report.guessed else f"clean at {sizes}"
        found += ": the first and last block of each launch were read; tilewright check runs all of them"
    elif report.guessed:
        found += f" at {sizes} (chosen here)"
    return found + ("; other sizes were not looked at: give --shape and --set" if report.guessed else "")
