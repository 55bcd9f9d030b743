"""`tilewright lint`: a kernel file built and read, not run; the findings as a record."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.frontends.report.checks import describe_arguments
from tilewright.kernel_file import ArgumentValue, DoesNotApply, KernelFile
from tilewright.lint import lint_plan
from tilewright.records import BuildFailure, GpuProfile, LintReport
from tilewright.tasks.errors import BadArgument
from tilewright.toolchain import build_plan


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
