"""Build a candidate for given sizes, and describe the task's inputs for the device to generate."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.kernel_file import Choice, DoesNotApply, KernelFile, KernelFileError
from tilewright.records import BuildFailure, GpuProfile, InputTensor, Task
from tilewright.toolchain import BuiltPlan, build_plan
from tilewright.verify.distributions import seeded


class NotPrepared(Exception):
    """The file does not take these sizes or does not build. The message says which."""


def prepare(
    file: KernelFile,
    task: Task,
    choice: Choice | None,
    sizes: Mapping[str, int] | None = None,
    gpu: GpuProfile | None = None,
) -> BuiltPlan:
    """Build the file at the task's sizes, or at `sizes`. Raises `NotPrepared`, and `ToolchainError` if the toolchain
    fails."""
    try:
        built = build_plan(file, task.arguments(task.sizes if sizes is None else sizes), gpu or task.profile, choice)
    except (DoesNotApply, KernelFileError) as refusal:
        raise NotPrepared(str(refusal)) from refusal
    if isinstance(built, BuildFailure):
        raise NotPrepared(str(built))
    return built


def job_inputs(task: Task, sizes: Mapping[str, int] | None = None, seed: int = 0) -> tuple[InputTensor, ...]:
    """The task's tensors at its sizes, or at `sizes`, to be generated on the device from seeds that follow from
    `seed`."""
    sizes = task.sizes if sizes is None else sizes
    inputs = {one.name: one for one in task.tensors}
    return tuple(
        InputTensor(name, spec, seeded(inputs[name], sizes, 1000 * seed + number, parts=True))
        for number, (name, spec) in enumerate(task.specs(sizes).items())
    )
