"""A `CheckReport` as words for a terminal: every finding with its source line, then results, costs and counters."""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tilewright.devices.emulation.listing import listing_text
from tilewright.frontends.build_report import arguments_line, show_diagnostic, show_heading
from tilewright.frontends.check import CheckOutcome, CheckReport
from tilewright.frontends.lint_report import show_lint_section
from tilewright.kernel_file import KernelFile
from tilewright.records import KERNEL_FILE_NAME, FindingKind, FindingRecord
from tilewright.store import provenance_path

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
