"""`tilewright check`: build a kernel file, emulate it with every checker on, and compare it with a reference.

The kernel runs in one child process and the reference in another; this module conducts them and makes the report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tilewright.devices.emulated_device import EmulatedDevice
from tilewright.devices.emulation.listing import Listing, costly_lines, listing_of
from tilewright.frontends.build_report import describe_argument
from tilewright.frontends.check_records import (
    CheckReport,
    CostReport,
    NumberArgument,
    Outcome,
    ReferenceRequest,
    ReferenceVerdict,
    ResultVerdict,
)
from tilewright.frontends.kernel_arguments import BadArgument
from tilewright.kernel_file import ArgumentValue, DoesNotApply, Evaluation, KernelFile, bind, evaluate, settle
from tilewright.records import (
    BoundPlan,
    Build,
    BuildFailure,
    Completed,
    Content,
    Diagnostic,
    DType,
    EmulatedRun,
    Emulation,
    Faulted,
    FaultKind,
    GpuProfile,
    InputTensor,
    Integers,
    Job,
    LibraryCall,
    Limits,
    Normal,
    TensorSpec,
)
from tilewright.reference import Reference, ReferenceProblem
from tilewright.toolchain import build

Say = Callable[[str], None]
JUDGE = "tilewright.frontends.check_reference:judge"
_INDEX_TYPES = (DType.I16, DType.I32, DType.I64)


@dataclass(frozen=True)
class CheckOptions:
    gpu: GpuProfile
    emulation: Emulation
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


class _Check:
    def __init__(
        self,
        file: KernelFile,
        arguments: Mapping[str, ArgumentValue],
        guessed: bool,
        options: CheckOptions,
        say: Say,
    ) -> None:
        self._file = file
        self._arguments = arguments
        self._guessed = guessed
        self._options = options
        self._say = say

    def run(self, reference: Reference | None) -> CheckReport:
        gpu = self._options.gpu
        self._say(f"building for {gpu.arch}")
        try:
            evaluation = evaluate(self._file, self._arguments, gpu)
        except DoesNotApply as refusal:
            return self._report(Outcome.DOES_NOT_APPLY, str(refusal))
        request = evaluation.build_request(gpu.arch)
        built = None if request is None else build(request)
        if isinstance(built, BuildFailure):
            return self._report(Outcome.NOT_BUILT, built.reason.value, diagnostics=built.diagnostics)
        job = self._job(evaluation, built)
        schedules = self._options.emulation.schedules
        self._say(f"emulating {gpu.name} under {schedules} schedule{'s' if schedules != 1 else ''}")
        with EmulatedDevice(gpu) as device:
            execution = device.execute(job)
        if isinstance(execution, Faulted):
            return self._faulted(execution)
        verdicts: tuple[ResultVerdict, ...] = ()
        if reference is not None:
            self._say("comparing with the reference")
            verdicts = self._compare(reference, self._request(job, execution))
        return self._judged(execution, verdicts, reference is not None)

    def _compare(self, reference: Reference, request: ReferenceRequest) -> tuple[ResultVerdict, ...]:
        assert self._options.reference is not None
        path, _ = self._options.reference
        try:
            answer: ReferenceVerdict = reference.call(JUDGE, request, ReferenceVerdict, self._options.seconds)
        except ReferenceProblem as problem:
            raise BadArgument(f"{path}: {problem}") from None
        return answer.results

    # -- what is run --

    def _job(self, evaluation: Evaluation, built: Build | None) -> Job:
        if built is None:
            library = tuple(step for step in evaluation.steps if isinstance(step, LibraryCall))
            plan = BoundPlan(evaluation.buffers, evaluation.maps, library)
        else:
            late = evaluation.late_values(self._arguments)
            plan = settle(bind(evaluation, built, evaluation.gpu), late)
        op = self._file.plan.op
        in_place = tuple(p.name for p in op.parameters if p.in_place and self._arguments[p.name] is not None)
        return Job(
            id="check",
            arch=evaluation.gpu.arch,
            cubin=b"",
            plan=plan,
            inputs=self._inputs(),
            returns=(*op.results, *in_place),
            limits=Limits(seconds=self._options.seconds),
            ptx=built.ptx if built else None,
            emulation=self._options.emulation,
        )

    def _inputs(self) -> tuple[InputTensor, ...]:
        specs = {name: value for name, value in self._arguments.items() if isinstance(value, TensorSpec)}
        smallest = min((size for spec in specs.values() for size in spec.shape if size), default=1)
        return tuple(
            InputTensor(name, spec, self._options.contents.get(name) or usual_content(spec.dtype, seed, smallest))
            for seed, (name, spec) in enumerate(specs.items())
        )

    def _request(self, job: Job, execution: Completed) -> ReferenceRequest:
        op = self._file.plan.op
        numbers = tuple(
            NumberArgument(p.name, value if isinstance(value, tuple) else (value,), isinstance(value, tuple))
            for p in op.parameters
            if p.scalar is not None and not isinstance(value := self._arguments[p.name], TensorSpec)
        )
        return ReferenceRequest(
            names=tuple(p.name for p in op.parameters),
            inputs=job.inputs,
            numbers=numbers,
            results=op.results,
            in_place=job.returns[len(op.results) :],
            outputs=execution.outputs,
            tolerance=self._options.tolerance,
        )

    # -- what became of it --

    def _faulted(self, fault: Faulted) -> CheckReport:
        if fault.kind is FaultKind.UNSUITABLE:
            return self._report(Outcome.NOT_EMULABLE, fault.message)
        return self._report(Outcome.FAULTED, f"{fault.kind.value}: {fault.message}", fault.emulated)

    def _judged(self, execution: Completed, verdicts: tuple[ResultVerdict, ...], compared: bool) -> CheckReport:
        wrong = [verdict.name for verdict in verdicts if not verdict.agrees]
        outcome = Outcome.WRONG if wrong else Outcome.FINDINGS if execution.findings else Outcome.CLEAN
        reason = f"{', '.join(wrong)} is not what the reference computes" if wrong else ""
        return self._report(outcome, reason, execution.emulated, results=verdicts, compared=compared)

    def _report(
        self,
        outcome: Outcome,
        reason: str,
        emulated: EmulatedRun | None = None,
        *,
        results: tuple[ResultVerdict, ...] = (),
        compared: bool = False,
        diagnostics: tuple[Diagnostic, ...] = (),
    ) -> CheckReport:
        counts = emulated.counts if emulated else ()
        listings = tuple(listing_of(one, self._file.name, self._file.text) for one in counts)
        return CheckReport(
            file=self._file.name,
            identity=self._file.identity,
            op=self._file.plan.op.name,
            gpu=self._options.gpu.name,
            arguments={name: describe_argument(value) for name, value in self._arguments.items()},
            guessed=self._guessed,
            outcome=outcome,
            reason=reason,
            findings=emulated.findings if emulated else (),
            results=results,
            compared=compared,
            costs=tuple(cost for listing in listings for cost in self._costs(listing)),
            varying=emulated.varying if emulated else (),
            incomplete=emulated.incomplete if emulated else (),
            counts=counts if self._options.keep_counts else (),
            listings=listings if self._options.keep_counts else (),
            diagnostics=diagnostics,
            schedules=emulated.schedules if emulated else 0,
            sampled_blocks=self._options.emulation.sampled_blocks,
            thread_instructions=emulated.thread_instructions if emulated else 0,
            printed=emulated.printed if emulated else "",
            seconds=emulated.seconds if emulated else 0.0,
        )

    def _costs(self, listing: Listing) -> list[CostReport]:
        lines = self._file.text.splitlines()
        return [
            CostReport(cost.kernel, cost.line, lines[cost.line - 1] if cost.line <= len(lines) else "", str(cost))
            for cost in costly_lines(listing)
        ]


def usual_content(dtype: DType, seed: int, smallest: int) -> Content:
    """What a tensor holds when nobody says: normal numbers; every value of a byte; indices that fit every dimension."""
    if dtype.is_float:
        return Normal(seed)
    if dtype in _INDEX_TYPES:
        return Integers(seed, 0, smallest)
    lowest, highest = {DType.U8: (0, 256), DType.I8: (-128, 128), DType.BOOL: (0, 2)}[dtype]
    return Integers(seed, lowest, highest)
