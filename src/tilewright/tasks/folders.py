"""A task from a folder (`task.toml`, `reference.py`) or from an author's answer to words; and writing a folder."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tilewright.records import (
    Dimension,
    NormalValues,
    NumberInput,
    Origin,
    ScalarType,
    Specification,
    Task,
    TaskOutput,
    TensorInput,
    following,
)
from tilewright.reference import Reference, ReferenceProblem
from tilewright.tasks.arguments import GivenInput, GivenTensor, read_fill, read_number, read_shape
from tilewright.tasks.description import (
    Described,
    DescribedTensor,
    print_described,
    print_description,
    read_description,
)
from tilewright.tasks.functions import read_source, with_neighbours
from tilewright.tasks.kinds import classify, kind_of
from tilewright.tasks.making import PROBE_SECONDS, Draft, assemble, held, linted
from tilewright.tasks.naming import following_names, output_names
from tilewright.tasks.options import TaskError, TaskOptions
from tilewright.tasks.probing_records import PROBE, ProbeAnswer, ProbedDimension, ProbeRequest, ProbeTensor
from tilewright.tasks.source import Literal, find_function, parameters_of, parse_source, result_names

DESCRIPTION_FILE = "task.toml"
REFERENCE_FILE = "reference.py"
_SCALARS = {bool: ScalarType.BOOL, int: ScalarType.INT, float: ScalarType.FLOAT}


def task_from_folder(
    path: Path,
    options: TaskOptions,
    shapes: Mapping[str, str] | None = None,
    numbers: Mapping[str, str] | None = None,
    values: Mapping[str, str] | None = None,
) -> Task:
    """A task from a folder. What its `task.toml` asks for holds where the options have the usual."""
    described = read_description(read_source(path / DESCRIPTION_FILE), str(path / DESCRIPTION_FILE))
    source, notes = with_neighbours(read_source(path / REFERENCE_FILE), str(path / REFERENCE_FILE), path)
    described = replace(described, assumptions=tuple(dict.fromkeys((*described.assumptions, *notes))))
    described = _as_given(described, shapes or {}, numbers or {}, values or {})
    return _make(described, source, _merged(options, described), Origin.FOLDER)


def task_from_specification(specification: Specification, options: TaskOptions) -> Task:
    """A task from an author's answer to words. It runs the reference: call it only once a person has agreed to that."""
    described = read_description(specification.description)
    assumptions = tuple(dict.fromkeys((*specification.assumptions, *described.assumptions)))
    described = replace(described, assumptions=assumptions)
    merged = replace(options, allow_library=options.allow_library or bool(described.allow_library))
    return _make(described, specification.reference, merged, Origin.WORDS)


def fit_specification(
    specification: Specification, shapes: Mapping[str, str], numbers: Mapping[str, str], values: Mapping[str, str]
) -> Specification:
    """An author's answer with what the person gave in it. Raises `TaskError` where it has no place for that.

    It runs nothing.
    """
    described = read_description(specification.description)
    given = _as_given(described, shapes, numbers, values)
    if given == described:
        return specification
    # An assumption of the author's may name another number than the person gave.
    asked = (f"{name} is {text}, as was asked for" for name, text in numbers.items())
    given = replace(given, assumptions=(*given.assumptions, *asked))
    return replace(specification, description=print_described(given))


def write_task_folder(task: Task, path: Path) -> None:
    """Write a folder from which `task_from_folder` makes the same task."""
    path.mkdir(parents=True, exist_ok=True)
    (path / REFERENCE_FILE).write_text(task.reference, encoding="utf-8", newline="")
    (path / DESCRIPTION_FILE).write_text(print_description(task), encoding="utf-8", newline="")


def _merged(options: TaskOptions, described: Described) -> TaskOptions:
    usual = TaskOptions()
    changes = {
        name: value
        for name in ("gpu", "precision", "goal", "allow_library")
        if (value := getattr(described, name)) is not None and getattr(options, name) == getattr(usual, name)
    }
    return replace(options, **changes)


def _make(
    described: Described,
    source: str,
    options: TaskOptions,
    origin: Origin,
) -> Task:
    node = find_function(parse_source(source, REFERENCE_FILE), described.function, REFERENCE_FILE)
    inputs = _inputs(described, node)
    with Reference(source, described.function) as reference:
        try:
            if described.outputs or (_in_place(described) and not _returns(node)):
                task = _plain(described, source, inputs, options, origin)
            else:
                task = _probed(described, source, node, inputs, options, origin, reference)
            return linted(replace(task, words=described.words), options, reference)
        except ReferenceProblem as problem:
            raise TaskError(str(problem)) from problem


def _in_place(described: Described) -> bool:
    return any(isinstance(one, DescribedTensor) and "inplace" in one.marks for one in described.inputs.values())


def _returns(node: ast.FunctionDef) -> bool:
    return any(isinstance(one, ast.Return) and one.value is not None for one in ast.walk(node))


def _as_given(
    described: Described, shapes: Mapping[str, str], numbers: Mapping[str, str], values: Mapping[str, str]
) -> Described:
    """The description with what a person gave in place of what it says."""
    described = _reshaped(described, shapes)
    inputs = dict(described.inputs)
    for name, text in numbers.items():
        inputs[name] = _renumbered(described, name, text)
    for name, text in values.items():
        one = inputs.get(name)
        if not isinstance(one, DescribedTensor):
            raise TaskError(f"--fill {name}: the task has no such tensor; it has {', '.join(_tensors(described))}")
        inputs[name] = replace(one, values=read_fill(name, one.dtype, text))
    return replace(described, inputs=inputs)


def _renumbered(described: Described, name: str, text: str) -> int | float | bool:
    one = described.inputs.get(name)
    if one is None or isinstance(one, DescribedTensor):
        known = [key for key in described.inputs if key not in _tensors(described)]
        raise TaskError(f"--set {name}: the task has no such number; it has {', '.join(known) or 'none'}")
    # A whole number in the description may stand for a parameter that takes any.
    whole = type(one) is int and text.strip().lstrip("+-").isdecimal()
    scalar = ScalarType.FLOAT if type(one) is int and not whole else _SCALARS[type(one)]
    try:
        return read_number(text, scalar)
    except ValueError as error:
        raise TaskError(f"--set {name}={text}: {name} takes {error}") from None


def _tensors(described: Described) -> list[str]:
    return [key for key, value in described.inputs.items() if isinstance(value, DescribedTensor)]


def _reshaped(described: Described, shapes: Mapping[str, str]) -> Described:
    """The description at the shapes and dtypes that a person gave."""
    dimensions = dict(described.dimensions)
    inputs = dict(described.inputs)
    changed: dict[str, str] = {}  # dimension -> the tensor whose shape set it
    for name, text in shapes.items():
        one = inputs.get(name)
        if not isinstance(one, DescribedTensor):
            raise TaskError(f"--shape {name}: the task has no such tensor; it has {', '.join(_tensors(described))}")
        spec = read_shape(name, text)
        if len(spec.shape) != len(one.axes):
            wanted = "x".join(one.axes) or "no sizes"
            raise TaskError(f"--shape {name}={text}: {name} has {len(one.axes)} dimensions here, {wanted}")
        for axis, size in zip(one.axes, spec.shape, strict=True):
            if axis in changed and dimensions[axis].size != size:
                raise TaskError(
                    f"--shape {name}={text}: {axis} would be {size} here and {dimensions[axis].size} in {changed[axis]}"
                )
            dimensions[axis] = _resized(dimensions[axis], size)
            changed[axis] = name
        inputs[name] = replace(one, dtype=spec.dtype)
    dimensions = _followed(dimensions, changed, shapes)
    redone = bool(shapes) and any(inputs[name] != described.inputs[name] for name in shapes)
    # Results of another dtype than was described are found out again.
    outputs = {} if redone else described.outputs
    results = tuple(described.outputs) if redone and described.outputs else described.results
    return replace(described, dimensions=dimensions, inputs=inputs, outputs=outputs, results=results)


def _resized(one: Dimension, size: int) -> Dimension:
    multiple = one.multiple_of if size % one.multiple_of == 0 else 1
    return replace(one, size=size, multiple_of=multiple, at_least=max(min(one.at_least, size), 1))


def _followed(
    dimensions: dict[str, Dimension], changed: Mapping[str, str], shapes: Mapping[str, str]
) -> dict[str, Dimension]:
    """The dimensions with what follows from those that were changed; raises where a shape says otherwise."""
    made = dict(dimensions)
    for one in dimensions.values():
        if one.formula is None or one.name not in changed:
            continue
        # A dimension that no shape gives may be told from one that follows from it.
        for name in one.formula.names:
            sizes = {other.name: other.size for other in made.values()}
            wanted = one.formula.solved(name, one.size, sizes) if name not in changed else None
            if wanted is not None and one.formula.at(sizes) != one.size:
                made[name] = _resized(made[name], wanted)
    try:
        made = {one.name: one for one in following(tuple(made.values()))}
    except ValueError as error:
        raise TaskError(f"--shape: {error}") from None
    for name, tensor in changed.items():
        if made[name].size != dimensions[name].size:
            raise TaskError(
                f"--shape {tensor}={shapes[tensor]}: {name} is {made[name].formula}, which is {made[name].size} "
                f"and not {dimensions[name].size} at the other shapes; give shapes that agree"
            )
    return made


def _inputs(described: Described, node: ast.FunctionDef) -> tuple[TensorInput | NumberInput, ...]:
    """The inputs as the task has them, but for what only running the reference tells."""
    parameters = {one.name: one for one in parameters_of(node, REFERENCE_FILE)}
    for name in described.inputs:
        if name not in parameters:
            raise TaskError(f"[inputs] has {name}, and {node.name} takes {', '.join(parameters) or 'nothing'}")
    for one in parameters.values():
        if one.default is None and one.name not in described.inputs:
            raise TaskError(f"{node.name} takes {one.name}, which [inputs] does not have")
    made: list[TensorInput | NumberInput] = []
    for name, given in described.inputs.items():
        if isinstance(given, DescribedTensor):
            made.append(
                TensorInput(
                    name,
                    given.dtype,
                    given.axes,
                    given.values or NormalValues(),
                    given.memory_order,
                    "inplace" in given.marks,
                    "optional" in given.marks,
                    "parameter" in given.marks,
                )
            )
            continue
        own = parameters[name].default
        default = own.value if isinstance(own, Literal) else None
        scalar = _SCALARS[type(given)]
        if scalar is ScalarType.INT and (type(default) is float or parameters[name].annotation == "float"):
            scalar, given = ScalarType.FLOAT, float(given)
        made.append(NumberInput(name, scalar, given, type(default) in _SCALARS and default == given))
    return tuple(made)


def _plain(
    described: Described,
    source: str,
    inputs: tuple[TensorInput | NumberInput, ...],
    options: TaskOptions,
    origin: Origin,
) -> Task:
    """The task as described in full."""
    dimensions = held(tuple(described.dimensions.values()), options)
    try:
        task = Task(
            described.name,
            source,
            described.function,
            inputs,
            tuple(TaskOutput(name, dtype, shape) for name, (dtype, shape) in described.outputs.items()),
            dimensions,
            gpu=options.gpu,
            precision=options.precision,
            goal=options.goal,
            allow_library=options.allow_library,
            origin=origin,
            assumptions=described.assumptions,
        )
    except ValueError as error:
        raise TaskError(str(error)) from None
    return replace(task, kind=classify(task))


def _probed(
    described: Described,
    source: str,
    node: ast.FunctionDef,
    inputs: tuple[TensorInput | NumberInput, ...],
    options: TaskOptions,
    origin: Origin,
    reference: Reference,
) -> Task:
    """The task with outputs, and which dimensions vary, from calling the reference. Its names are kept."""
    present = [one for one in inputs if isinstance(one, NumberInput) or not one.optional]
    given = tuple(_given(one, described) for one in present)
    request = ProbeRequest(
        tuple(
            ProbeTensor(one.name, one.dtype, one.dimensions, _described(described, one.name).values)
            for one in present
            if isinstance(one, TensorInput)
        ),
        tuple(one for one in present if isinstance(one, NumberInput)),
        tuple(_probed_dimension(one, options) for one in described.dimensions.values()),
        unlink=False,
    )
    answer: ProbeAnswer = reference.call(PROBE, request, ProbeAnswer, PROBE_SECONDS)
    wanted = described.results or result_names(node)
    results = output_names(len(answer.outputs), wanted, [one.name for one in inputs])
    if described.results and results != described.results:
        raise TaskError(
            f"`results` names {', '.join(described.results)} and the reference returns {len(results)} tensors"
        )
    draft = Draft(described.name, source, described.function, given, origin, assumptions=described.assumptions)
    names = {name: name for name in described.dimensions}
    tensors = [one.name for one in draft.tensors]
    avoid = [one.name for one in inputs] + list(results)
    kind = kind_of(source, described.function)
    names |= following_names(answer, tensors, results, kind, names, avoid)
    task = assemble(draft, answer, names, results, options)
    found = {one.name: one for one in task.inputs}
    merged = tuple(_with_marks(one, found.get(one.name)) for one in inputs)
    ordered = tuple(sorted(task.dimensions, key=lambda one: list(names.values()).index(one.name)))
    return replace(task, inputs=merged, dimensions=ordered)


def _probed_dimension(one: Dimension, options: TaskOptions) -> ProbedDimension:
    varies = one.varies and not options.fixed_all and one.name not in options.fixed
    return ProbedDimension(one.name, one.size, varies, one.multiple_of, one.formula, one.at_least)


def _described(described: Described, name: str) -> DescribedTensor:
    found = described.inputs[name]
    assert isinstance(found, DescribedTensor)
    return found


def _given(one: TensorInput | NumberInput, described: Described) -> GivenInput:
    if isinstance(one, NumberInput):
        return one
    shape = tuple(described.dimensions[axis].size for axis in one.dimensions)
    return GivenTensor(one.name, one.dtype, shape, _described(described, one.name).values, one.parameter)


def _with_marks(one: TensorInput | NumberInput, found: TensorInput | NumberInput | None) -> TensorInput | NumberInput:
    """An input with what probing found of it."""
    if isinstance(one, TensorInput) and isinstance(found, TensorInput):
        return replace(one, values=found.values, in_place=found.in_place)
    return one
