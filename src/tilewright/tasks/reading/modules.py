"""A task from an nn.Module, or from a KernelBench problem file: parameters become inputs of a function."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tilewright.records import Dimension, NormalValues, NumberInput, Origin, Task, TaskInput, TensorInput, UniformValues
from tilewright.reference import Reference, ReferenceProblem
from tilewright.tasks import questions
from tilewright.tasks.drafts import Draft, TaskOptions, axes_of, probe_task, with_finding
from tilewright.tasks.errors import ArgumentKind, GivenArgument, TaskError
from tilewright.tasks.lint import examine
from tilewright.tasks.reading import python_source
from tilewright.tasks.reading.parameters import SCALARS, match_arguments, read_values
from tilewright.tasks.reading.python_source import usable_name

_ALL_POSITIVE = "the result equals it for numbers above 0, and get_inputs draws no others"
KERNELBENCH_NAMES = ("Model", "get_inputs", "get_init_inputs")


def is_kernelbench(source: str, where: str) -> bool:
    functions, classes = python_source.defined_names(python_source.parse_source(source, where))
    return {*KERNELBENCH_NAMES} <= {*functions, *classes}


def task_from_kernelbench(path: Path, options: TaskOptions, values: Mapping[str, str] | None = None) -> Task:
    """A task from a file with `Model`, `get_inputs` and `get_init_inputs`; the module stays in its training mode.

    `values` win over what `get_inputs` draws, and over how parameters were initialised.
    """
    source = python_source.read_source(path)
    if not is_kernelbench(source, str(path)):
        raise TaskError(f"{path} is no KernelBench problem: it must define {', '.join(KERNELBENCH_NAMES)}")
    maker = _ModuleMaker(source, path, "Model", "Model(*get_init_inputs())", Origin.KERNELBENCH)
    answer = maker.describe("get_inputs()")
    forward, rest = maker.forward[: len(answer.inputs)], maker.forward[len(answer.inputs) :]
    if len(forward) != len(answer.inputs) or any(one.default is None for one in rest):
        raise TaskError(
            f"{path}: get_inputs gives {len(answer.inputs)} inputs and Model.forward takes {len(maker.forward)}"
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
    calls = [one.name for one in given]
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
    """A task from an nn.Module in evaluation mode. `init` is the text between the brackets of its constructor.

    `shapes` are those of the arguments of `forward`; shapes and values of the parameters come from the module.
    """
    source = python_source.read_source(path)
    build = f"{class_name}({init}).eval()"
    try:
        ast.parse(build, mode="eval")
    except SyntaxError:
        raise TaskError(f"{class_name}({init}) is not Python; write the constructor's arguments as in a call") from None
    source = python_source.needed_source(source, {class_name, *python_source.names_in(build)})
    maker = _ModuleMaker(source, path, class_name, build, Origin.MODULE)
    arguments = match_arguments("", f"{class_name}.forward", maker.forward, shapes, numbers or {}, values or {})
    if arguments.source:
        raise TaskError(
            f"{class_name}.forward has arguments that are neither tensors nor numbers; wrap it in a function"
        )
    answer = maker.describe("")
    maker.dimensions |= {one.name: one for one in arguments.dimensions}
    maker.unsaid |= arguments.unsaid
    calls = [f"{one.name}={one.name}" for one in arguments.inputs]
    task = maker.make(usable_name(_snake(class_name)), list(arguments.inputs), calls, answer, options, {})
    return replace(task, assumptions=(*task.assumptions, f"{class_name} is in evaluation mode"))


class _ModuleMaker:
    """One class of one file on its way to a function of its inputs and parameters."""

    def __init__(self, source: str, path: Path, class_name: str, build: str, origin: Origin) -> None:
        self._source, self._notes = python_source.with_neighbours(source, str(path), path.parent)
        self._path = path
        self._class = class_name
        self._build = build
        self._origin = origin
        self.dimensions: dict[str, Dimension] = {}
        self.unsaid: set[str] = set()  # tensors whose values nobody knows
        tree = python_source.parse_source(source, str(path))
        functions, classes = python_source.defined_names(tree)
        if class_name not in classes:
            raise TaskError(f"{path} defines no class {class_name!r}; it has {', '.join(classes) or 'none'}")
        self._function = usable_name("reference", (*functions, *classes))
        self.forward = self._forward(tree)

    def _forward(self, tree: ast.Module) -> tuple[python_source.SourceParameter, ...]:
        node = next(one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == self._class)
        for one in node.body:
            if isinstance(one, ast.FunctionDef) and one.name == "forward":
                return python_source.parameters_of(one, str(self._path))[1:]
        raise TaskError(f"{self._path}: {self._class} defines no forward; write one, or a function that calls it")

    def describe(self, inputs: str) -> questions.ModuleAnswer:
        with Reference(self._source, self._class) as reference:
            try:
                request = questions.ModuleRequest(self._build, inputs)
                return reference.call(questions.DESCRIBE, request, questions.ModuleAnswer, questions.ANSWER_SECONDS)
            except ReferenceProblem as problem:
                raise TaskError(f"{self._path}: {problem}") from problem

    def input_of(self, name: str, found: questions.FoundTensor) -> TensorInput:
        """What was found, as an input of the op."""
        self.unsaid |= {name} if found.values is None else set()
        axes = axes_of(found.shape, self.dimensions)
        return TensorInput(name, found.dtype, axes, found.values or NormalValues(), parameter=found.learned)

    def make(
        self,
        name: str,
        given: list[TaskInput],
        calls: list[str],
        answer: questions.ModuleAnswer,
        options: TaskOptions,
        values: Mapping[str, str],
    ) -> Task:
        """The task; parameters that no output depends on stay inside the module.

        Statistics are taken out of it where the file does not name them, for their sizes would fix those of the inputs.
        """
        kept, notes = list(answer.parameters), answer.assumptions
        absent = [one.name for one in kept if one.statistic and "running_" not in self._source]
        if absent:
            kept = [one for one in kept if one.name not in absent]
            notes = (*notes, _idle_note(absent))
        drawn = {one.name: one for one in given if isinstance(one, TensorInput) and one.name not in values}
        given, named = self._filled(given, self._named(kept, [one.name for one in given]), values)
        while True:
            draft = self._draft(name, given, calls, named, absent, notes)
            with Reference(draft.source, draft.function) as reference:
                try:
                    task = probe_task(draft, options, reference)
                    found = examine(task, reference)
                except ReferenceProblem as problem:
                    raise TaskError(f"{self._path}: {problem}") from problem
            copied = drawn.pop(found.copied, None)
            if copied is not None and isinstance(copied.values, UniformValues) and copied.values.low >= 0:
                # A ReLU of numbers between 0 and 1 shows nothing; the problem is meant to.
                given = [replace(copied, values=NormalValues()) if one == copied else one for one in given]
                notes = (*notes, f"{copied.name} is drawn from a normal distribution: {_ALL_POSITIVE}")
                continue
            idle = [own for own, one in named.items() if one.name in found.idle]
            if not idle:
                return with_finding(task, found, options)
            named = {own: one for own, one in named.items() if own not in idle}
            notes = (*notes, _idle_note(idle))

    def _named(self, found: list[questions.FoundTensor], taken: list[str]) -> dict[str, TensorInput]:
        """Parameters under names of their own: `conv.weight` becomes `conv_weight`."""
        named: dict[str, TensorInput] = {}
        for one in found:
            others = (*taken, *(other.name for other in named.values()))
            named[one.name] = self.input_of(usable_name(one.name.replace(".", "_"), others, "weight"), one)
        return named

    def _filled(
        self, given: list[TaskInput], named: dict[str, TensorInput], values: Mapping[str, str]
    ) -> tuple[list[TaskInput], dict[str, TensorInput]]:
        """Inputs and parameters with the values that a person wants."""
        known = {one.name: one for one in (*given, *named.values()) if isinstance(one, TensorInput)}
        for name, text in values.items():
            if name not in known:
                found = f"the problem has no such tensor; it has {', '.join(known)}"
                raise TaskError(found, given=GivenArgument(ArgumentKind.VALUES, name))
            known[name] = replace(known[name], values=read_values(name, known[name].dtype, text))
        self.unsaid -= values.keys()
        return [known.get(one.name, one) for one in given], {own: known[one.name] for own, one in named.items()}

    def _draft(
        self,
        name: str,
        given: list[TaskInput],
        calls: list[str],
        named: dict[str, TensorInput],
        absent: list[str],
        notes: tuple[str, ...],
    ) -> Draft:
        inputs = (*given, *named.values())
        return Draft(
            name,
            self._source.rstrip("\n") + "\n\n\n" + self._wrapper(inputs, calls, named, absent),
            self._function,
            inputs,
            tuple(self.dimensions.values()),
            frozenset(self.unsaid),
            self._origin,
            assumptions=(*self._notes, *notes),
        )

    def _wrapper(
        self,
        inputs: tuple[TaskInput, ...],
        calls: list[str],
        named: dict[str, TensorInput],
        absent: list[str],
    ) -> str:
        held = [f"{own!r}: {one.name}{'' if one.parameter else '.clone()'}" for own, one in named.items()]
        state = ", ".join([*held, *(f"{own!r}: None" for own in absent)])
        positional = ", ".join(call for call in calls if "=" not in call)
        keywords = ", ".join(f"{name!r}: {value}" for name, _, value in (c.partition("=") for c in calls) if value)
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


def _idle_note(names: list[str]) -> str:
    if len(names) == 1:
        return f"{names[0]} of the module changes no output and is not an input"
    return f"{questions.some_of(names)} of the module change no output and are no inputs"


def _snake(name: str) -> str:
    return "".join(
        f"_{letter.lower()}" if letter.isupper() and position and not name[position - 1].isupper() else letter.lower()
        for position, letter in enumerate(name)
    )
