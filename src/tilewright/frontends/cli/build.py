"""`tilewright build`: a kernel file built for one or several GPUs, as a record, and the record as words and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tilewright.frontends.cli.terminal import plain_table
from tilewright.kernel_file import ArgumentValue, DoesNotApply, KernelFile, TunedChoices, evaluate_tuned, print_plan
from tilewright.records import Build, BuildFailure, ConstantValue, Diagnostic, Dim3, GpuProfile, Launch, TensorSpec
from tilewright.toolchain import BuiltPlan, LaunchReport, ToolchainError, build_plan, highlights, report_launch

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


def describe_arguments(arguments: Mapping[str, ArgumentValue]) -> dict[str, str]:
    return {
        name: "absent" if value is None else str(value) if isinstance(value, TensorSpec) else str(value).lower()
        for name, value in arguments.items()
    }


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


# -- as words and tables --


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
