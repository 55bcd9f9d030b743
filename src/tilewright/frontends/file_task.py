"""The task of a kernel file that somebody has: from a reference, or, where nobody says what is right, from its plan.

The latter is good for timing and modelling, not for judging.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tilewright import tasks
from tilewright.frontends.choices import ChosenDevice
from tilewright.frontends.kernel_arguments import BadArgument
from tilewright.frontends.torch_precision import settling_on
from tilewright.kernel_file import ArgumentValue, KernelFile, Parameter, evaluate
from tilewright.records import (
    Dimension,
    DType,
    GpuProfile,
    IntegerValues,
    NormalValues,
    NumberInput,
    ScalarType,
    Task,
    TaskInput,
    TaskOutput,
    TensorInput,
    TensorSpec,
)

_INDICES = (DType.I16, DType.I32, DType.I64)


def task_of_file(file: KernelFile, arguments: Mapping[str, ArgumentValue], gpu: GpuProfile) -> Task:
    """Sizes that are equal are taken for one dimension, as they mostly are.

    Raises `BadArgument` for an op with lists of numbers, `DoesNotApply` where the file does not take the call.
    """
    op = file.plan.op
    evaluation = evaluate(file, arguments, gpu)
    results = {one.name: one.spec for one in evaluation.buffers if one.name in op.results}
    specs = [value for value in (*arguments.values(), *results.values()) if isinstance(value, TensorSpec)]
    sizes = dict.fromkeys(size for spec in specs for size in spec.shape)
    names = {size: f"size{number}" for number, size in enumerate(sizes)}
    # A size that is told as a number too would not follow where its dimension is made smaller.
    told = any(isinstance(value, int) and value in sizes for value in arguments.values())
    smallest = min((size for size in sizes if size), default=1)
    return Task(
        name=op.name,
        reference="",
        function=op.name,
        inputs=tuple(_input(one, arguments[one.name], names, smallest) for one in op.parameters),
        outputs=tuple(
            TaskOutput(name, results[name].dtype, tuple(names[size] for size in results[name].shape))
            for name in op.results
        ),
        dimensions=tuple(
            Dimension(name, size, multiple_of=max(size, 1) if told else 1) for size, name in names.items()
        ),
        gpu=gpu.name,
    )


def task_of_reference(
    reference: tuple[Path, str], arguments: Mapping[str, ArgumentValue], device: ChosenDevice
) -> Task:
    """What a function of a file is to compute at these arguments. Raises `RefusedRequest`."""
    path, function = reference
    shapes, numbers = argument_words(arguments)
    options = tasks.TaskOptions(gpu=device.gpu, allow_degenerate=True, settle=settling_on(device))
    try:
        task = tasks.open_task(f"{path}:{function}", shapes, numbers, {}, options)
    except tasks.RefusedRequest as refusal:
        if refusal.given is None or refusal.given.text:
            raise
        # A parameter of the kernel, which nobody gave by that option.
        found = f"the kernel file has the parameter {refusal.given.name}, and {refusal.found}"
        raise BadArgument(f"--reference {path}:{function}: {found}; give them the same names") from None
    assert task is not None  # it names a file that is there
    return task


def _input(parameter: Parameter, value: ArgumentValue, names: Mapping[int, str], smallest: int) -> TaskInput:
    if parameter.scalar is None:
        if not isinstance(value, TensorSpec):
            return TensorInput(parameter.name, DType.F32, (), optional=True)
        dimensions = tuple(names[size] for size in value.shape)
        in_place, values = parameter.in_place, _values(value.dtype, smallest)
        return TensorInput(parameter.name, value.dtype, dimensions, values, in_place=in_place)
    if not isinstance(value, (bool, int, float)):
        raise BadArgument(f"{parameter.name} is a list of numbers; give --reference FILE.py:FUNCTION")
    return NumberInput(parameter.name, parameter.scalar or ScalarType.FLOAT, value)


def _values(dtype: DType, smallest: int) -> NormalValues | IntegerValues:
    """Indices that fit every dimension; every value of a byte."""
    if dtype.is_float:
        return NormalValues()
    if dtype in _INDICES:
        return IntegerValues(0, smallest)
    lowest, highest = dtype.whole_numbers
    return IntegerValues(lowest, highest + 1)


def argument_words(arguments: Mapping[str, ArgumentValue]) -> tuple[dict[str, str], dict[str, str]]:
    """Tensors and numbers as `--shape` and `--set` take them: `4096x1024:bf16`, `1e-05`."""
    specs = {name: one for name, one in arguments.items() if isinstance(one, TensorSpec)}
    shapes = {name: f"{'x'.join(map(str, spec.shape))}:{spec.dtype}" for name, spec in specs.items()}
    return shapes, {name: str(one).lower() for name, one in arguments.items() if isinstance(one, (bool, int, float))}
