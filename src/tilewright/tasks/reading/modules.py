"""Makes a task from an nn.Module or a KernelBench problem; its parameters become inputs of a function."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tilewright.records import Dimension, NormalValues, NumberInput, Origin, Task, TaskInput, TensorInput, UniformValues
from tilewright.reference import Reference, ReferenceProblem
from tilewright.tasks import questions
from tilewright.tasks.drafts import Draft, TaskOptions, axes_of, probe_task, with_lint_result, with_precision
from tilewright.tasks.errors import ArgumentKind, GivenArgument, TaskError
from tilewright.tasks.questions import lint_reference
from tilewright.tasks.reading import python_source
from tilewright.tasks.reading.parameters import SCALARS, match_arguments, read_values
from tilewright.tasks.reading.python_source import usable_name

_ALL_POSITIVE = "the result equals it for positive numbers, and get_inputs draws no others"
KERNELBENCH_NAMES = ("Model", "get_inputs", "get_init_inputs")


def is_kernelbench(source: str, where: str) -> bool:
    functions, classes = python_source.defined_names(python_source.parse_source(source, where))
    return {*KERNELBENCH_NAMES} <= {*functions, *classes}


def task_from_kernelbench(path: Path, options: TaskOptions, values: Mapping[str, str] | None = None) -> Task:
    """A task from a file with `Model`, `get_inputs` and `get_init_inputs`. The module stays in training mode.

    `values` override those of `get_inputs` and of the initialised parameters.
    """
    source = python_source.read_source(path)
    if not is_kernelbench(source, str(path)):
        raise TaskError(f"{path} is no KernelBench problem: it must define {', '.join(KERNELBENCH_NAMES)}")
    maker = _ModuleMaker(source, path, "Model", "Model(*get_init_inputs())", Origin.KERNELBENCH)
    answer = maker.describe("get_inputs()", options)
    forward, rest = answer.forward[: len(answer.inputs)], answer.forward[len(answer.inputs) :]
    if len(forward) != len(answer.inputs) or any(one.default is None for one in rest):
        raise TaskError(
            f"{path}: get_inputs gives {len(answer.inputs)} inputs and Model.forward takes {len(answer.forward)}"
        )
    given: list[TaskInput] = []
    for parameter, one in zip(forward, answer.inputs, strict=True):
        name = usable_name(parameter.name, (other.name for other in given), "x")
        if isinstance(one, questions.FoundNumber):
            given.append(NumberInput(name, SCALARS[type(one.value)], one.value, False))
            continue
        given.append(maker.input_of(name, one))
        if one.structure and name not in (values or {}):
            note = f"{name} is drawn element by element; {one.structure}"
            answer = replace(answer, assumptions=(*answer.assumptions, note))
    calls = {str(place): one.name for place, one in enumerate(given)}
    return maker.make(_problem_name(path), given, calls, answer, options, values or {})


def _problem_name(path: Path) -> str:
    """`11_4D_Sum_.py` is problem 11 and becomes `op_4d_sum`."""
    name = re.sub(r"^\d+_", "", path.stem.lower())
    return usable_name(f"op_{name}" if name[:1].isdigit() else name, fallback="model")


def task_from_module(
    path: Path,
    class_name: str,
    init: str,
    shapes: Mapping[str, str],
    options: TaskOptions,
    numbers: Mapping[str, str] | None = None,
    values: Mapping[str, str] | None = None,
) -> Task:
    """A task from an nn.Module in evaluation mode. `init` is the source text of its constructor arguments.

    `shapes` are those of the arguments of `forward`; the parameters come from the module.
    """
    source = python_source.read_source(path)
    build = f"{class_name}({init}).eval()"
    try:
        ast.parse(build, mode="eval")
    except SyntaxError:
        raise TaskError(f"{class_name}({init}) is not Python; write the constructor's arguments as in a call") from None
    source = python_source.needed_source(source, {class_name, *python_source.names_in(build)})
    maker = _ModuleMaker(source, path, class_name, build, Origin.MODULE)
    return _from_maker(maker, class_name, shapes, options, numbers or {}, values or {})


def task_from_module_source(
    source: str,
    class_name: str,
    build: str,
    shapes: Mapping[str, str],
    options: TaskOptions,
    numbers: Mapping[str, str],
    values: Mapping[str, str],
) -> Task:
    """A task from a self-contained source, in which the expression `build` makes the module.

    `values` may name parameters by their path.
    """
    maker = _ModuleMaker(source, Path(class_name), build.partition("(")[0], build, Origin.MODULE, folder=None)
    return _from_maker(maker, class_name, shapes, options, numbers, values)


def _from_maker(
    maker: _ModuleMaker,
    class_name: str,
    shapes: Mapping[str, str],
    options: TaskOptions,
    numbers: Mapping[str, str],
    values: Mapping[str, str],
) -> Task:
    answer = maker.describe("", options)
    own = {one.name for one in answer.parameters}
    of_parameters = {name: text for name, text in values.items() if name in own}
    of_arguments = {name: text for name, text in values.items() if name not in own}
    shapes = _only_argument(answer.forward, shapes, numbers)
    arguments = match_arguments("", class_name, answer.forward, shapes, numbers, of_arguments)
    maker.dimensions |= {one.name: one for one in arguments.dimensions}
    maker.unspecified |= arguments.unspecified
    calls = {own: name for name, own in arguments.called.items()}
    calls |= {own: repr(value) for own, value in arguments.closed.items()}
    name = usable_name(_snake(class_name))
    task = maker.make(name, list(arguments.inputs), calls, answer, options, of_parameters)
    return replace(task, assumptions=(*task.assumptions, f"{class_name} is in evaluation mode"))


def _only_argument(
    forward: tuple[python_source.SourceParameter, ...], shapes: Mapping[str, str], numbers: Mapping[str, str]
) -> Mapping[str, str]:
    """If one shape is given and one argument is required, they belong together whatever the name."""
    wanted = [one.name for one in forward if one.default is None and one.name not in numbers]
    if len(shapes) == 1 and len(wanted) == 1 and not shapes.keys() & {one.name for one in forward}:
        return {wanted[0]: next(iter(shapes.values()))}
    return shapes


class _ModuleMaker:
    """Turns a module into a function of its inputs and parameters. `name` is defined in the source."""

    def __init__(
        self, source: str, path: Path, name: str, build: str, origin: Origin, folder: Path | None = Path()
    ) -> None:
        beside = None if folder is None else path.parent
        self._source, self._notes = python_source.with_neighbours(source, str(path), beside)
        self._path = path
        self._class = name
        self._build = build
        self._origin = origin
        self.dimensions: dict[str, Dimension] = {}
        self.unspecified: set[str] = set()  # tensors without values
        bound = python_source.bound_names(python_source.parse_source(source, str(path)))
        if name not in bound:
            raise TaskError(f"{path} has no {name!r}; it has {', '.join(sorted(bound)) or 'nothing'}")
        self._function = usable_name("reference", bound)

    def describe(self, inputs: str, options: TaskOptions) -> questions.ModuleAnswer:
        options.precheck(self._source, self._class)
        with Reference(self._source, self._class) as reference:
            try:
                request = questions.ModuleRequest(self._build, inputs)
                return reference.call(questions.DESCRIBE, request, questions.ModuleAnswer, questions.ANSWER_SECONDS)
            except ReferenceProblem as problem:
                raise TaskError(f"{self._path}: {problem}") from problem

    def input_of(self, name: str, found: questions.FoundTensor) -> TensorInput:
        """A tensor that was found, as an input of the op."""
        self.unspecified |= {name} if found.values is None else set()
        axes = axes_of(found.shape, self.dimensions)
        return TensorInput(name, found.dtype, axes, found.values or NormalValues(), parameter=found.learned)

    def make(
        self,
        name: str,
        given: list[TaskInput],
        calls: Mapping[str, str],
        answer: questions.ModuleAnswer,
        options: TaskOptions,
        values: Mapping[str, str],
    ) -> Task:
        """The task. Parameters that no output depends on stay inside the module.

        Running statistics that the file does not name are set to None: their sizes would make input sizes static.
        """
        kept, notes = list(answer.parameters), answer.assumptions
        absent = [one.name for one in kept if one.statistic and "running_" not in self._source]
        if absent:
            kept = [one for one in kept if one.name not in absent]
            values = {name: text for name, text in values.items() if name not in absent}
            notes = (*notes, _idle_note(absent))
        drawn = {one.name: one for one in given if isinstance(one, TensorInput) and one.name not in values}
        given, named = self._filled(given, self._named(kept, [one.name for one in given]), values)
        while True:
            draft = self._draft(name, given, _Wiring(calls, named, absent, answer.held), notes)
            with Reference(draft.source, draft.function) as reference:
                try:
                    task = probe_task(draft, options, reference)
                    found = lint_reference(task, reference)
                except ReferenceProblem as problem:
                    raise TaskError(f"{self._path}: {problem}") from problem
                copied = drawn.pop(found.copied, None)
                if copied is not None and isinstance(copied.values, UniformValues) and copied.values.low >= 0:
                    # A ReLU of numbers between 0 and 1 would be the identity.
                    given = [replace(copied, values=NormalValues()) if one == copied else one for one in given]
                    notes = (*notes, f"{copied.name} is drawn from a normal distribution: {_ALL_POSITIVE}")
                    continue
                idle = [own for own, one in named.items() if one.name in found.idle]
                if not idle or any(one.name in found.idle for one in given):
                    # If not even an input matters, the drawn values hide what the module computes: keep all.
                    return with_precision(with_lint_result(task, found, options), options, reference)
            named = {own: one for own, one in named.items() if own not in idle}
            notes = (*notes, _idle_note(idle))

    def _named(self, found: list[questions.FoundTensor], taken: list[str]) -> dict[str, TensorInput]:
        """Parameters by path, renamed for the op: `conv.weight` becomes `conv_weight`."""
        named: dict[str, TensorInput] = {}
        for one in found:
            others = (*taken, *(other.name for other in named.values()))
            named[one.name] = self.input_of(usable_name(one.name.replace(".", "_"), others, "weight"), one)
        return named

    def _filled(
        self, given: list[TaskInput], named: dict[str, TensorInput], values: Mapping[str, str]
    ) -> tuple[list[TaskInput], dict[str, TensorInput]]:
        """Inputs and parameters with a person's values."""
        known = {one.name: one for one in (*given, *named.values()) if isinstance(one, TensorInput)}
        called = {own: one.name for own, one in named.items()}
        values = {called.get(name, name): text for name, text in values.items()}
        for name, text in values.items():
            if name not in known:
                found = f"the problem has no such tensor; it has {', '.join(known)}"
                raise TaskError(found, given=GivenArgument(ArgumentKind.VALUES, name))
            known[name] = replace(known[name], values=read_values(name, known[name], text))
        self.unspecified -= values.keys()
        return [known.get(one.name, one) for one in given], {own: known[one.name] for own, one in named.items()}

    def _draft(
        self,
        name: str,
        given: list[TaskInput],
        wiring: _Wiring,
        notes: tuple[str, ...],
    ) -> Draft:
        inputs = (*given, *wiring.named.values())
        return Draft(
            name,
            self._source.rstrip("\n") + "\n\n\n" + self._wrapper(inputs, wiring),
            self._function,
            inputs,
            tuple(self.dimensions.values()),
            frozenset(self.unspecified),
            self._origin,
            assumptions=(*self._notes, *notes),
        )

    def _wrapper(self, inputs: tuple[TaskInput, ...], wiring: _Wiring) -> str:
        calls = wiring.calls
        held = [f"{own!r}: {one.name}{'' if one.parameter else '.clone()'}" for own, one in wiring.named.items()]
        first = next(one.name for one in inputs if isinstance(one, TensorInput))
        masks = [f"{own!r}: _MODULE.get_buffer({own!r}).to({first}.device)" for own in wiring.masks]
        state = ", ".join([*held, *masks, *(f"{own!r}: None" for own in wiring.absent)])
        positional = ", ".join(value for own, value in calls.items() if own.isdigit())
        keywords = ", ".join(f"{own!r}: {value}" for own, value in calls.items() if not own.isdigit())
        return (
            "# The module as a function of its inputs and parameters.\n"
            "import torch as _torch\n\n"
            "_torch.manual_seed(0)\n"
            f"_MODULE = {self._build}\n\n\n"
            f"def {self._function}({', '.join(one.name for one in inputs)}):\n"
            f"    state = {{{state}}}\n"
            f"    return _torch.func.functional_call(_MODULE, state, ({positional}{',' if positional else ''}), "
            f"{{{keywords}}})\n"
        )


@dataclass(frozen=True)
class _Wiring:
    """How inputs reach a module."""

    calls: Mapping[str, str]  # argument of `forward`, by name or position -> input or constant
    named: dict[str, TensorInput]  # by the path of the parameter or buffer
    absent: list[str]  # statistics that are set to None
    masks: tuple[str, ...]  # buffers that stay in the module


@dataclass(frozen=True)
class ModuleCall:
    """Where the inputs of a module's task come from: arguments by name, parameters by path."""

    arguments: dict[str, str]  # input -> argument
    state: dict[str, str]  # input -> path
    held: dict[str, object]  # arguments with constant values


def module_call(task: Task) -> ModuleCall | None:
    """Read the wrapper at the end of a module's reference; None for any other task."""
    if task.origin is not Origin.MODULE:
        return None
    node = python_source.find_function(ast.parse(task.reference), task.function, "the reference")
    state, call = node.body
    if not isinstance(state, ast.Assign) or not isinstance(call, ast.Return) or not isinstance(call.value, ast.Call):
        return None
    wired, keywords = state.value, call.value.args[3]
    assert isinstance(wired, ast.Dict)
    assert isinstance(keywords, ast.Dict)
    inputs = {one.name for one in task.inputs}
    found = ModuleCall({}, {}, {})
    for key, value in _pairs(wired):
        name = next((one.id for one in ast.walk(value) if isinstance(one, ast.Name) and one.id in inputs), "")
        if not any(isinstance(one, ast.Name) and one.id == "_MODULE" for one in ast.walk(value)) and name:
            found.state[name] = key
    for key, value in _pairs(keywords):
        if isinstance(value, ast.Name) and value.id in inputs:
            found.arguments[value.id] = key
        else:
            found.held[key] = ast.literal_eval(value)
    return found


def _pairs(node: ast.Dict) -> list[tuple[str, ast.expr]]:
    return [
        (key.value, value)
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    ]


def _idle_note(names: list[str]) -> str:
    if len(names) == 1:
        return f"{names[0]} of the module changes no output and is not an input"
    return f"{questions.some_of(names)} of the module change no output and are no inputs"


def _snake(name: str) -> str:
    return "".join(
        f"_{letter.lower()}" if letter.isupper() and position and not name[position - 1].isupper() else letter.lower()
        for position, letter in enumerate(name)
    )
