"""`tilewright check`: build a kernel file, emulate it with every checker on, and compare it with a reference.

The kernel runs in one child process and the reference in another; this module conducts them and makes the report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from tilewright import records
from tilewright.devices.child_device import EmulatedDevice
from tilewright.devices.contents import ContentError, check_content
from tilewright.devices.emulation.listing import costly_lines, listing_of
from tilewright.frontends.report.checks import CheckOutcome, CheckReport, describe_arguments
from tilewright.kernel_file import ArgumentValue, DoesNotApply, KernelFile
from tilewright.lint import lint_plan
from tilewright.records import Content, DType, Integers, TensorSpec
from tilewright.reference import Reference, ReferenceProblem
from tilewright.tasks.errors import BadArgument
from tilewright.toolchain import BuiltPlan, build_plan
from tilewright.verify.judging_records import CallJudgement, CallRequest, NumberArgument, ResultVerdict

Say = Callable[[str], None]
JUDGE = "tilewright.verify.judging:judge_call"
_INDEX_TYPES = (DType.I16, DType.I32, DType.I64)
_COUNTED = (records.LintRule.UNCOALESCED, records.LintRule.BANK_CONFLICT)  # by the emulator, line by line
_NOTHING_RAN = records.EmulatedRun((), (), 0, 0, (), "", 0.0)


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
        listings = tuple(listing_of(one, self.file.name, self.file.text) for one in seen.counts)
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
