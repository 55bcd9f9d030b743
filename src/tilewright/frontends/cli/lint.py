"""`tilewright lint`: a kernel file built and read, not run; the findings as a record, and the record as words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.text import Text

from tilewright.frontends.cli.build import arguments_line, describe_arguments, show_diagnostic, show_heading
from tilewright.kernel_file import ArgumentValue, DoesNotApply, KernelFile
from tilewright.lint import lint_plan
from tilewright.records import BuildFailure, GpuProfile, LintFinding, LintReport, Severity
from tilewright.tasks.errors import BadArgument
from tilewright.toolchain import build_plan

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.REMARK: "bold"}


def report_lint(
    file: KernelFile, arguments: Mapping[str, ArgumentValue], guessed: bool, gpu: GpuProfile
) -> LintReport | BuildFailure:
    """The file at these arguments. Raises `BadArgument`, `KernelFileError`, `ToolchainError`."""
    try:
        built = build_plan(file, arguments, gpu)
    except DoesNotApply as refusal:
        raise BadArgument(f"{file.name}:{refusal}") from None
    if isinstance(built, BuildFailure):
        return built
    findings, unread = lint_plan(built, arguments)
    texts = describe_arguments(arguments)
    return LintReport(file.name, file.identity, file.plan.op.name, gpu.name, texts, guessed, findings, unread)


def show_lint(console: Console, file: KernelFile, report: LintReport) -> None:
    """Every finding with its line, the evidence, why it matters and what to do; then how many there are."""
    show_heading(console, report.file, report.identity)
    console.print(arguments_line(report.arguments, report.guessed))
    console.print(Text(f"for {report.gpu}, built and read, not run\n"))
    for finding in report.findings:
        _show(console, finding, file.text.splitlines())
    for sentence in report.unread:
        console.print(Text(f"not looked at: {sentence}", style="yellow"))
    style = "bold red" if report.has_errors else "bold green" if not report.findings else "bold"
    console.print(Text(_summary(report.findings), style=style))


def show_lint_section(console: Console, findings: Sequence[LintFinding], lines: Sequence[str]) -> None:
    """In the report of another command: a heading and two lines for each finding."""
    if not findings:
        return
    console.print(Text("read without running (tilewright lint says more):", style="bold"))
    for finding in findings:
        console.print(Text(f"  {_place(finding, lines)}"))
        told = f"{finding.kernel}: {finding.rule.value} ({finding.severity.value}): {finding.evidence}"
        console.print(Text(f"         {told}", style="dim"))
    console.print()


def show_failure(console: Console, failure: BuildFailure) -> None:
    for diagnostic in failure.diagnostics:
        show_diagnostic(console, diagnostic)
    console.print(Text(f"not built: {failure.reason.value}", style="bold red"))


def _show(console: Console, finding: LintFinding, lines: Sequence[str]) -> None:
    style = _STYLES[finding.severity]
    console.print(Text.assemble((f"{finding.severity.value}: {finding.rule.value}", style), f" in {finding.kernel}"))
    console.print(Text(f"  {_place(finding, lines)}"))
    console.print(Text(f"    {finding.evidence}"))
    console.print(Text(f"    why: {finding.why}", style="dim"))
    console.print(Text(f"    do:  {finding.remedy}\n"))


def _place(finding: LintFinding, lines: Sequence[str]) -> str:
    if finding.line is None or not 0 < finding.line <= len(lines):
        return "   - | (the compiler names no line)"
    return f"{finding.line:>4} | {lines[finding.line - 1].strip()}"


def _summary(findings: Sequence[LintFinding]) -> str:
    if not findings:
        return "clean: no findings"
    counts = [(severity, sum(one.severity is severity for one in findings)) for severity in Severity]
    return ", ".join(f"{count} {severity.value}{'s' if count > 1 else ''}" for severity, count in counts if count)
