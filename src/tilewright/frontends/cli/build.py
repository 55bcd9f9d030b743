"""`tilewright build`: a kernel file built for one or several GPUs, as a record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.frontends.report.checks import (
    BufferReport,
    BuildReport,
    BuiltTarget,
    CompiledReport,
    FailedTarget,
    describe_arguments,
)
from tilewright.kernel_file import ArgumentValue, DoesNotApply, KernelFile, TunedChoices, evaluate_tuned
from tilewright.records import Build, BuildFailure, GpuProfile, Launch
from tilewright.toolchain import BuiltPlan, ToolchainError, build_plan, highlights, report_launch


def report_build(
    file: KernelFile,
    arguments: Mapping[str, ArgumentValue],
    guessed: bool,
    gpus: Sequence[GpuProfile],
    tuned: TunedChoices,
) -> tuple[BuildReport, tuple[Build, ...]]:
    """Build the file for every GPU, with what was tuned for it; what was compiled comes beside the report."""
    targets: list[BuiltTarget | FailedTarget] = []
    builds: list[Build] = []
    for gpu in gpus:
        try:
            _, near = evaluate_tuned(file, arguments, gpu, tuned)
            built = build_plan(file, arguments, gpu, near.choice if near is not None else None)
        except DoesNotApply as refusal:
            targets.append(FailedTarget(gpu.name, gpu.arch, False, str(refusal), ()))
            continue
        if isinstance(built, BuildFailure):
            targets.append(FailedTarget(gpu.name, gpu.arch, True, built.reason.value, built.diagnostics))
            continue
        why = near.why(gpu) if near is not None else tuned.why_first(file, gpu, arguments)
        targets.append(_target(built, why))
        builds += [built.build] if built.build is not None else []
    texts = describe_arguments(arguments)
    return BuildReport(file.name, file.identity, file.plan.op.name, texts, guessed, tuple(targets)), tuple(builds)


def _target(built: BuiltPlan, why_choice: str) -> BuiltTarget:
    evaluation, build = built.evaluation, built.build
    launches = [step for step in evaluation.steps if isinstance(step, Launch)]
    return BuiltTarget(
        gpu=evaluation.gpu.name,
        arch=evaluation.gpu.arch,
        constants=evaluation.constants,
        buffers=tuple(BufferReport(b.name, b.role.value, str(b.spec), b.clearing.value) for b in evaluation.buffers),
        launches=tuple(report_launch(step, build, evaluation.gpu) for step in launches) if build else (),
        library_calls=tuple(step.function for step in evaluation.steps if not isinstance(step, Launch)),
        compiled=_compiled(build) if build else None,
        why_choice=why_choice,
    )


def _compiled(build: Build) -> CompiledReport:
    try:
        sass = highlights(build)
    except ToolchainError:
        sass = {}  # no disassembler: everything else is still worth showing
    return CompiledReport(len(build.cubin), build.key, build.compiler, build.seconds, build.warnings, sass)
