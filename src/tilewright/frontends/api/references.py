"""What `--reference` names: a function, a module, a KernelBench file, a task folder, or the run that made a kernel.

Everything but a function becomes a text of its own with a function of the kernel's parameters, as it does for `make`.
"""

from __future__ import annotations

import ast
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tilewright import tasks
from tilewright.frontends.api.choices import ChosenDevice
from tilewright.frontends.api.judges import precision_settler
from tilewright.frontends.api.requests import installed_name, is_named_object, resolved, task_of
from tilewright.kernel_file import ArgumentValue, KernelFile, Parameter, evaluate
from tilewright.records import (
    REACHED_BANDWIDTH,
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
from tilewright.store import NotAccepted, Request, Store, StoreError
from tilewright.tasks.errors import BadArgument
from tilewright.tasks.reading import python_source

WAYS = (
    "write FILE.py:FUNCTION, FILE.py:MODULE(ARGUMENTS), PACKAGE.MODULE:NAME(ARGUMENTS), a KernelBench FILE.py, a task "
    "folder or the name of the run that made the kernel"
)


@contextmanager
def named_reference(
    text: str, shapes: Mapping[str, str], numbers: Mapping[str, str] | None = None
) -> Iterator[tuple[Path, str]]:
    """A file with a function of the kernel's parameters, and the function's name. Raises `BadArgument`.

    `shapes` and `numbers` are those of the call that is looked at, as `--shape` and `--set` take them.
    """
    text = text.strip()
    found = _function(text)
    if found is not None:
        yield found
        return
    task = _task(text, shapes, numbers or {})
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder, f"{task.function}.py")
        written.write_text(task.reference, encoding="utf-8")
        try:
            yield written, task.function
        except BadArgument as problem:
            raise BadArgument(str(problem).replace(str(written), f"--reference {text}")) from None


def split_reference(text: str) -> tuple[Path, str]:
    """`FILE.py:NAME`, whatever has that name in the file."""
    place, _, name = text.rpartition(":")
    path = Path(place).expanduser()
    if not path.is_file():
        raise BadArgument(f"--reference {text}: there is no file {path}; {WAYS}")
    return path, name


def _function(text: str) -> tuple[Path, str] | None:
    """The function that a text names as it stands; None where it names anything else."""
    place, colon, name = text.partition(".py:")
    path = Path(f"{place}.py" if colon else text).expanduser()
    if not colon and (path.suffix != ".py" or not path.is_file()):
        return None
    if not path.is_file():
        raise BadArgument(f"--reference {text}: there is no file {path}; {WAYS}")
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, SyntaxError) as error:
        raise BadArgument(f"--reference {path} cannot be read as Python: {error}") from None
    functions, classes = python_source.defined_names(tree)
    if not colon:
        if "get_inputs" in functions:
            return None
        public = [one for one in functions if not one.startswith("_")]
        if len(public) != 1:
            raise BadArgument(f"--reference {text}: it defines {', '.join((*public, *classes)) or 'nothing'}; {WAYS}")
        return path, public[0]
    is_object = name in classes or "(" in name or (name in python_source.bound_names(tree) and name not in functions)
    if not is_object and not name.isidentifier():
        raise BadArgument(f"--reference {text}: {WAYS}")
    return None if is_object else (path, name)


def _task(text: str, shapes: Mapping[str, str], numbers: Mapping[str, str]) -> Task:
    """The task of a module, a problem or a folder, with sizes for what its `forward` takes; or that of a run."""
    path = Path(text.partition(".py:")[0] + ".py" if ".py:" in text else text).expanduser()
    is_task_folder = (path / "task.toml").is_file()
    try:
        named = is_named_object(installed_name(text))
    except BadArgument:
        raise BadArgument(f"--reference {text}: there is no such file, module or run; {WAYS}") from None
    if not (path.is_file() or is_task_folder or named):
        return _task_of_run(text)
    own_sizes = is_task_folder or (".py:" not in text and not named)
    request = Request(text, *(({}, {}) if own_sizes else (dict(shapes), dict(numbers))), allow_degenerate=True)
    request = replace(request, fixed=("all",))
    while True:
        try:
            task = task_of(resolved(request))
            break
        except tasks.RefusedRequest as problem:
            given = problem.given.name if problem.given is not None and not problem.given.text else ""
            if given not in {*request.shapes, *request.numbers}:
                raise BadArgument(f"--reference {text}: {problem}") from None
        except BadArgument as problem:
            raise BadArgument(f"--reference {text}: {str(problem).removeprefix(f'{text}: ')}") from None
        # A parameter of the module: the kernel takes it too, and `forward` does not.
        left = [
            {name: one for name, one in all_.items() if name != given} for all_ in (request.shapes, request.numbers)
        ]
        request = replace(request, shapes=left[0], numbers=left[1])
    if task is None:
        raise BadArgument(f"--reference {text}: {WAYS}")
    return task


def _task_of_run(text: str) -> Task:
    try:
        return Store().open_run(text).load().task
    except (StoreError, NotAccepted):
        raise BadArgument(f"--reference {text}: there is no such file or run; {WAYS}") from None


_INDICES = (DType.I16, DType.I32, DType.I64)


def task_of_file(file: KernelFile, arguments: Mapping[str, ArgumentValue], gpu: GpuProfile) -> Task:
    """The task of a file without a reference. Equal sizes are assumed to be one dimension, which they mostly are.

    Raises `BadArgument` for an op with lists of numbers, `DoesNotApply` where the file does not take the call.
    """
    op = file.plan.op
    evaluation = evaluate(file, arguments, gpu)
    results = {one.name: one.spec for one in evaluation.buffers if one.name in op.results}
    specs = [value for value in (*arguments.values(), *results.values()) if isinstance(value, TensorSpec)]
    sizes = dict.fromkeys(size for spec in specs for size in spec.shape)
    names = {size: f"size{number}" for number, size in enumerate(sizes)}
    # A size that is given as a number too would not follow where its dimension is made smaller.
    fixed = any(isinstance(value, int) and value in sizes for value in arguments.values())
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
            Dimension(name, size, multiple_of=max(size, 1) if fixed else 1) for size, name in names.items()
        ),
        gpu=gpu.name,
    )


def task_of_reference(
    reference: tuple[Path, str], arguments: Mapping[str, ArgumentValue], device: ChosenDevice
) -> Task:
    """The task of a function in a file, at these arguments. Raises `RefusedRequest`."""
    path, function = reference
    shapes, numbers = argument_words(arguments)
    options = tasks.TaskOptions(gpu=device.gpu, allow_degenerate=True, resolve_precision=precision_settler(device))
    try:
        task = tasks.open_task(f"{path}:{function}", shapes, numbers, {}, options)
    except tasks.RefusedRequest as refusal:
        if refusal.given is None or refusal.given.text:
            raise
        # A parameter of the kernel, which was not given by that option.
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
    """Indices that are valid for every dimension; every value of a byte."""
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


# -- the cost of a reference where no GPU can time it --

MODEL_EAGER = "tilewright.frontends.api.references:model_eager"


@dataclass(frozen=True)
class EagerRequest:
    task: Task


@dataclass(frozen=True)
class EagerAnswer:
    time_us: float
    kernels: int


def model_eager(function: Callable[..., Any], request: EagerRequest) -> EagerAnswer:
    """A lower bound of a reference's time in eager PyTorch, run once on the meta device in the reference's child.

    Every operation that is no view takes a launch or its bytes at the bandwidth of a long copy, on a cold cache.
    """
    import torch

    from tilewright.frontends.finding.costs import modelled_us
    from tilewright.frontends.finding.recording import record_function
    from tilewright.measure.work import least_traffic
    from tilewright.reference.torch_calls import own_arguments

    gpu = request.task.profile
    arguments = own_arguments(request.task, "meta")
    with torch.device("meta"):
        operations = record_function(lambda: function(**arguments))
    times = [modelled_us(one, gpu) for one in operations]
    evicted = least_traffic(request.task, gpu).evicted_bytes
    evicted_us = evicted / (gpu.bandwidth_gbs * 1e3) if gpu.bandwidth_gbs else 0.0
    return EagerAnswer((sum(times) + evicted_us) / REACHED_BANDWIDTH, sum(time > 0 for time in times))
