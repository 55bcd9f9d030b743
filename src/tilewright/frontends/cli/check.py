"""`tilewright build`, `lint` and `check`: a kernel file compiled, its code read, or run in the emulator."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from tilewright import device_library, records
from tilewright.devices.child_device import EmulatedDevice
from tilewright.devices.contents import ContentError, check_content
from tilewright.devices.emulation.listing import costly_lines, make_listing
from tilewright.frontends.api.kernel_arguments import choose_profiles, parse_contents
from tilewright.frontends.cli import terminal
from tilewright.frontends.report import checks
from tilewright.importing.calls import is_block
from tilewright.kernel_file import ArgumentValue, DoesNotApply, KernelFile, TunedChoices, evaluate_tuned
from tilewright.lint import lint_plan
from tilewright.records import PROFILES, Build, GpuProfile, InputTensor, Limits, TensorSpec
from tilewright.reference import Reference, ReferenceProblem
from tilewright.tasks.errors import BadArgument
from tilewright.toolchain import BuiltPlan, ToolchainError, build_plan, highlights, report_launch, sass_text
from tilewright.verify.judging_records import CallJudgement, CallRequest, NumberArgument, ResultVerdict

Say = Callable[[str], None]
JUDGE = "tilewright.verify.judging:judge_call"
_SMALL = 8  # numbers up to this are strides, kernel sizes, dimensions
_READS_A_SIZE = re.compile(r"^\s*//!(?!\s*need\s+\w+\.numel >=).*\.(shape|numel)\b", re.MULTILINE)  # no mere bound
_INDEX_TYPES = (records.DType.I16, records.DType.I32, records.DType.I64)
_COUNTED = (records.LintRule.UNCOALESCED, records.LintRule.BANK_CONFLICT)  # by the emulator, line by line
_NOTHING_RAN = records.EmulatedRun((), (), 0, 0, (), "", 0.0)


def build(
    file: terminal.FileArgument,
    arch: terminal.ArchesOption = None,
    gpu: Annotated[
        list[str] | None, typer.Option(metavar="GPU", help=f"GPU to build for; may be repeated: {', '.join(PROFILES)}.")
    ] = None,
    shape: terminal.ShapeOption = None,
    set_: terminal.SetOption = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder for the cubin and PTX files.")] = None,
    sass: Annotated[bool, typer.Option("--sass", help="Print the machine code too.")] = False,
    as_json: terminal.JsonOption = False,
) -> None:
    """Compile a kernel for one or several GPUs; show its launches, registers, occupancy and SASS highlights."""
    if output and output.exists() and not output.is_dir():
        raise BadArgument(f"-o {output}: a file; give the folder to write the cubin and PTX files into")
    profiles = choose_profiles(arch or [], gpu or [])
    with terminal.progress() as say:
        kernel = terminal.read_kernel(file, shape, set_, profiles[0], say, small=False)
    _say_import(kernel.note)
    report, builds = _built(kernel, profiles, TunedChoices.load(file))
    if output:
        output.mkdir(parents=True, exist_ok=True)
        for result in builds:
            (output / f"{file.stem}.{result.arch}.cubin").write_bytes(result.cubin)
            (output / f"{file.stem}.{result.arch}.ptx").write_text(result.ptx)
    terminal.deliver(report, as_json, checks.build_report(kernel.file, report))
    for result in builds if sass and not as_json else ():
        terminal.stdout_console().print(sass_text(result), markup=False, highlight=False)
    terminal.exit_with(int(not report.succeeded))


def flatten(
    file: Annotated[Path, typer.Argument(metavar="{file}", help="CUDA code with `#include <tilewright/...>` lines.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to write it; else it is printed.")
    ] = None,
) -> None:
    """Put what a source uses of the device library into the file itself, which then stands alone."""
    try:
        flat = device_library.flatten(terminal.read_text(file))
    except device_library.UnknownHeader as error:
        raise BadArgument(f"{file}: {error}") from None
    if output:
        output.write_text(flat)
    else:
        print(flat, end="")


def lint(
    file: terminal.FileArgument,
    shape: terminal.ShapeOption = None,
    set_: terminal.SetOption = None,
    gpu: terminal.EmulatedGpuOption = "H200",
    as_json: terminal.JsonOption = False,
) -> None:
    """Read a kernel's source and compiled code for faults and slow habits, line by line, without running it."""
    (profile,) = choose_profiles([], [gpu])
    with terminal.progress() as say:
        kernel = terminal.read_kernel(file, shape, set_, profile, say)
    _say_import(kernel.note)
    file_, arguments = kernel.file, kernel.arguments
    try:
        built = build_plan(file_, arguments, profile)
    except DoesNotApply as refusal:
        raise BadArgument(f"{file_.name}:{refusal}") from None
    if isinstance(built, records.BuildFailure):
        failure = built
        terminal.deliver(failure, as_json, checks.failure_report(failure))
        terminal.exit_with(1)
        return
    findings, unread = lint_plan(built, arguments, other_sizes=sizes_may_vary(file_, arguments))
    facts = file_.name, file_.identity, file_.plan.op.name, profile.name, checks.describe_arguments(arguments)
    report = records.LintReport(*facts, kernel.guessed, findings, unread)
    terminal.deliver(report, as_json, checks.lint_report(file_, report))
    terminal.exit_with(int(report.has_errors))


def check(
    file: terminal.FileArgument,
    reference: terminal.ReferenceOption = None,
    shape: terminal.ShapeOption = None,
    set_: terminal.SetOption = None,
    fill: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=KIND", help="What a tensor holds: normal, uniform:LOW:HIGH[:upper] or integers:LOW:HIGH."
        ),
    ] = None,
    schedules: Annotated[
        int, typer.Option(min=1, help="Orders of warps and blocks to try; all but the first are random.")
    ] = 3,
    seed: Annotated[int, typer.Option(help="Seed of the random schedules.")] = 0,
    gpu: terminal.EmulatedGpuOption = "H200",
    blocks: Annotated[
        int | None, typer.Option(min=1, help="Run only so many blocks of each launch, evenly spread.")
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(min=0, help="Relative error to allow, in place of the tolerance made for each element."),
    ] = None,
    counters: Annotated[bool, typer.Option("--counters", help="List the file, each line with what it did.")] = False,
    seconds: Annotated[float, typer.Option(min=0.1, help="Limit on the emulated run, and on the reference.")] = 120.0,
    as_json: terminal.JsonOption = False,
) -> None:
    """Run a kernel in the emulator: find out-of-bounds, races, uninitialised reads; compare with a reference."""
    if reference and blocks:
        raise BadArgument("--blocks leaves most results unwritten, so there is nothing to compare; drop one of the two")
    (profile,) = choose_profiles([], [gpu])
    with terminal.progress() as say:
        kernel = terminal.read_kernel(file, shape, set_, profile, say)
        _say_import(kernel.note)
        with terminal.reference_of(reference, kernel.arguments, kernel) as known:
            options = CheckOptions(
                gpu=profile,
                emulation=records.Emulation(schedules=schedules, seed=seed, sampled_blocks=blocks),
                reference=original(known),
                contents=parse_contents(kernel.file.plan.op, fill or []),
                tolerance=tolerance,
                seconds=seconds,
                keep_counts=counters,
            )
            report = check_file(kernel.file, kernel.arguments, kernel.guessed, options, say)
    terminal.deliver(report, as_json, checks.check_report(kernel.file, report))
    terminal.exit_with(report.outcome.exit_status)


def _say_import(note: str) -> None:
    if note:
        terminal.stderr_console().print(Text(f"note: {note}"), soft_wrap=True)


def _built(
    kernel: terminal.Kernel, gpus: Sequence[GpuProfile], tuned: TunedChoices
) -> tuple[checks.BuildReport, tuple[Build, ...]]:
    """The file compiled for every GPU, with what was tuned for it."""
    file, arguments = kernel.file, kernel.arguments
    targets: list[checks.BuiltTarget | checks.FailedTarget] = []
    builds: list[Build] = []
    for gpu in gpus:
        try:
            _, near = evaluate_tuned(file, arguments, gpu, tuned)
            built = build_plan(file, arguments, gpu, near.choice if near is not None else None)
        except DoesNotApply as refusal:
            targets.append(checks.FailedTarget(gpu.name, gpu.arch, False, str(refusal), ()))
            continue
        if isinstance(built, records.BuildFailure):
            targets.append(checks.FailedTarget(gpu.name, gpu.arch, True, built.reason.value, built.diagnostics))
            continue
        why = near.why(gpu) if near is not None else tuned.why_first(file, gpu, arguments)
        targets.append(_target(built, why))
        builds += [built.build] if built.build is not None else []
    call = vars(checks.call_of(file, arguments, kernel.guessed))
    return checks.BuildReport(**call, targets=tuple(targets)), tuple(builds)


def _target(built: BuiltPlan, why_choice: str) -> checks.BuiltTarget:
    evaluation, build = built.evaluation, built.build
    launches = [step for step in evaluation.steps if isinstance(step, records.Launch)]
    return checks.BuiltTarget(
        gpu=evaluation.gpu.name,
        arch=evaluation.gpu.arch,
        constants=evaluation.constants,
        buffers=tuple(
            checks.BufferReport(b.name, b.role.value, str(b.spec), b.clearing.value) for b in evaluation.buffers
        ),
        launches=tuple(report_launch(step, build, evaluation.gpu) for step in launches) if build else (),
        library_calls=tuple(step.function for step in evaluation.steps if not isinstance(step, records.Launch)),
        compiled=_compiled(build) if build else None,
        why_choice=why_choice,
    )


def _compiled(build: Build) -> checks.CompiledReport:
    try:
        sass = highlights(build)
    except ToolchainError:
        sass = {}  # no disassembler: everything else is still worth showing
    return checks.CompiledReport(len(build.cubin), build.key, build.compiler, build.seconds, build.warnings, sass)


def told_sizes(file: KernelFile, arguments: Mapping[str, ArgumentValue]) -> bool:
    """No line of the plan reads a size off a tensor: one made smaller while its number stays is a call nobody makes."""
    return bool(_numbers(arguments)) and _READS_A_SIZE.search(file.text) is None


def sizes_follow(file: KernelFile, arguments: Mapping[str, ArgumentValue]) -> bool:
    """Every number that may be a size is one of a tensor's, and, where sizes come as numbers, the other way round."""
    sizes = {size for one in arguments.values() if isinstance(one, TensorSpec) for size in one.shape if size > _SMALL}
    numbers = _numbers(arguments)
    return numbers <= sizes and (sizes <= numbers or not told_sizes(file, arguments))


def _numbers(arguments: Mapping[str, ArgumentValue]) -> set[int]:
    numbers = {name: one for name, one in arguments.items() if isinstance(one, int) and not isinstance(one, bool)}
    return {one for name, one in numbers.items() if one > _SMALL and not is_block(name)}  # threads are no size


def sizes_may_vary(file: KernelFile, arguments: Mapping[str, ArgumentValue]) -> bool:
    """Whether a tensor may be made smaller for lint: the numbers that are sizes become smaller with it."""
    return not told_sizes(file, arguments) or sizes_follow(file, arguments)


@dataclass(frozen=True)
class CheckOptions:
    gpu: GpuProfile
    emulation: records.Emulation
    reference: tuple[str, str, Path | None] | None = None  # text, function, folder; only where all blocks run
    contents: Mapping[str, records.Content] = field(default_factory=dict)  # for tensors that want other than the usual
    tolerance: float | None = None
    seconds: float = 120.0
    keep_counts: bool = False  # in the report


def original(known: tuple[Path, str] | None) -> tuple[str, str, Path] | None:
    """The text of a file with a reference, its function, and the folder it lies in."""
    return None if known is None else (known[0].read_text("utf-8"), known[1], known[0].parent)


def check_file(
    file: KernelFile, arguments: Mapping[str, ArgumentValue], guessed: bool, options: CheckOptions, say: Say
) -> checks.CheckReport:
    """The whole check. Raises `BadArgument`, `ToolchainError`, `DeviceError`, `KernelFileError`."""
    check = _Check(file, arguments, guessed, options, say)
    if options.reference is None:
        return check.run(None)
    text, function, folder = options.reference
    # Started first, because importing torch takes longer than most checks.
    with Reference(text, function, folder=folder or "") as reference:
        return check.run(reference)


@dataclass(frozen=True)
class _Check:
    file: KernelFile
    arguments: Mapping[str, ArgumentValue]
    guessed: bool
    options: CheckOptions
    say: Say

    def run(self, reference: Reference | None) -> checks.CheckReport:
        options, gpu = self.options, self.options.gpu
        self.say(f"building for {gpu.arch}")
        try:
            built = build_plan(self.file, self.arguments, gpu)
        except DoesNotApply as refusal:
            return self._report(checks.CheckOutcome.DOES_NOT_APPLY, str(refusal))
        if isinstance(built, records.BuildFailure):
            return self._report(checks.CheckOutcome.NOT_BUILT, built.reason.value, diagnostics=built.diagnostics)
        read, _ = lint_plan(built, self.arguments, other_sizes=False)
        report = partial(self._report, lint=tuple(finding for finding in read if finding.rule not in _COUNTED))
        job, schedules = self._job(built), options.emulation.schedules
        self.say(f"emulating {gpu.name} under {schedules} schedule{'s' if schedules != 1 else ''}")
        with EmulatedDevice(gpu) as device:
            execution = device.execute(job)
        if isinstance(execution, records.Faulted):
            if execution.kind is records.FaultKind.UNSUITABLE:
                return report(checks.CheckOutcome.NOT_EMULABLE, execution.message)
            return report(
                checks.CheckOutcome.FAULTED, f"{execution.kind.value}: {execution.message}", execution.emulated
            )
        results: tuple[ResultVerdict, ...] = ()
        if reference is not None:
            self.say("comparing with the reference")
            try:
                request = self._request(job, execution)
                answer: CallJudgement = reference.call(JUDGE, request, CallJudgement, options.seconds)
            except ReferenceProblem as problem:
                assert options.reference is not None
                raise BadArgument(f"--reference {options.reference[1]}: {problem}") from None
            results = answer.results
        wrong = [one.name for one in results if not one.agrees]
        outcome = checks.CheckOutcome.FINDINGS if execution.findings else checks.CheckOutcome.CLEAN
        reason = f"{', '.join(wrong)} is not what the reference computes" if wrong else ""
        outcome = checks.CheckOutcome.WRONG if wrong else outcome
        return report(outcome, reason, execution.emulated, results=results, compared=reference is not None)

    def _job(self, built: BuiltPlan) -> records.Job:
        op = self.file.plan.op
        in_place = tuple(p.name for p in op.parameters if p.in_place and self.arguments[p.name] is not None)
        return built.job(
            "check",
            self._inputs(),
            returns=(*op.results, *in_place),
            limits=Limits(seconds=self.options.seconds),
            emulation=self.options.emulation,
        )

    def _inputs(self) -> tuple[InputTensor, ...]:
        specs = {name: value for name, value in self.arguments.items() if isinstance(value, TensorSpec)}
        smallest = min((size for spec in specs.values() for size in spec.shape if size), default=1)
        contents = self.options.contents
        for name, content in contents.items():
            try:
                check_content(specs[name], content)
            except ContentError as error:
                raise BadArgument(f"--fill {name}: {error}") from None
        return tuple(
            InputTensor(name, spec, contents.get(name) or usual_content(spec.dtype, seed, smallest))
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

    def _report(
        self,
        outcome: checks.CheckOutcome,
        reason: str,
        emulated: records.EmulatedRun | None = None,
        *,
        results: tuple[ResultVerdict, ...] = (),
        compared: bool = False,
        diagnostics: tuple[records.Diagnostic, ...] = (),
        lint: tuple[records.LintFinding, ...] = (),
    ) -> checks.CheckReport:
        seen = emulated or _NOTHING_RAN
        listings = tuple(make_listing(one, self.file.name, self.file.text) for one in seen.counts)
        kept = seen if self.options.keep_counts else replace(seen, counts=())
        return checks.CheckReport(
            **vars(kept),
            **vars(checks.call_of(self.file, self.arguments, self.guessed)),
            gpu=self.options.gpu.name,
            outcome=outcome,
            reason=reason,
            results=results,
            compared=compared,
            costs=tuple(cost for listing in listings for cost in costly_lines(listing)),
            listings=listings if self.options.keep_counts else (),
            diagnostics=diagnostics,
            sampled_blocks=self.options.emulation.sampled_blocks,
            lint=lint,
        )


def usual_content(dtype: records.DType, seed: int, smallest: int) -> records.Content:
    """What a tensor holds when nobody says: normal numbers; every value of a byte; indices that fit every dimension."""
    if dtype.is_float:
        return records.Normal(seed)
    if dtype in _INDEX_TYPES:
        return records.Integers(seed, 0, smallest)
    lowest, highest = dtype.whole_numbers
    return records.Integers(seed, lowest, highest + 1)
