"""`tilewright build`: a kernel file built for one or several GPUs, as a record; `build_text` turns it into words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.kernel_file import ArgumentValue, DoesNotApply, Evaluation, KernelFile, bind, evaluate
from tilewright.records import (
    Build,
    BuildFailure,
    ConstantValue,
    Diagnostic,
    Dim3,
    GpuProfile,
    Launch,
    Occupancy,
    Resources,
    TensorSpec,
    occupancy,
)
from tilewright.toolchain import ToolchainError, build, highlights


@dataclass(frozen=True)
class LaunchReport:
    """One launch of the plan on one GPU."""

    kernel: str
    grid: Dim3
    block: Dim3
    cluster: Dim3 | None
    dynamic_smem_bytes: int
    resources: Resources
    occupancy: Occupancy
    sass: dict[str, int]  # telling instructions and how often they stand in the code


@dataclass(frozen=True)
class BufferReport:
    name: str
    role: str
    tensor: str  # "bf16[4096, 1024]"
    clearing: str


@dataclass(frozen=True)
class Built:
    gpu: str
    arch: str
    constants: tuple[tuple[str, ConstantValue], ...]
    buffers: tuple[BufferReport, ...]
    launches: tuple[LaunchReport, ...]
    library_calls: tuple[str, ...]
    cubin_bytes: int
    key: str
    compiler: str
    seconds: float
    warnings: tuple[Diagnostic, ...]


@dataclass(frozen=True)
class NotBuilt:
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
    targets: tuple[Built | NotBuilt, ...]

    @property
    def succeeded(self) -> bool:
        return all(isinstance(target, Built) for target in self.targets)


def report_build(
    file: KernelFile, arguments: Mapping[str, ArgumentValue], guessed: bool, gpus: Sequence[GpuProfile]
) -> tuple[BuildReport, tuple[Build | None, ...]]:
    """Build the file for every GPU; the builds themselves come beside the report."""
    targets: list[Built | NotBuilt] = []
    builds: list[Build | None] = []
    for gpu in gpus:
        target, result = _target(file, arguments, gpu)
        targets.append(target)
        builds.append(result)
    texts = {name: describe_argument(value) for name, value in arguments.items()}
    report = BuildReport(file.name, file.identity, file.plan.op.name, texts, guessed, tuple(targets))
    return report, tuple(builds)


def describe_argument(value: ArgumentValue) -> str:
    if value is None:
        return "absent"
    return str(value) if isinstance(value, TensorSpec) else str(value).lower()


def _target(
    file: KernelFile, arguments: Mapping[str, ArgumentValue], gpu: GpuProfile
) -> tuple[Built | NotBuilt, Build | None]:
    try:
        evaluation = evaluate(file, arguments, gpu)
    except DoesNotApply as refusal:
        return NotBuilt(gpu.name, gpu.arch, False, str(refusal), ()), None
    request = evaluation.build_request(gpu.arch)
    assert request is not None
    result = build(request)
    if isinstance(result, BuildFailure):
        return NotBuilt(gpu.name, gpu.arch, True, result.reason.value, result.diagnostics), None
    bind(evaluation, result, gpu)  # arguments against the compiled parameter lists, and every limit
    return _built(evaluation, result, gpu), result


def _built(evaluation: Evaluation, result: Build, gpu: GpuProfile) -> Built:
    try:
        sass = highlights(result)
    except ToolchainError:
        sass = {}  # no disassembler: everything else is still worth showing
    launches = []
    for step in evaluation.steps:
        if isinstance(step, Launch):
            resources = result.kernel(step.kernel).resources
            threads = step.block[0] * step.block[1] * step.block[2]
            smem = step.dynamic_smem_bytes + resources.static_smem_bytes
            launches.append(
                LaunchReport(
                    kernel=step.kernel,
                    grid=step.grid,
                    block=step.block,
                    cluster=step.cluster,
                    dynamic_smem_bytes=step.dynamic_smem_bytes,
                    resources=resources,
                    occupancy=occupancy(gpu, resources.registers, threads, smem),
                    sass=dict(sass.get(step.kernel, {})),
                )
            )
    return Built(
        gpu=gpu.name,
        arch=gpu.arch,
        constants=evaluation.constants,
        buffers=tuple(BufferReport(b.name, b.role.value, str(b.spec), b.clearing.value) for b in evaluation.buffers),
        launches=tuple(launches),
        library_calls=tuple(step.function for step in evaluation.steps if not isinstance(step, Launch)),
        cubin_bytes=len(result.cubin),
        key=result.key,
        compiler=result.compiler,
        seconds=result.seconds,
        warnings=result.warnings,
    )
