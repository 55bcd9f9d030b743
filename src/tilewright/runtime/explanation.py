"""What an operation does, or would do, for one call, and why: a record with a readable form."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.kernel_file import Evaluation, NoneApplies, Reason, Selected
from tilewright.records import (
    Buffer,
    BufferRole,
    Build,
    CompiledKernel,
    ConstantValue,
    Dim3,
    GpuProfile,
    Launch,
    LibraryCall,
    Occupancy,
    occupancy,
)


@dataclass(frozen=True)
class ExplainedLaunch:
    """One launch with what the build says of its kernel."""

    kernel: str
    line: int
    grid: Dim3
    block: Dim3
    dynamic_smem_bytes: int
    cluster: Dim3 | None
    cooperative: bool
    pdl: bool
    static_smem_bytes: int
    registers: int
    spill_bytes: int
    occupancy: Occupancy

    def __str__(self) -> str:
        smem = self.dynamic_smem_bytes + self.static_smem_bytes
        attributes = [f"cluster {_dim(self.cluster)}"] if self.cluster else []
        attributes += ["cooperative"] if self.cooperative else []
        attributes += ["pdl"] if self.pdl else []
        spills = f", {self.spill_bytes} bytes spilled" if self.spill_bytes else ""
        return (
            f"line {self.line}: {self.kernel}<<<{_dim(self.grid)}, {_dim(self.block)}>>> "
            + "".join(f"{attribute} " for attribute in attributes)
            + f"- {self.registers} registers{spills}, {smem} bytes of shared memory, "
            f"{self.occupancy.blocks_per_sm} blocks per SM ({self.occupancy.fraction:.0%} of its warps, "
            f"limited by {self.occupancy.limiter.value})"
        )


@dataclass(frozen=True)
class ExplainedLibraryCall:
    """One declared vendor step."""

    target: str
    function: str
    line: int

    def __str__(self) -> str:
        return f"line {self.line}: library {self.target} = {self.function}"


@dataclass(frozen=True)
class Explanation:
    """The file that takes a call, or why none does. `refused` are the reasons of the files before it."""

    op: str
    gpu: str
    file: str | None
    choice: tuple[tuple[str, int | bool], ...]
    constants: tuple[tuple[str, ConstantValue], ...]
    buffers: tuple[Buffer, ...]
    steps: tuple[ExplainedLaunch | ExplainedLibraryCall, ...]
    refused: tuple[Reason, ...]
    falls_back: bool  # to the reference
    not_emulable: str | None = None  # why an emulated call is refused

    def __str__(self) -> str:
        lines = [f"{self.op} on {self.gpu}: {self.file or self._without_file()}"]
        lines += [f"  not {reason}" for reason in self.refused]
        if self.choice:
            lines.append("  choice     " + ", ".join(f"{name} = {value}" for name, value in self.choice))
        chosen = {name for name, _ in self.choice}
        constants = [f"{name} = {value}" for name, value in self.constants if name not in chosen]
        if constants:
            lines.append("  constants  " + ", ".join(constants))
        lines += [f"  {buffer.role.value:<10} {_describe(buffer)}" for buffer in self.buffers]
        lines += [f"  {step}" for step in self.steps]
        if self.file is not None and not self.steps:
            lines.append("  nothing to launch for these sizes")
        if self.not_emulable is not None:
            lines.append(f"  {self.not_emulable}")
        return "\n".join(lines)

    def _without_file(self) -> str:
        return "no kernel file applies, " + ("the reference runs" if self.falls_back else "the call is refused")


def _describe(buffer: Buffer) -> str:
    clearing = "" if buffer.clearing.value == "undefined" else f" {buffer.clearing.value}"
    stride = "" if buffer.spec.is_contiguous else f" stride {list(buffer.spec.stride)}"
    size = "" if buffer.role is BufferRole.OUT else f" ({buffer.spec.storage_bytes} bytes)"
    return f"{buffer.name}: {buffer.spec}{stride}{clearing}{size}"


def _dim(dim: Dim3) -> str:
    if dim[1:] == (1, 1):
        return str(dim[0])
    return f"dim3({', '.join(map(str, dim))})"


def explain_none(op: str, gpu: GpuProfile, none: NoneApplies, falls_back: bool) -> Explanation:
    return Explanation(op, gpu.name, None, (), (), (), (), none.reasons, falls_back)


def explain_selected(op: str, selected: Selected, build: Build | None, refused: tuple[Reason, ...]) -> Explanation:
    """The explanation of a call that a file takes; `build` is None where it launches nothing."""
    evaluation = selected.evaluation
    return Explanation(
        op=op,
        gpu=evaluation.gpu.name,
        file=evaluation.file.name,
        choice=tuple(evaluation.choice.items()),
        constants=evaluation.constants,
        buffers=evaluation.buffers,
        steps=tuple(_explain_step(step, evaluation, build) for step in evaluation.steps),
        refused=refused,
        falls_back=False,
    )


def _explain_step(
    step: Launch | LibraryCall, evaluation: Evaluation, build: Build | None
) -> ExplainedLaunch | ExplainedLibraryCall:
    if isinstance(step, LibraryCall):
        return ExplainedLibraryCall(step.target, step.function, step.line)
    assert build is not None
    kernel: CompiledKernel = build.kernel(step.kernel)
    resources = kernel.resources
    smem = step.dynamic_smem_bytes + resources.static_smem_bytes
    return ExplainedLaunch(
        kernel=step.kernel,
        line=step.line,
        grid=step.grid,
        block=step.block,
        dynamic_smem_bytes=step.dynamic_smem_bytes,
        cluster=step.cluster or kernel.cluster,
        cooperative=step.cooperative,
        pdl=step.pdl,
        static_smem_bytes=resources.static_smem_bytes,
        registers=resources.registers,
        spill_bytes=resources.spill_store_bytes + resources.spill_load_bytes,
        occupancy=occupancy(evaluation.gpu, resources.registers, math.prod(step.block), smem),
    )
