"""A candidate at given sizes, ready for a device: evaluated, built and bound; and the task's inputs, to be drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.kernel_file import Choice, DoesNotApply, Evaluation, KernelFile, KernelFileError, bind, evaluate, settle
from tilewright.records import (
    BoundPlan,
    Build,
    BuildFailure,
    Content,
    DType,
    GpuProfile,
    IndexValues,
    InputTensor,
    Integers,
    IntegerValues,
    LibraryCall,
    Normal,
    NormalValues,
    Task,
    Uniform,
    Values,
)
from tilewright.toolchain import build


class NotPrepared(Exception):
    """The file does not take these sizes, or it cannot be built; the message says which."""


@dataclass(frozen=True)
class Prepared:
    """A kernel file at concrete sizes for one GPU. `build` is None where nothing is launched."""

    evaluation: Evaluation
    build: Build | None
    plan: BoundPlan
    sizes: dict[str, int]


def prepare(
    file: KernelFile,
    task: Task,
    choice: Choice | None,
    sizes: Mapping[str, int] | None = None,
    gpu: GpuProfile | None = None,
) -> Prepared:
    """The file at the task's sizes, or at those given. Raises `NotPrepared`; `ToolchainError` is the machine's."""
    sizes = task.sizes if sizes is None else dict(sizes)
    gpu = gpu or task.profile
    arguments = task.arguments(sizes)
    try:
        evaluation = evaluate(file, arguments, gpu, choice)
        built: Build | None = None
        request = evaluation.build_request(gpu.arch)
        if request is not None:
            result = build(request)
            if isinstance(result, BuildFailure):
                raise NotPrepared(str(result))
            built = result
            plan = settle(bind(evaluation, built, gpu), evaluation.late_values(arguments))
        else:
            library = tuple(step for step in evaluation.steps if isinstance(step, LibraryCall))
            plan = BoundPlan(evaluation.buffers, evaluation.maps, library)
    except (DoesNotApply, KernelFileError) as refusal:
        raise NotPrepared(str(refusal)) from refusal
    return Prepared(evaluation, built, plan, dict(sizes))


def job_inputs(task: Task, sizes: Mapping[str, int], seed: int = 0) -> tuple[InputTensor, ...]:
    """The task's tensors at these sizes, drawn on the device from seeds that follow from `seed`."""
    values = {one.name: one.values for one in task.tensors}
    return tuple(
        InputTensor(name, spec, content(values[name], spec.dtype, sizes, 1000 * seed + number))
        for number, (name, spec) in enumerate(task.specs(sizes).items())
    )


def content(values: Values, dtype: DType, sizes: Mapping[str, int], seed: int) -> Content:
    """What a tensor of `dtype` holds where the task says `values`."""
    match values:
        case NormalValues(mean, deviation):
            return Normal(seed, mean, deviation) if dtype.is_float else Integers(seed, 0, 2)
        case IntegerValues(low, high):
            return Integers(seed, low, high)
        case IndexValues(dimension):
            return Integers(seed, 0, max(sizes[dimension], 1))
        case _:
            return Uniform(seed, values.low, values.high) if dtype.is_float else Integers(seed, 0, 2)
