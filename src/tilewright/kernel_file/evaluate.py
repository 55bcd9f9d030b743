"""A kernel file at concrete shapes: choose a combination, then its buffers, maps and steps.

Pure: the result follows from the file, the arguments' shapes, strides, dtypes and scalars, the GPU's profile and the
choice. No pointer, content or clock is looked at, and nothing is built or launched here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tilewright.kernel_file.calls import Arguments, CallError
from tilewright.kernel_file.closures import Environment, Failure
from tilewright.kernel_file.compiled_plan import (
    BufferLine,
    CompiledPlan,
    ConstLine,
    LetLine,
    NeedLine,
    TuneLine,
    compiled_plan,
    out_lines,
)
from tilewright.kernel_file.late import LateExpressions
from tilewright.kernel_file.layout import is_dense, layout_problem
from tilewright.kernel_file.limits import buffer_problems
from tilewright.kernel_file.problems import Code, DoesNotApply, KernelFileError, Problem
from tilewright.kernel_file.search import Choice, ChoiceError, Search, buffer_value, need_problem
from tilewright.kernel_file.steps import Steps
from tilewright.kernel_file.syntax import KernelFile, Place
from tilewright.kernel_file.values import MapName, Tensor, show_value
from tilewright.records import (
    Buffer,
    BufferRole,
    BuildRequest,
    ConstantValue,
    GpuProfile,
    Launch,
    Step,
    TensorMap,
    TensorSpec,
)


@dataclass(frozen=True)
class Evaluation:
    """What a file does for one call: constants to build with, buffers to allocate, steps to run in order."""

    file: KernelFile
    gpu: GpuProfile
    choice: Choice
    constants: tuple[tuple[str, ConstantValue], ...]  # tunes and consts, in written order
    tensors: tuple[tuple[str, TensorSpec], ...]  # the tensors given
    buffers: tuple[Buffer, ...]
    maps: tuple[TensorMap, ...]  # of the launches that run
    steps: tuple[Step, ...]  # launches with an empty grid or a false `when` are left out
    late: LateExpressions = field(repr=False)

    def build_request(self) -> BuildRequest | None:
        """What to compile: the text, its constants, and each kernel launched, once; None where nothing is launched."""
        kernels = tuple(dict.fromkeys(step.kernel for step in self.steps if isinstance(step, Launch)))
        return BuildRequest(self.file.text, self.constants, kernels, self.gpu.arch, self.file.name) if kernels else None

    def late_values(self, scalars: Mapping[str, Any]) -> tuple[int | float | bool, ...]:
        """The late arguments for these scalars; raises `DoesNotApply` where a `let` fails on them."""
        return self.late.values(scalars)

    @property
    def constant_set(self) -> tuple[tuple[str, ConstantValue], ...]:
        """The `const` values that no `tune` choice has a part in: what the limit on builds per file counts."""
        plan = compiled_plan(self.file)
        counted = {line.directive.name for line in plan.lines if isinstance(line, ConstLine) and not line.tunes}
        return tuple(pair for pair in self.constants if pair[0] in counted)


@dataclass(frozen=True)
class Refused:
    """The file does not take the call. `hangs_on_late`: other scalars of no further weight might change that."""

    problem: Problem
    hangs_on_late: bool


def evaluate(file: KernelFile, arguments: Arguments, gpu: GpuProfile, choice: Choice | None = None) -> Evaluation:
    """The file at these arguments; raises `DoesNotApply`, or `KernelFileError` for an error in a step.

    `choice` fixes `tune` values; those it leaves out are searched in written order.
    """
    outcome = try_evaluate(file, arguments, gpu, choice)
    if isinstance(outcome, Refused):
        raise DoesNotApply(outcome.problem)
    return outcome


def try_evaluate(
    file: KernelFile, arguments: Arguments, gpu: GpuProfile, choice: Choice | None = None
) -> Evaluation | Refused:
    """`evaluate` with refusal as a value."""
    plan = compiled_plan(file)
    regular = plan.signature.arguments(arguments)
    refusal = _layout(file, plan, regular)
    if refusal is not None:
        return Refused(refusal, False)
    environment = _environment(file, plan, regular, gpu)
    search = Search(plan, environment, _checked_choice(plan, choice))
    for _ in search.found():
        return _finish(file, plan, regular, environment, gpu, search.choice())
    assert search.rejection is not None
    return Refused(search.rejection.problem, search.hangs_on_late)


def combinations(file: KernelFile, arguments: Arguments, gpu: GpuProfile) -> Iterator[dict[str, int | bool]]:
    """The choices whose needs hold for these arguments, in written order; none where the layout does not fit."""
    plan = compiled_plan(file)
    regular = plan.signature.arguments(arguments)
    if _layout(file, plan, regular) is not None:
        return
    search = Search(plan, _environment(file, plan, regular, gpu), {})
    for _ in search.found():
        yield search.choice()


def _checked_choice(plan: CompiledPlan, choice: Choice | None) -> Choice:
    known = {tune.name for tune in plan.tunes}
    unknown = [name for name in choice or () if name not in known]
    if unknown:
        raise ChoiceError(f"{unknown[0]} is not a `tune` of the file; it has {', '.join(sorted(known)) or 'none'}")
    return choice or {}


# -- the parts of an evaluation --


def _layout(file: KernelFile, plan: CompiledPlan, arguments: Mapping[str, Any]) -> Problem | None:
    for parameter in file.plan.op.parameters:
        if parameter.scalar is not None:
            continue
        spec = arguments[parameter.name]
        if spec is None:
            continue
        if not isinstance(spec, TensorSpec) or len(spec.shape) != len(spec.stride):
            raise CallError(f"{parameter.name} is described by a TensorSpec, found {spec!r}; give shape and stride")
        problem = layout_problem(parameter, spec, plan.accepts)
        if problem is not None:
            return problem
    return None


def _environment(
    file: KernelFile, plan: CompiledPlan, arguments: Mapping[str, Any], gpu: GpuProfile | None
) -> Environment:
    environment = Environment()
    if gpu is not None:
        environment["device"] = gpu
    for name, value in arguments.items():
        environment[name] = Tensor(name, value) if isinstance(value, TensorSpec) else value
    for name in plan.maps:
        environment[name] = MapName(name)
    return environment


def _finish(
    file: KernelFile,
    plan: CompiledPlan,
    arguments: Mapping[str, Any],
    environment: Environment,
    gpu: GpuProfile,
    choice: Choice,
) -> Evaluation:
    """A combination is chosen: from here on an error is an error."""
    if environment.failures:
        raise KernelFileError(tuple(failure.problem for failure in environment.failures.values()), file.name)
    constants = _constants(plan, environment)
    buffers = _buffers(file, plan, environment)
    steps = Steps(file, plan, environment, gpu)
    done = steps.run()
    return Evaluation(
        file=file,
        gpu=gpu,
        choice=choice,
        constants=constants,
        tensors=tuple((name, value) for name, value in arguments.items() if isinstance(value, TensorSpec)),
        buffers=buffers,
        maps=tuple(steps.maps.values()),
        steps=done,
        late=LateExpressions(file, plan, tuple(steps.late), environment),
    )


def _constants(plan: CompiledPlan, environment: Environment) -> tuple[tuple[str, ConstantValue], ...]:
    lines = (line for line in plan.lines if isinstance(line, (TuneLine, ConstLine)))
    return tuple((line.directive.name, environment[line.directive.name]) for line in lines)


def _buffers(file: KernelFile, plan: CompiledPlan, environment: Environment) -> tuple[Buffer, ...]:
    buffers: list[Buffer] = []
    problems: list[Problem] = []
    places: dict[str, Place] = {}
    for line in plan.lines:
        if not isinstance(line, BufferLine):
            continue
        directive = line.directive
        spec = environment[directive.name].spec
        places[directive.name] = directive.at
        buffers.append(Buffer(directive.name, directive.role, spec, directive.clearing))
        if line.stride is not None:
            problems.extend(_stride_problems(line, spec))
    problems.extend(buffer_problems(buffers, places))
    if problems:
        raise KernelFileError(tuple(problems), file.name)
    return tuple(buffers)


def _stride_problems(line: BufferLine, spec: TensorSpec) -> Iterator[Problem]:
    at = line.directive.at
    stride, name = show_value(spec.stride), line.directive.name
    if len(spec.stride) != spec.ndim or any(type(step) is not int for step in spec.stride):
        found = f"{name}: stride {stride} for sizes {show_value(spec.shape)}"
        yield Problem(Code.OUT, at.line, at.column, found, "give one int for each dimension")
    elif not is_dense(spec):
        found = f"{name}: {spec} with stride {stride} has gaps or overlaps"
        yield Problem(Code.OUT, at.line, at.column, found, "an output fills its memory; permute contiguous strides")


# -- results --


def out_specs(file: KernelFile, arguments: Arguments, check_needs: bool = True) -> tuple[TensorSpec, ...]:
    """The op's results at these arguments, without choosing a `tune` or knowing the device.

    Raises `DoesNotApply` where a line they depend on fails or, with `check_needs`, a `need` that hangs on neither
    tune nor device is false.
    """
    plan = compiled_plan(file)
    environment = _environment(file, plan, plan.signature.arguments(arguments), None)
    unknown = {"device", *(tune.name for tune in plan.tunes)}
    for line in plan.lines:
        if isinstance(line, TuneLine) or line.origins & unknown:
            continue
        problem = _out_line(line, environment, check_needs)
        if problem is not None:
            raise DoesNotApply(problem)
    specs: dict[str, TensorSpec] = {}
    for line in out_lines(plan):
        name = line.directive.name
        failure = environment.failures.get(name)
        if failure is not None:
            raise DoesNotApply(failure.problem)
        specs[name] = environment[name].spec
    return tuple(specs[name] for name in file.plan.op.results)


def _out_line(
    line: LetLine | ConstLine | NeedLine | BufferLine, environment: Environment, check_needs: bool
) -> Problem | None:
    if isinstance(line, NeedLine):
        return need_problem(line, environment) if check_needs else None
    name = line.directive.name
    try:
        environment[name] = (
            buffer_value(line, environment) if isinstance(line, BufferLine) else line.value.run(environment)
        )
    except Failure as failure:
        environment.fail(name, failure)
        return failure.problem if check_needs and isinstance(line, LetLine) else None
    return None


def compare_out(evaluation: Evaluation, expected: Mapping[str, TensorSpec]) -> tuple[Problem, ...]:
    """Where the outputs differ from the task's in dtype or sizes, or miss one; strides are the file's own affair."""
    places = {line.directive.name: line.directive.at for line in out_lines(compiled_plan(evaluation.file))}
    outputs = {buffer.name: buffer.spec for buffer in evaluation.buffers if buffer.role is BufferRole.OUT}
    op_at = evaluation.file.plan.op.at
    problems = []
    for name, spec in expected.items():
        at = places.get(name, op_at)
        given = outputs.get(name)
        if given is None:
            problems.append(
                Problem(Code.OUT, at.line, at.column, f"no `out` for {name}", f"write `out {name}: {spec}`")
            )
        elif (given.dtype, given.shape) != (spec.dtype, spec.shape):
            found = f"{name} is {given}, the task has {spec}"
            problems.append(Problem(Code.OUT, at.line, at.column, found, "write the `out` line as the task has it"))
    for name, given in outputs.items():
        if name not in expected:
            found = f"{name}: {given} is no result of the task"
            problems.append(Problem(Code.OUT, *places[name][:2], found, "use `save` or `scratch`, or leave it out"))
    return tuple(problems)
