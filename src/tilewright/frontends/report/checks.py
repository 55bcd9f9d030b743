"""What `build` and `check` say of a kernel file: their records, which JSON holds, and those at a terminal."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tilewright import records
from tilewright.devices.emulation.listing import CostlyLine, Listing, listing_text
from tilewright.frontends.cli.terminal import plain_table
from tilewright.kernel_file import ArgumentValue, KernelFile, print_plan
from tilewright.records import (
    KERNEL_FILE_NAME,
    BuildFailure,
    ConstantValue,
    Diagnostic,
    Dim3,
    FindingKind,
    FindingRecord,
    LintFinding,
    LintReport,
    Severity,
    TensorSpec,
)
from tilewright.store import provenance_path
from tilewright.toolchain import LaunchReport
from tilewright.verify.judging_records import ResultVerdict

BAR_CELLS = 16
_RESOURCES = ["GPU", "target", "kernel", "grid x block", "registers", "spills", "shared", "occupancy", "limited by"]


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
    warnings: tuple[Diagnostic, ...]
    sass: dict[str, dict[str, int]]  # by kernel: telling instructions and how often they stand in the code


@dataclass(frozen=True)
class BuiltTarget:
    """A plan for one GPU. `compiled` is None where it launches nothing: a file of library steps, an empty tensor."""

    gpu: str
    arch: str
    constants: tuple[tuple[str, ConstantValue], ...]
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
    diagnostics: tuple[Diagnostic, ...]


@dataclass(frozen=True)
class BuildReport:
    file: str
    identity: str
    op: str
    arguments: dict[str, str]
    guessed: bool  # the shapes were guessed, not given
    targets: tuple[BuiltTarget | FailedTarget, ...]

    @property
    def succeeded(self) -> bool:
        return all(isinstance(target, BuiltTarget) for target in self.targets)


def describe_arguments(arguments: Mapping[str, ArgumentValue]) -> dict[str, str]:
    return {
        name: "absent" if value is None else str(value) if isinstance(value, TensorSpec) else str(value).lower()
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
class CheckReport(records.EmulatedRun):
    """One kernel file at one set of arguments on one emulated GPU; counts only where they are asked for."""

    file: str
    identity: str
    op: str
    gpu: str
    arguments: dict[str, str]
    guessed: bool  # the shapes were guessed, not given
    outcome: CheckOutcome
    reason: str  # why it faulted, was not built or does not apply
    results: tuple[ResultVerdict, ...]  # against the reference
    compared: bool  # a reference was given, and the run got to its end
    costs: tuple[CostlyLine, ...]
    listings: tuple[Listing, ...]  # the counts per line
    diagnostics: tuple[records.Diagnostic, ...]
    sampled_blocks: int | None
    lint: tuple[records.LintFinding, ...]  # read without running; what the counts tell better is left out


def show_build(console: Console, file: KernelFile, report: BuildReport) -> None:
    """The plan, one row per launch and GPU, then what the compiler had to say."""
    show_heading(console, report.file, report.identity)
    console.print(Text(print_plan(file.plan).rstrip(), style="cyan"))
    console.print(arguments_line(report.arguments, report.guessed), "")
    built = [target for target in report.targets if isinstance(target, BuiltTarget)]
    if any(target.launches for target in built):
        console.print(_resource_table(built))
    for each in built:
        console.print(Text(_plan_line(each)))
    if any(target.launches for target in built):
        console.print("")
        console.print(_sass_table(built))
    shown: set[Diagnostic] = set()
    for target in report.targets:
        if isinstance(target, FailedTarget):
            what = "not built" if target.applies else "does not apply"
            console.print(Text(f"{target.gpu} ({target.arch}): {what}: {target.reason}", style="red"))
            diagnostics = target.diagnostics
        else:
            diagnostics = target.compiled.warnings if target.compiled else ()
        for diagnostic in diagnostics:
            if diagnostic not in shown:  # the same complaint for every GPU is said once
                show_diagnostic(console, diagnostic)
            shown.add(diagnostic)


def show_heading(console: Console, file: str, identity: str) -> None:
    console.print(Text(f"{file}  {identity[:12]}", style="bold"))


def arguments_line(arguments: Mapping[str, str], guessed: bool) -> Text:
    given = ", ".join(f"{name} = {text}" for name, text in arguments.items())
    return Text(f"at {given}" + ("  (guessed; choose with --shape and --set)" if guessed else ""))


def show_diagnostic(console: Console, diagnostic: Diagnostic) -> None:
    """The message, the source line, and a caret under the column."""
    console.print(Text(str(diagnostic)))
    if diagnostic.source_line:
        console.print(Text(f"    {diagnostic.source_line}"))
        if diagnostic.column:
            console.print(Text("    " + " " * (diagnostic.column - 1) + "^", style="red"))
    for note in diagnostic.notes:
        console.print(Text(f"    {note}", style="dim"))


def _resource_table(built: list[BuiltTarget]) -> Table:
    table = plain_table(_RESOURCES, no_wrap=True)
    for target in built:
        for launch in target.launches:
            table.add_row(target.gpu, target.arch, *_resource_cells(launch))
    return table


def _resource_cells(launch: LaunchReport) -> tuple[str, ...]:
    spilled = launch.resources.spill_bytes
    filled = round(launch.occupancy.fraction * BAR_CELLS)
    cluster = f" cluster {_dim3(launch.cluster)}" if launch.cluster else ""
    return (
        launch.kernel,
        f"{_dim3(launch.grid)} x {_dim3(launch.block)}{cluster}",
        str(launch.resources.registers),
        f"{spilled} B" if spilled else "none",
        f"{launch.smem_bytes} B",
        f"{'█' * filled}{'░' * (BAR_CELLS - filled)} {launch.occupancy.fraction:4.0%}",
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


def _sass_table(built: list[BuiltTarget]) -> Table:
    table = plain_table(("GPU", "kernel"), no_wrap=True)
    table.add_column("SASS highlights")
    for target in built:
        sass = target.compiled.sass if target.compiled else {}
        for launch in target.launches:
            counts = "  ".join(f"{name} {count}" for name, count in sass.get(launch.kernel, {}).items()) or "-"
            table.add_row(target.gpu, launch.kernel, counts)
    return table


def _dim3(value: Dim3) -> str:
    sizes = list(value)
    while len(sizes) > 1 and sizes[-1] == 1:
        sizes.pop()
    return str(sizes[0]) if len(sizes) == 1 else f"({', '.join(map(str, sizes))})"


_STYLES = {CheckOutcome.CLEAN: "bold green", CheckOutcome.NOT_EMULABLE: "bold yellow"}
_RACES = (FindingKind.RACE_SHARED, FindingKind.RACE_GLOBAL)
_SHOWN_COSTS = 12


def show_check(console: Console, file: KernelFile, report: CheckReport) -> None:
    """The report; where it has listings, the file too, each line with what it did."""
    lines = file.text.splitlines()
    show_heading(console, report.file, report.identity)
    console.print(arguments_line(report.arguments, report.guessed))
    console.print(Text(_ran(report)))
    console.print()
    for group in _groups(report.findings):
        show_findings_at(console, group, lines, report.schedules)
    for diagnostic in report.diagnostics:
        show_diagnostic(console, diagnostic)
    _show_results(console, report)
    _show_costs(console, report)
    show_lint_section(console, report.lint, lines)
    for listing in report.listings:
        console.print(Text(listing_text(listing)))
    if report.printed:
        console.print(Text("the kernel printed:", style="bold"))
        console.print(Text(f"{report.printed.rstrip()}\n"))
    for sentence in report.incomplete:
        console.print(Text(f"not checked to the end: {sentence}", style="yellow"))
    console.print(Text(_verdict(report), style=_STYLES.get(report.outcome, "bold red")))


def _groups(findings: Sequence[FindingRecord]) -> list[list[FindingRecord]]:
    """Findings of one kind at one place together, in the order of their first."""
    groups: dict[Hashable, list[FindingRecord]] = {}
    for finding in findings:
        place = finding.line if finding.line is not None else f"PTX {finding.ptx_line}"
        groups.setdefault((finding.kind, finding.kernel, place, finding.other_line), []).append(finding)
    return list(groups.values())


def show_findings_at(console: Console, findings: Sequence[FindingRecord], lines: Sequence[str], schedules: int) -> None:
    """What is wrong and in which kernel; the line, underlined; then who did it, where and how often."""
    first = findings[0]
    console.print(Text.assemble((first.kind.value, "bold red"), f" in {first.kernel}"))
    shown = {line for line in (first.line, first.other_line) if line is not None and 0 < line <= len(lines)}
    width = len(str(max(shown, default=0)))
    for number in sorted(shown):
        text = lines[number - 1].expandtabs(4)
        console.print(Text(f"  {number:>{width}} | {text}"))
        if number == first.line:
            indent = len(text) - len(text.lstrip())
            mark = " " * indent + "^" * max(len(text.strip()), 1)
            console.print(Text(f"  {' ' * width} | {mark}", style="red"))
    if first.line is None:
        console.print(Text(f"  PTX line {first.ptx_line}: {first.ptx_text.strip()}"))
    for finding in findings:
        facts = [f"{finding.thread}{_called(finding)}" if finding.thread else "", finding.where, finding.detail]
        told = ": ".join(fact for fact in facts if fact)
        console.print(Text.assemble(f"    {told}", (f" - {_how_often(finding, schedules)}", "dim")))
    console.print()


def _called(finding: FindingRecord) -> str:
    """Where the function of the line was called from, if it was inlined."""
    callers = [place.line for place in finding.places if place.file == KERNEL_FILE_NAME]
    return f", called at line {callers[-1]}" if len(callers) > 1 else ""


def _how_often(finding: FindingRecord, schedules: int) -> str:
    times = "once" if finding.count == 1 else f"{finding.count:,} times"
    if schedules <= 1:
        return times
    return f"{times}, in {finding.schedules} of {schedules} schedules"


def _ran(report: CheckReport) -> str:
    if not report.schedules:
        return f"on an emulated {report.gpu}"
    blocks = "all blocks" if report.sampled_blocks is None else f"{report.sampled_blocks} blocks of each launch"
    schedules = "one schedule" if report.schedules == 1 else f"{report.schedules} schedules"
    return (
        f"on an emulated {report.gpu}: {blocks}, {schedules}, {report.thread_instructions:,} thread instructions each, "
        f"{report.seconds:.2f} s"
    )


def _show_results(console: Console, report: CheckReport) -> None:
    for verdict in report.results:
        mark = ("right", "green") if verdict.agrees else ("wrong", "bold red")
        console.print(Text.assemble(f"{verdict.name}: ", mark, f": {verdict.message}"))
    races = any(finding.kind in _RACES for finding in report.findings)
    cause = "as racing threads come first or last" if races else "as atomic operations come in another order, perhaps"
    for name in report.varying:
        console.print(Text(f"{name}: its bits differ from schedule to schedule, {cause}"))
    if report.results or report.varying:
        console.print()


def _show_costs(console: Console, report: CheckReport) -> None:
    if not report.costs:
        return
    console.print(Text("costs more than it needs (advice, not a fault):", style="bold"))
    for cost in report.costs[:_SHOWN_COSTS]:
        console.print(Text(f"  {cost.line:>4} | {cost.source.strip()}"))
        console.print(Text(f"         {cost.kernel}: {cost.message}", style="dim"))
    left = len(report.costs) - _SHOWN_COSTS
    if left > 0:
        console.print(Text(f"  and {left} more lines; --counters lists them all", style="dim"))
    console.print()


def _maker(file: str) -> str:
    """What to give as the reference: the run that the record beside the file names."""
    try:
        return str(json.loads(provenance_path(Path(file)).read_text("utf-8"))["run"])
    except (OSError, ValueError, KeyError):
        return "FILE.py:FUNCTION"


def _verdict(report: CheckReport) -> str:
    reason = f": {report.reason}" if report.reason else ""
    found = len(report.findings)
    findings = f"{found} finding{'s' if found != 1 else ''}"
    if report.outcome is CheckOutcome.CLEAN:
        if report.compared:
            return "clean: no findings, and the results agree with the reference"
        return f"clean: no findings; give --reference {_maker(report.file)} to check the results too"
    if report.outcome is CheckOutcome.FINDINGS:
        return f"{findings}" + ("; the results agree with the reference all the same" if report.compared else "")
    if report.outcome is CheckOutcome.WRONG:
        return f"wrong, with {findings}{reason}"
    return f"{report.outcome.value}{reason}"


_LINT_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.REMARK: "bold"}


def show_lint(console: Console, file: KernelFile, report: LintReport) -> None:
    """Every finding with its line, the evidence, why it matters and what to do; then how many there are."""
    show_heading(console, report.file, report.identity)
    console.print(arguments_line(report.arguments, report.guessed))
    console.print(Text(f"for {report.gpu}, built and read, not run\n"))
    for finding in report.findings:
        _show_lint_finding(console, finding, file.text.splitlines())
    for sentence in report.unread:
        console.print(Text(f"not looked at: {sentence}", style="yellow"))
    style = "bold red" if report.has_errors else "bold green" if not (report.findings or report.guessed) else "bold"
    console.print(Text(_lint_summary(report), style=style), soft_wrap=True)


def show_lint_section(console: Console, findings: Sequence[LintFinding], lines: Sequence[str]) -> None:
    """In the report of another command: a heading and two lines for each finding."""
    if not findings:
        return
    console.print(Text("read without running (tilewright lint says more):", style="bold"))
    for finding in findings:
        console.print(Text(f"  {_lint_place(finding, lines)}"))
        told = f"{finding.kernel}: {finding.rule.value} ({finding.severity.value}): {finding.evidence}"
        console.print(Text(f"         {told}", style="dim"))
    console.print()


def show_failure(console: Console, failure: BuildFailure) -> None:
    for diagnostic in failure.diagnostics:
        show_diagnostic(console, diagnostic)
    console.print(Text(f"not built: {failure.reason.value}", style="bold red"))


def _show_lint_finding(console: Console, finding: LintFinding, lines: Sequence[str]) -> None:
    style = _LINT_STYLES[finding.severity]
    console.print(Text.assemble((f"{finding.severity.value}: {finding.rule.value}", style), f" in {finding.kernel}"))
    console.print(Text(f"  {_lint_place(finding, lines)}"))
    console.print(Text(f"    {finding.evidence}"))
    console.print(Text(f"    why: {finding.why}", style="dim"))
    console.print(Text(f"    do:  {finding.remedy}\n"))


def _lint_place(finding: LintFinding, lines: Sequence[str]) -> str:
    if finding.line is None or not 0 < finding.line <= len(lines):
        return "   - | (the compiler names no line)"
    return f"{finding.line:>4} | {lines[finding.line - 1].strip()}"


def _lint_summary(report: LintReport) -> str:
    """How many findings there are, at which sizes was looked, and what was not looked at."""
    counts = [(severity, sum(one.severity is severity for one in report.findings)) for severity in Severity]
    found = ", ".join(f"{count} {severity.value}{'s' if count > 1 else ''}" for severity, count in counts if count)
    sizes = ", ".join(f"{name} = {text}" for name, text in report.arguments.items())
    chosen = f"{sizes} (chosen here)" if report.guessed else sizes
    if not found:
        found = f"no findings at {chosen}" if report.guessed else f"clean at {sizes}"
        found += ": the first and last block of each launch were read; tilewright check runs all of them"
    elif report.guessed:
        found += f" at {chosen}"
    return found + ("; other sizes were not looked at: give --shape and --set" if report.guessed else "")
