"""What `check --reference` names: a function in a file, a module in one, a KernelBench file, or the run that made it.

All but the first become a text of their own with a function of the op's parameters, as they do for `make`.
"""

from __future__ import annotations

import ast
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tilewright import tasks
from tilewright.frontends.api.choices import ChosenDevice
from tilewright.frontends.api.judges import settling_on
from tilewright.frontends.api.requests import loaded
from tilewright.frontends.cli.program import split_reference
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
from tilewright.store import Store, StoreError
from tilewright.tasks.errors import BadArgument

_WRITE = "write FILE.py:FUNCTION, FILE.py:MODULE(ARGUMENTS), a KernelBench FILE.py or the name of the run that made it"


@contextmanager
def named_reference(text: str, arguments: Mapping[str, ArgumentValue]) -> Iterator[tuple[Path, str]]:
    """The file and the function in it; `arguments` are those of the call that is checked."""
    place, colon, name = text.strip().partition(".py:")
    path = Path(f"{place}.py").expanduser() if colon else Path(text)
    known = path.suffix == ".py" and path.is_file()
    module = _class(path, name.partition("(")[0]) if known else None
    if known and not colon and "def get_inputs" not in path.read_text(encoding="utf-8"):
        raise BadArgument(f"--reference {text}: {_WRITE}")
    if colon and module is None and "(" not in name:
        yield split_reference(text)
        return
    task = _task(text, module, arguments) if known else _task_of_run(text)
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / (path.name if known else f"{task.name}.py")
        written.write_text(task.reference, encoding="utf-8")
        yield written, task.function


def _class(path: Path, name: str) -> ast.ClassDef | None:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, SyntaxError) as error:
        raise BadArgument(f"--reference {path} cannot be read as Python: {error}") from None
    return next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name), None)


def _task(text: str, module: ast.ClassDef | None, arguments: Mapping[str, ArgumentValue]) -> Task:
    """The task of a module or a problem file; the arguments that its `forward` takes have the sizes of the call."""
    methods = [one for one in (module.body if module else ()) if isinstance(one, ast.FunctionDef)]
    taken = [argument.arg for one in methods if one.name == "forward" for argument in one.args.args]
    given = {name: value for name, value in arguments.items() if name in taken}
    shapes = {name: _shape_words(spec) for name, spec in given.items() if isinstance(spec, TensorSpec)}
    numbers = {name: str(one) for name, one in given.items() if isinstance(one, (int, float)) and one is not None}
    try:
        task = tasks.open_task(text, shapes, numbers, {}, tasks.TaskOptions(allow_degenerate=True, fixed_all=True))
    except tasks.TaskError as problem:
        raise BadArgument(f"--reference {text}: {problem}") from None
    if task is None:
        raise BadArgument(f"--reference {text}: {_WRITE}")
    return task


def _task_of_run(text: str) -> Task:
    try:
        run = loaded(Store().open_run(text.strip()))
    except StoreError:
        run = None
    if run is None:
        raise BadArgument(f"--reference {text}: there is no such file or run; {_WRITE}")
    return run.task


def _shape_words(spec: TensorSpec) -> str:
    return f"{'x'.join(map(str, spec.shape))}:{spec.dtype.value}"


# -- the task of a kernel file that somebody has: --

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
    options = tasks.TaskOptions(gpu=device.gpu, allow_degenerate=True, resolve_precision=settling_on(device))
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
