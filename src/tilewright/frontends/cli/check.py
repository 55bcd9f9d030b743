"""`tilewright check`: build a kernel file, emulate it with every checker on, and compare it with a reference.

The kernel runs in one child process and the reference in another; this module conducts them and makes the report.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tilewright import records
from tilewright.devices.child_device import EmulatedDevice
from tilewright.devices.contents import ContentError, check_content
from tilewright.devices.emulation.listing import CostlyLine, Listing, costly_lines, listing_text, make_listing
from tilewright.frontends.cli.build import arguments_line, describe_arguments, show_diagnostic, show_heading
from tilewright.frontends.cli.lint import show_lint_section
from tilewright.kernel_file import ArgumentValue, DoesNotApply, KernelFile
from tilewright.lint import lint_plan
from tilewright.records import KERNEL_FILE_NAME, Content, DType, FindingKind, FindingRecord, Integers, TensorSpec
from tilewright.reference import Reference, ReferenceProblem
from tilewright.store import provenance_path
from tilewright.tasks.errors import BadArgument
from tilewright.toolchain import BuiltPlan, build_plan
from tilewright.verify.judging_records import CallJudgement, CallRequest, NumberArgument, ResultVerdict

Say = Callable[[str], None]
JUDGE = "tilewright.verify.judging:judge_call"
_INDEX_TYPES = (DType.I16, DType.I32, DType.I64)
_COUNTED = (records.LintRule.UNCOALESCED, records.LintRule.BANK_CONFLICT)  # by the emulator, line by line
_NOTHING_RAN = records.EmulatedRun((), (), 0, 0, (), "", 0.0)


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


@dataclass(frozen=True)
class CheckOptions:
    gpu: records.GpuProfile
    emulation: records.Emulation
    reference: tuple[Path, str] | None = None  # only where all blocks run
    contents: Mapping[str, Content] = field(default_factory=dict)  # for tensors that want other than the usual
    tolerance: float | None = None
    seconds: float = 120.0
    keep_counts: bool = False  # in the report


def check_file(
    file: KernelFile, arguments: Mapping[str, ArgumentValue], guessed: bool, options: CheckOptions, say: Say
) -> CheckReport:
    """The whole check. Raises `BadArgument`, `ToolchainError`, `DeviceError`, `KernelFileError`."""
    check = _Check(file, arguments, guessed, options, say)
    if options.reference is None:
        return check.run(None)
    path, function = options.reference
    # Started first, because importing torch takes longer than most checks.
    with Reference(_text_of(path), function, folder=path.parent) as reference:
        return check.run(reference)


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadArgument(f"{path} cannot be read: {error}; write --reference FILE.py:FUNCTION") from None


@dataclass(frozen=True)
class _Check:
    file: KernelFile
    arguments: Mapping[str, ArgumentValue]
    guessed: bool
    options: CheckOptions
    say: Say
    lint: tuple[records.LintFinding, ...] = ()

    def run(self, reference: Reference | None) -> CheckReport:
        gpu = self.options.gpu
        self.say(f"building for {gpu.arch}")
        try:
            built = build_plan(self.file, self.arguments, gpu)
        except DoesNotApply as refusal:
            return self._report(CheckOutcome.DOES_NOT_APPLY, str(refusal))
        if isinstance(built, records.BuildFailure):
            return self._report(CheckOutcome.NOT_BUILT, built.reason.value, diagnostics=built.diagnostics)
        read, _ = lint_plan(built, self.arguments, other_sizes=False)
        ran = replace(self, lint=tuple(finding for finding in read if finding.rule not in _COUNTED))
        return ran._emulated(built, reference)

    def _emulated(self, built: BuiltPlan, reference: Reference | None) -> CheckReport:
        gpu = self.options.gpu
        job = self._job(built)
        schedules = self.options.emulation.schedules
        self.say(f"emulating {gpu.name} under {schedules} schedule{'s' if schedules != 1 else ''}")
        with EmulatedDevice(gpu) as device:
            execution = device.execute(job)
        if isinstance(execution, records.Faulted):
            return self._faulted(execution)
        verdicts: tuple[ResultVerdict, ...] = ()
        if reference is not None:
            self.say("comparing with the reference")
            verdicts = self._compare(reference, self._request(job, execution))
        return self._judged(execution, verdicts, reference is not None)

    def _compare(self, reference: Reference, request: CallRequest) -> tuple[ResultVerdict, ...]:
        assert self.options.reference is not None
        path, _ = self.options.reference
        try:
            answer: CallJudgement = reference.call(JUDGE, request, CallJudgement, self.options.seconds)
        except ReferenceProblem as problem:
            raise BadArgument(f"{path}: {problem}") from None
        return answer.results

    # -- what is run --

    def _job(self, built: BuiltPlan) -> records.Job:
        op = self.file.plan.op
        in_place = tuple(p.name for p in op.parameters if p.in_place and self.arguments[p.name] is not None)
        return built.job(
            "check",
            self._inputs(),
            returns=(*op.results, *in_place),
            limits=records.Limits(seconds=self.options.seconds),
            emulation=self.options.emulation,
        )

    def _inputs(self) -> tuple[records.InputTensor, ...]:
        specs = {name: value for name, value in self.arguments.items() if isinstance(value, TensorSpec)}
        smallest = min((size for spec in specs.values() for size in spec.shape if size), default=1)
        contents = self.options.contents
        for name, content in contents.items():
            try:
                check_content(specs[name], content)
            except ContentError as error:
                raise BadArgument(f"--fill {name}: {error}") from None
        return tuple(
            records.InputTensor(name, spec, contents.get(name) or usual_content(spec.dtype, seed, smallest))
            for seed, (name, spec) in enumerate(specs.items())
        )

    def _request(self, job: records.Job, execution: records.Completed) -> CallRequest:
        op = self.file.plan.op
        numbers = tuple(
            NumberArgument(p.name, value if isinstance(value, tuple) else (value,), isinstance(value, tuple))
            for p in op.parameters
            if p.scalar is not None and not isinstance(value := self.arguments[p.name], TensorSpec)
        )
        return CallRequest(
            names=tuple(p.name for p in op.parameters),
            inputs=job.inputs,
            numbers=numbers,
            results=op.results,
            in_place=job.returns[len(op.results) :],
            outputs=execution.outputs,
            tolerance=self.options.tolerance,
        )

    # -- what became of it --

    def _faulted(self, fault: records.Faulted) -> CheckReport:
        if fault.kind is records.FaultKind.UNSUITABLE:
            return self._report(CheckOutcome.NOT_EMULABLE, fault.message)
        return self._report(CheckOutcome.FAULTED, f"{fault.kind.value}: {fault.message}", fault.emulated)

    def _judged(self, execution: records.Completed, verdicts: tuple[ResultVerdict, ...], compared: bool) -> CheckReport:
        wrong = [verdict.name for verdict in verdicts if not verdict.agrees]
        found = CheckOutcome.FINDINGS if execution.findings else CheckOutcome.CLEAN
        reason = f"{', '.join(wrong)} is not what the reference computes" if wrong else ""
        outcome = CheckOutcome.WRONG if wrong else found
        return self._report(outcome, reason, execution.emulated, results=verdicts, compared=compared)

    def _report(
        self,
        outcome: CheckOutcome,
        reason: str,
        emulated: records.EmulatedRun | None = None,
        *,
        results: tuple[ResultVerdict, ...] = (),
        compared: bool = False,
        diagnostics: tuple[records.Diagnostic, ...] = (),
    ) -> CheckReport:
        seen = emulated or _NOTHING_RAN
        listings = tuple(make_listing(one, self.file.name, self.file.text) for one in seen.counts)
        kept = seen if self.options.keep_counts else replace(seen, counts=())
        return CheckReport(
            **vars(kept),
            file=self.file.name,
            identity=self.file.identity,
            op=self.file.plan.op.name,
            gpu=self.options.gpu.name,
            arguments=describe_arguments(self.arguments),
            guessed=self.guessed,
            outcome=outcome,
            reason=reason,
            results=results,
            compared=compared,
            costs=tuple(cost for listing in listings for cost in costly_lines(listing)),
            listings=listings if self.options.keep_counts else (),
            diagnostics=diagnostics,
            sampled_blocks=self.options.emulation.sampled_blocks,
            lint=self.lint,
        )


def usual_content(dtype: DType, seed: int, smallest: int) -> Content:
    """What a tensor holds when nobody says: normal numbers; every value of a byte; indices that fit every dimension."""
    if dtype.is_float:
        return records.Normal(seed)
    if dtype in _INDEX_TYPES:
        return Integers(seed, 0, smallest)
    lowest, highest = dtype.whole_numbers
    return Integers(seed, lowest, highest + 1)


# -- a `CheckReport` as words for a terminal: --

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
