"""`Operation.explain`: which file and launches a call gets, and why."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.kernel_file import Reason, Selected
from tilewright.records import Buffer, BufferRole, Build, ConstantValue, Dim3, LibraryCall
from tilewright.toolchain import LaunchReport, report_launch


@dataclass(frozen=True)
class Explanation:
    """The file that takes a call, or why none does. `refused` are the reasons of the files before it."""

    op: str
    gpu: str
    file: str | None
    choice: tuple[tuple[str, int | bool], ...]
    constants: tuple[tuple[str, ConstantValue], ...]
    buffers: tuple[Buffer, ...]
    steps: tuple[LaunchReport | LibraryCall, ...]
    refused: tuple[Reason, ...]
    falls_back: bool  # to the reference
    not_emulable: str | None = None  # why an emulated call is refused
    why_choice: str = ""  # where the choice comes from

    def __str__(self) -> str:
        without_file = "no kernel file applies, " + ("the reference runs" if self.falls_back else "the call is refused")
        lines = [f"{self.op} on {self.gpu}: {self.file or without_file}"]
        lines += [f"  not {reason}" for reason in self.refused]
        if self.choice:
            chosen_words = ", ".join(f"{name} = {value}" for name, value in self.choice)
            lines.append(f"  choice     {chosen_words}" + (f": {self.why_choice}" if self.why_choice else ""))
        chosen = {name for name, _ in self.choice}
        constants = [f"{name} = {value}" for name, value in self.constants if name not in chosen]
        if constants:
            lines.append("  constants  " + ", ".join(constants))
        lines += [f"  {buffer.role.value:<10} {_describe(buffer)}" for buffer in self.buffers]
        lines += [f"  line {step.line}: {_describe_step(step)}" for step in self.steps]
        if self.file is not None and not self.steps:
            lines.append("  nothing to launch for these sizes")
        if self.not_emulable is not None:
            lines.append(f"  {self.not_emulable}")
        return "\n".join(lines)


def _describe(buffer: Buffer) -> str:
    clearing = "" if buffer.clearing.value == "undefined" else f" {buffer.clearing.value}"
    stride = "" if buffer.spec.is_contiguous else f" stride {list(buffer.spec.stride)}"
    size = "" if buffer.role is BufferRole.OUT else f" ({buffer.spec.storage_bytes} bytes)"
    return f"{buffer.name}: {buffer.spec}{stride}{clearing}{size}"


def _describe_step(step: LaunchReport | LibraryCall) -> str:
    if isinstance(step, LibraryCall):
        return f"library {step.target} = {step.function}"
    attributes = [f"cluster {_dim(step.cluster)}"] if step.cluster else []
    attributes += ["cooperative"] if step.cooperative else []
    attributes += ["pdl"] if step.pdl else []
    spills = f", {step.resources.spill_bytes} bytes spilled" if step.resources.spill_bytes else ""
    resident = step.occupancy
    return (
        f"{step.kernel}<<<{_dim(step.grid)}, {_dim(step.block)}>>> "
        + "".join(f"{attribute} " for attribute in attributes)
        + f"- {step.resources.registers} registers{spills}, {step.smem_bytes} bytes of shared memory, "
        f"{resident.blocks_per_sm} blocks per SM ({resident.fraction:.0%} of its warps, "
        f"limited by {resident.limiter.value})"
    )


def _dim(dim: Dim3) -> str:
    if dim[1:] == (1, 1):
        return str(dim[0])
    return f"dim3({', '.join(map(str, dim))})"


def explain_selected(
    op: str, selected: Selected, build: Build | None, refused: tuple[Reason, ...], why_choice: str
) -> Explanation:
    """Explain a call that a file takes; `build` is None where it launches nothing."""
    evaluation = selected.evaluation
    steps: list[LaunchReport | LibraryCall] = []
    for step in evaluation.steps:
        if isinstance(step, LibraryCall):
            steps.append(step)
        elif build is not None:
            steps.append(report_launch(step, build, evaluation.gpu))
    return Explanation(
        op=op,
        gpu=evaluation.gpu.name,
        file=evaluation.file.name,
        choice=tuple(evaluation.choice.items()),
        constants=evaluation.constants,
        buffers=evaluation.buffers,
        steps=tuple(steps),
        refused=refused,
        falls_back=False,
        why_choice=why_choice,
    )
