"""Makes a task from a request: a folder (`task.toml`, `reference.py`), a file, a function, or a specification."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tilewright.records import (
    Dimension,
    NumberInput,
    Origin,
    ScalarType,
    Specification,
    Task,
    TaskInput,
    TensorInput,
    following,
)
from tilewright.reference import Reference, ReferenceProblem
from tilewright.reference.loading import searched_folders
from tilewright.tasks.drafts import Draft, TaskOptions, bounded_task, linted, make_task, probe_task
from tilewright.tasks.errors import ArgumentKind, GivenArgument, Remedy, RemedyKind, TaskError
from tilewright.tasks.reading import python_source
from tilewright.tasks.reading.description import Described, print_described, read_description
from tilewright.tasks.reading.modules import is_kernelbench, task_from_kernelbench, task_from_module
from tilewright.tasks.reading.parameters import SCALARS, match_arguments, read_number, read_shape, read_values
from tilewright.tasks.reading.python_source import (
    find_function,
    parameters_of,
    parse_source,
    read_source,
    result_names,
    with_neighbours,
)

DESCRIPTION_FILE = "task.toml"
REFERENCE_FILE = "reference.py"


def task_from_folder(
    path: Path,
    options: TaskOptions,
    shapes: Mapping[str, str] | None = None,
    numbers: Mapping[str, str] | None = None,
    values: Mapping[str, str] | None = None,
) -> Task:
    """A task from a folder. Its `task.toml` overrides options that have their defaults."""
    described = read_description(read_source(path / DESCRIPTION_FILE), str(path / DESCRIPTION_FILE))
    source, notes = with_neighbours(read_source(path / REFERENCE_FILE), str(path / REFERENCE_FILE), path)
    described = replace(described, assumptions=tuple(dict.fromkeys((*described.assumptions, *notes))))
    described = _as_given(described, shapes or {}, numbers or {}, values or {})
    return _make(described, source, _merged(options, described), Origin.FOLDER)


def task_from_specification(specification: Specification, options: TaskOptions) -> Task:
    """A task from an author's specification. This runs the reference, so a person must have accepted it."""
    for folder in searched_folders(specification.reference):
        raise TaskError(f"the reference reads modules from {folder}; have one written that needs no other file")
    described = read_description(specification.description)
    assumptions = tuple(dict.fromkeys((*specification.assumptions, *described.assumptions)))
    described = replace(described, assumptions=assumptions)
    merged = replace(options, allow_library=options.allow_library or bool(described.allow_library))
    return _make(described, specification.reference, merged, Origin.WORDS)


def fit_specification(
    specification: Specification, shapes: Mapping[str, str], numbers: Mapping[str, str], values: Mapping[str, str]
) -> Specification:
    """Put a person's shapes, numbers and values into a specification, without running it. Raises `TaskError`."""
    described = read_description(specification.description)
    given = _as_given(described, shapes, numbers, values)
    if given == described:
        return specification
    # The author's assumptions may name another number.
    asked = (f"{name} is {text}, as requested" for name, text in numbers.items())
    given = replace(given, assumptions=(*given.assumptions, *asked))
    return replace(specification, description=print_described(given))


def _merged(options: TaskOptions, described: Described) -> TaskOptions:
    usual = TaskOptions()
    changes = {
        name: value
        for name in ("gpu", "precision", "goal", "allow_library")
        if (value := getattr(described, name)) is not None and getattr(options, name) == getattr(usual, name)
    }
    return replace(options, **changes)


def _make(described: Described, source: str, options: TaskOptions, origin: Origin) -> Task:
    node = find_function(parse_source(source, REFERENCE_FILE), described.function, REFERENCE_FILE)
    draft = Draft(
        described.name,
        source,
        described.function,
        _inputs(described, node),
        tuple(described.dimensions.values()),
        described.unspecified,
        origin,
        described.results or result_names(node),
        described.assumptions,
        named=True,
    )
    in_place = any(one.in_place for one in described.tensors.values())
    returns = any(isinstance(one, ast.Return) and one.value is not None for one in ast.walk(node))
    with Reference(source, described.function) as reference:
        try:
            if described.outputs or (in_place and not returns):
                task = bounded_task(draft, described.outputs, options, reference)
            else:
                task = probe_task(draft, options, reference)
                if described.results and described.results != (names := tuple(one.name for one in task.outputs)):
                    found = f"`results` names {', '.join(described.results)}"
                    raise TaskError(f"{found} and the reference returns {len(names)} tensors")
            return linted(replace(task, words=described.words), options, reference)
        except ReferenceProblem as problem:
            raise TaskError(str(problem)) from problem


def _as_given(
    described: Described, shapes: Mapping[str, str], numbers: Mapping[str, str], values: Mapping[str, str]
) -> Described:
    """The description with a person's shapes, numbers and values."""
    described = _reshaped(described, shapes)
    inputs = dict(described.inputs)
    for name, text in numbers.items():
        inputs[name] = _renumbered(described, name, text)
    for name, text in values.items():
        one = _tensor(described, ArgumentKind.VALUES, name)
        inputs[name] = replace(one, values=read_values(name, one, text))
    return replace(described, inputs=inputs, unspecified=described.unspecified - values.keys())


def _tensor(described: Described, kind: ArgumentKind, name: str) -> TensorInput:
    """The tensor of that name."""
    if name not in described.tensors:
        found = f"the task has no such tensor; it has {', '.join(described.tensors)}"
        raise TaskError(found, given=GivenArgument(kind, name))
    return described.tensors[name]


def _renumbered(described: Described, name: str, text: str) -> int | float | bool:
    one = described.inputs.get(name)
    if one is None or isinstance(one, TensorInput):
        known = [key for key in described.inputs if key not in described.tensors]
        found = f"the task has no such number; it has {', '.join(known) or 'none'}"
        raise TaskError(found, given=GivenArgument(ArgumentKind.NUMBER, name))
    # An integer in the description may be the value of a float parameter.
    whole = type(one) is int and text.strip().lstrip("+-").isdecimal()
    scalar = ScalarType.FLOAT if type(one) is int and not whole else SCALARS[type(one)]
    try:
        return read_number(text, scalar)
    except ValueError as error:
        raise TaskError(f"{name} takes {error}", given=GivenArgument(ArgumentKind.NUMBER, name, text)) from None


def _reshaped(described: Described, shapes: Mapping[str, str]) -> Described:
    """The description with a person's shapes and dtypes."""
    dimensions = dict(described.dimensions)
    inputs = dict(described.inputs)
    changed: dict[str, str] = {}  # dimension -> the tensor whose shape set it
    for name, text in shapes.items():
        one, given = _tensor(described, ArgumentKind.SHAPE, name), GivenArgument(ArgumentKind.SHAPE, name, text)
        spec = read_shape(name, text)
        if len(spec.shape) != len(one.dimensions):
            wanted = "x".join(one.dimensions) or "no sizes"
            raise TaskError(f"{name} has {len(one.dimensions)} dimensions here, {wanted}", given=given)
        for axis, size in zip(one.dimensions, spec.shape, strict=True):
            if axis in changed and dimensions[axis].size != size:
                found = f"{axis} would be {size} here and {dimensions[axis].size} in {changed[axis]}"
                raise TaskError(found, given=given)
            dimensions[axis] = _resized(dimensions[axis], size)
            changed[axis] = name
        inputs[name] = replace(one, dtype=spec.dtype)
    dimensions = _followed(dimensions, changed, shapes)
    redone = any(inputs[name] != described.inputs[name] for name in shapes)
    # Another input dtype may change the outputs, so they are probed again.
    outputs = () if redone else described.outputs
    names = tuple(one.name for one in described.outputs) if redone else ()
    return replace(described, dimensions=dimensions, inputs=inputs, outputs=outputs, results=names or described.results)


def _resized(one: Dimension, size: int) -> Dimension:
    multiple = one.multiple_of if size % one.multiple_of == 0 else 1
    most = one.at_most if one.at_most is None else max(one.at_most, size)
    return replace(one, size=size, multiple_of=multiple, at_least=max(min(one.at_least, size), 1), at_most=most)


def _followed(
    dimensions: dict[str, Dimension], changed: Mapping[str, str], shapes: Mapping[str, str]
) -> dict[str, Dimension]:
    """Recompute the dimensions given by formulas; raises if a given shape contradicts them."""
    made = dict(dimensions)
    for one in dimensions.values():
        if one.formula is None or one.name not in changed:
            continue
        # A dimension without a given size may be solved for.
        for name in one.formula.names:
            sizes = {other.name: other.size for other in made.values()}
            wanted = one.formula.solved(name, one.size, sizes) if name not in changed else None
            if wanted is not None and one.formula.at(sizes) != one.size:
                made[name] = _resized(made[name], wanted)
    try:
        made = {one.name: one for one in following(tuple(made.values()))}
    except ValueError as error:
        raise TaskError(f"the shapes do not fit: {error}") from None
    for name, tensor in changed.items():
        if made[name].size != dimensions[name].size:
            raise TaskError(
                f"{name} is {made[name].formula}, which is {made[name].size} and not {dimensions[name].size} at the "
                "other shapes; give shapes that agree",
                given=GivenArgument(ArgumentKind.SHAPE, tensor, shapes[tensor]),
            )
    return made


def _inputs(described: Described, node: ast.FunctionDef) -> tuple[TaskInput, ...]:
    """The inputs of the task, before probing."""
    parameters = {one.name: one for one in parameters_of(node, REFERENCE_FILE)}
    for name in described.inputs:
        if name not in parameters:
            raise TaskError(f"[inputs] has {name}, and {node.name} takes {', '.join(parameters) or 'nothing'}")
    for one in parameters.values():
        if one.default is None and one.name not in described.inputs:
            raise TaskError(f"{node.name} takes {one.name}, which [inputs] does not have")
    made: list[TaskInput] = []
    for name, given in described.inputs.items():
        if isinstance(given, TensorInput):
            made.append(given)
            continue
        default = parameters[name].value
        scalar = SCALARS[type(given)]
        if scalar is ScalarType.INT and (type(default) is float or parameters[name].annotation == "float"):
            scalar, given = ScalarType.FLOAT, float(given)
        made.append(NumberInput(name, scalar, given, type(default) in SCALARS and default == given))
    return tuple(made)


# -- requests --

_LONGEST_PATH = 1000
_FILE = re.compile(r"(?P<path>.*\.py)(?::(?P<name>\w+)(?:\((?P<init>.*)\))?)?", re.DOTALL)


def open_task(
    request: str,
    shapes: Mapping[str, str],
    numbers: Mapping[str, str],
    values: Mapping[str, str],
    options: TaskOptions,
) -> Task | None:
    """The task that a request names; None for a request in words.

    `FILE.py:function`, `FILE.py:Class`, `FILE.py:Class(8, eps=1e-5)`, `FILE.py` of KernelBench or with one function,
    or a folder with a `task.toml`.
    """
    request = request.strip()
    if not request:
        raise TaskError("the request is empty; give FILE.py:FUNCTION, a folder, or words")
    place = Path(request).expanduser()
    if "\n" not in request and len(request) < _LONGEST_PATH and place.is_dir():
        if (place / DESCRIPTION_FILE).is_file():
            return task_from_folder(place, options, shapes, numbers, values)
        raise TaskError(
            f"{request} is a folder without {DESCRIPTION_FILE}; see docs/tasks.md, or say in more words what is wanted"
        )
    found = _FILE.fullmatch(request)
    if found is None:
        _refuse_broken_name(request)
        return None
    path = Path(found["path"]).expanduser()
    if not path.is_file():
        if re.search(r"\s", found["path"]):
            return None
        raise TaskError(f"{path}: no such file; give FILE.py:FUNCTION, a folder, or words")
    return _from_file(path, found["name"], found["init"], shapes, numbers, values, options)


def _refuse_broken_name(request: str) -> None:
    """Refuse an existing file followed by a malformed name; as words it would go to a paid model."""
    path, colon, name = request.partition(".py:")
    if not colon or "\n" in path or not Path(f"{path}.py").expanduser().is_file():
        return
    if name.count("(") > name.count(")"):
        raise TaskError(f"{request}: a bracket is not closed; write {path}.py:CLASS(ARGUMENTS)")
    raise TaskError(
        f"{request}: {name.strip()!r} is no name in a file; write {path}.py:FUNCTION or {path}.py:CLASS(ARGUMENTS)"
    )


def _from_file(
    path: Path,
    name: str | None,
    init: str | None,
    shapes: Mapping[str, str],
    numbers: Mapping[str, str],
    values: Mapping[str, str],
    options: TaskOptions,
) -> Task:
    source = python_source.read_source(path)
    functions, classes = python_source.defined_names(python_source.parse_source(source, str(path)))
    if name is None or (name == "Model" and init is None and not shapes):
        if is_kernelbench(source, str(path)):
            for kind, names in ((ArgumentKind.SHAPE, shapes), (ArgumentKind.NUMBER, numbers)):
                for extra in names:
                    found = "a KernelBench problem defines that itself; edit it there"
                    raise TaskError(found, given=GivenArgument(kind, extra))
            return task_from_kernelbench(path, options, values)
        public = [one for one in functions if not one.startswith("_")]
        if name is None and len(public) != 1:
            listed = ", ".join((*public, *classes)) or "nothing"
            raise TaskError(f"{path} defines {listed}; say which: {path}:NAME")
        name = name or public[0]
    bound = python_source.bound_names(python_source.parse_source(source, str(path)))
    if name in classes or (name in bound and name not in functions):  # a class may be imported
        return task_from_module(path, name, init or "", shapes, options, numbers, values)
    if init is not None:
        raise TaskError(f"{path}:{name} is no class, so it takes no arguments here", Remedy(RemedyKind.GIVE_ARGUMENTS))
    return task_from_source(source, name, shapes, numbers, options, values, where=str(path), folder=path.parent)


def task_from_source(
    source: str,
    function: str,
    shapes: Mapping[str, str],
    numbers: Mapping[str, str],
    options: TaskOptions,
    values: Mapping[str, str] | None = None,
    *,
    where: str = "the source",
    folder: Path | None = None,
) -> Task:
    """A task from a function in a source. Shapes are texts such as `4096x1024:bf16`, numbers such as `1e-5`."""
    node = python_source.find_function(python_source.parse_source(source, where), function, where)
    source, notes = python_source.with_neighbours(python_source.needed_source(source, {function}), where, folder)
    arguments = match_arguments(
        source, function, python_source.parameters_of(node, where), shapes, numbers, values or {}
    )
    draft = Draft(
        python_source.usable_name(function),
        arguments.source,
        arguments.function,
        arguments.inputs,
        arguments.dimensions,
        arguments.unspecified,
        Origin.FUNCTION,
        python_source.result_names(node),
        notes,
    )
    return make_task(draft, options)
