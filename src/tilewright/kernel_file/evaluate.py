"""Evaluates a kernel file at concrete shapes: tune choices, buffers, maps and steps.

Pure: the result depends only on the file, the arguments' shapes, strides, dtypes and scalars, the GPU profile and the
choice. Builds and launches nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tilewright import records
from tilewright.kernel_file.calls import Arguments, CallError
from tilewright.kernel_file.closures import Bindings
from tilewright.kernel_file.compiled_plan import BufferLine, DefinitionLine, KernelFile, TuneLine
from tilewright.kernel_file.expression_values import MapName, Tensor, show_value
from tilewright.kernel_file.limits import buffer_problems, is_dense, layout_problem
from tilewright.kernel_file.plan_steps import LateExpressions, StepEvaluator
from tilewright.kernel_file.problems import Code, DoesNotApply, KernelFileError, Problem
from tilewright.kernel_file.search import Choice, ChoiceError, TuneSearch, run_line
from tilewright.kernel_file.syntax import Const, Let, Span
from tilewright.records import Buffer, BufferRole, BuildRequest, ConstantValue, GpuProfile, Launch, TensorSpec

# -- leading dimensions: a plan over `[rows, cols]` takes `[batch, seq, cols]` where its `lead` line says so --


@dataclass(frozen=True)
class Flattened:
    """Arguments with flattened leading dimensions."""

    arguments: Mapping[str, Any]
    leading: tuple[Any, ...] | None = None  # the flattened sizes; None: nothing was flattened
    at: Span | None = None

    def result(self, name: str, spec: TensorSpec) -> TensorSpec | Problem:
        """The spec of a result with the leading dimensions restored."""
        if self.leading is None or self.at is None:
            return spec
        rows = math.prod(self.leading)
        if not spec.shape or (type(rows) is int and type(spec.shape[0]) is int and rows != spec.shape[0]):
            found = f"{name} is {spec}, where its first dimension should be the leading one, {show_value(rows)}"
            return Problem.at(self.at, Code.OUT, found, "leave `lead` out: it is for results with a row for each row")
        step, stride = spec.stride[0], []
        for size in reversed(self.leading):
            stride.append(step)
            step = step * (max(size, 1) if type(size) is int else size)
        shape = (*self.leading, *spec.shape[1:])
        return replace(spec, shape=shape, stride=(*reversed(stride), *spec.stride[1:]))


def flatten_leading(file: KernelFile, regular: Mapping[str, Any]) -> Flattened | Problem:
    """Flatten the leading dimensions of normalised arguments; a `Problem` where that is not possible."""
    lead = file.compiled.lead
    if lead is None:
        return Flattened(regular)
    given = [(name, rank, regular[name]) for name, rank in lead.ranks if regular[name] is not None]
    if all(spec.ndim == rank for _, rank, spec in given):
        return Flattened(regular)
    changed: dict[str, TensorSpec] = {}
    first: tuple[str, tuple[Any, ...]] | None = None
    for name, rank, spec in given:
        count = spec.ndim - (rank - 1)
        if count < 0:
            found = (
                f"{name} has {spec.ndim} dimension{'s' * (spec.ndim != 1)}, and this kernel takes {rank - 1} or more"
            )
            return Problem.at(lead.at, Code.DOES_NOT_APPLY, found, "add leading dimensions of size 1")
        leading = spec.shape[:count]
        if first is None:
            first = name, leading
        elif len(first[1]) != len(leading) or any(
            type(a) is int and type(b) is int and a != b for a, b in zip(first[1], leading, strict=True)
        ):  # symbolic sizes are assumed to agree
            both = f"{first[0]} leads with {show_value(first[1])} and {name} with {show_value(leading)}"
            return _refusal(lead.at, both)
        one = _merge_leading(spec, count)
        if one is None:
            return _refusal(lead.at, f"the leading dimensions of {name}, {spec}, do not lie in memory as one")
        changed[name] = one
    assert first is not None  # or nothing would differ
    return Flattened({**regular, **changed}, first[1], lead.at)


def _refusal(at: Span, found: str) -> Problem:
    return Problem.at(at, Code.DOES_NOT_APPLY, found, "pass contiguous tensors whose leading dimensions agree")


def _merge_leading(spec: TensorSpec, count: int) -> TensorSpec | None:
    """The tensor with its first `count` dimensions merged; None where no single stride covers them."""
    rest = spec.shape[count:], spec.stride[count:]
    rows: Any = math.prod(spec.shape[:count])
    step: Any = rest[0][0] * rest[1][0] if rest[0] else 1  # the stride of a dimension of size 1 is irrelevant
    if type(rows) is not int:
        step = spec.stride[count - 1]
    elif rows > 1:
        long = [(n, s) for n, s in zip(spec.shape[:count], spec.stride[:count], strict=True) if n != 1]
        if any(s != t * n for (_, s), (n, t) in itertools.pairwise(long)):
            return None
        step = long[-1][1]
    return replace(spec, shape=(rows, *rest[0]), stride=(step, *rest[1]))


# -- evaluation --


@dataclass(frozen=True)
class Evaluation:
    """A file evaluated for one call: constants to build with, buffers to allocate, steps to run."""

    file: KernelFile
    gpu: GpuProfile
    choice: Choice
    constants: tuple[tuple[str, ConstantValue], ...]  # tunes and consts, in written order
    tensors: tuple[tuple[str, TensorSpec], ...]  # without absent optionals
    buffers: tuple[Buffer, ...]
    maps: tuple[records.TensorMap, ...]  # of the launches that run
    steps: tuple[records.Step, ...]  # launches with an empty grid or a false `when` are left out
    late: LateExpressions = field(repr=False)

    def build_request(self) -> BuildRequest | None:
        """The build request for the launched kernels; None where nothing is launched."""
        kernels = tuple(dict.fromkeys(step.kernel for step in self.steps if isinstance(step, Launch)))
        return BuildRequest(self.file.text, self.constants, kernels, self.gpu.arch, self.file.name) if kernels else None

    def late_values(self, scalars: Mapping[str, Any]) -> tuple[int | float | bool, ...]:
        """The late arguments for these scalars; raises `DoesNotApply` where a `let` fails on them."""
        return self.late.values(scalars)

    @property
    def way(self) -> tuple[object, ...]:
        """The code path: constants, steps, kernels and blocks, without grid sizes."""
        launches = (step for step in self.steps if isinstance(step, Launch))
        return self.constants, tuple(step.line for step in self.steps), *((one.kernel, one.block) for one in launches)

    @property
    def constant_set(self) -> tuple[tuple[str, ConstantValue], ...]:
        """The `const` values that depend on no `tune`: counted by the limit on builds per file."""
        definitions = (line for line in self.file.compiled.lines if isinstance(line, DefinitionLine) and not line.tunes)
        counted = {line.directive.name for line in definitions if isinstance(line.directive, Const)}
        return tuple(pair for pair in self.constants if pair[0] in counted)


@dataclass(frozen=True)
class Refused:
    """The file does not take the call. `depends_on_late`: other late scalars might change that."""

    problem: Problem
    depends_on_late: bool


def evaluate(file: KernelFile, arguments: Arguments, gpu: GpuProfile, choice: Choice | None = None) -> Evaluation:
    """Evaluate the file; raises `DoesNotApply`, or `KernelFileError` for an error in a step.

    `choice` fixes `tune` values; those it leaves out are searched in written order.
    """
    outcome = try_evaluate(file, arguments, gpu, choice)
    if isinstance(outcome, Refused):
        raise DoesNotApply(outcome.problem)
    return outcome


def try_evaluate(
    file: KernelFile, arguments: Arguments, gpu: GpuProfile, choice: Choice | None = None
) -> Evaluation | Refused:
    """`evaluate`, but returns `Refused` instead of raising `DoesNotApply`."""
    regular = file.signature.arguments(arguments)
    seen = flatten_leading(file, regular)
    refusal = seen if isinstance(seen, Problem) else _layout(file, seen.arguments)
    if isinstance(seen, Problem) or refusal is not None:
        assert refusal is not None
        return Refused(refusal, False)
    bindings = initial_bindings(file, seen.arguments, gpu)
    known = {tune.name for tune in file.compiled.tunes}
    for name in choice or ():
        if name not in known:
            raise ChoiceError(f"{name} is not a `tune` of the file; it has {', '.join(sorted(known)) or 'none'}")
    search = TuneSearch(file.compiled, bindings, choice or {})
    for _ in search.found():
        return _finish(file, regular, seen, bindings, gpu, search.choice())
    assert search.rejection is not None
    return Refused(search.rejection.problem, search.depends_on_late)


def combinations(file: KernelFile, arguments: Arguments, gpu: GpuProfile) -> Iterator[dict[str, int | bool]]:
    """The tune choices whose needs hold for these arguments, in written order."""
    seen = flatten_leading(file, file.signature.arguments(arguments))
    if isinstance(seen, Problem) or _layout(file, seen.arguments) is not None:
        return
    search = TuneSearch(file.compiled, initial_bindings(file, seen.arguments, gpu), {})
    for _ in search.found():
        yield search.choice()


# -- the parts of an evaluation --


def _layout(file: KernelFile, arguments: Mapping[str, Any]) -> Problem | None:
    for parameter in file.plan.op.tensors:
        spec = arguments[parameter.name]
        if spec is None:
            continue
        if not isinstance(spec, TensorSpec) or len(spec.shape) != len(spec.stride):
            raise CallError(f"{parameter.name} is described by a TensorSpec, found {spec!r}; give shape and stride")
        problem = layout_problem(parameter, spec, file.compiled.accepts)
        if problem is not None:
            return problem
    return None


def initial_bindings(file: KernelFile, arguments: Mapping[str, Any], gpu: GpuProfile | None) -> Bindings:
    """The name environment before the first line: parameters, device, maps."""
    bindings = Bindings()
    if gpu is not None:
        bindings["device"] = gpu
    for name, value in arguments.items():
        bindings[name] = Tensor(name, value) if isinstance(value, TensorSpec) else value
    for name in file.compiled.maps:
        bindings[name] = MapName(name)
    return bindings


def _finish(
    file: KernelFile,
    arguments: Mapping[str, Any],
    seen: Flattened,
    bindings: Bindings,
    gpu: GpuProfile,
    choice: Choice,
) -> Evaluation:
    """Evaluate the rest of the plan for the chosen tunes; failures are now errors."""
    if bindings.failures:
        raise KernelFileError(tuple(failure.problem for failure in bindings.failures.values()), file.name)
    lines = (line for line in file.compiled.lines if isinstance(line, (TuneLine, DefinitionLine)))
    names = (line.directive.name for line in lines if not isinstance(line.directive, Let))
    constants = tuple((name, bindings[name]) for name in names)
    buffers = _buffers(file, bindings, seen)
    steps = StepEvaluator(file, bindings, gpu)
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
        late=LateExpressions(file, tuple(steps.late), bindings),
    )


def _buffers(file: KernelFile, bindings: Bindings, seen: Flattened) -> tuple[Buffer, ...]:
    buffers: list[Buffer] = []
    problems: list[Problem] = []
    places: dict[str, Span] = {}
    for line in file.compiled.lines:
        if not isinstance(line, BufferLine):
            continue
        directive = line.directive
        spec = bindings[directive.name].spec
        places[directive.name] = directive.at
        if line.stride is not None:
            problems.extend(_stride_problems(line, spec))
        given = seen.result(directive.name, spec) if directive.role is BufferRole.OUT else spec
        if isinstance(given, Problem):
            problems.append(given)
            continue
        buffers.append(Buffer(directive.name, directive.role, given, directive.clearing))
    problems.extend(buffer_problems(buffers, places))
    if problems:
        raise KernelFileError(tuple(problems), file.name)
    return tuple(buffers)


def _stride_problems(line: BufferLine, spec: TensorSpec) -> Iterator[Problem]:
    at = line.directive.at
    stride, name = show_value(spec.stride), line.directive.name
    if len(spec.stride) != spec.ndim:
        found = f"{name}: stride {stride} for sizes {show_value(spec.shape)}"
        yield Problem.at(at, Code.OUT, found, "give one int for each dimension")
    elif not is_dense(spec):
        found = f"{name}: {spec} with stride {stride} has gaps or overlaps"
        yield Problem.at(at, Code.OUT, found, "an output fills its memory; permute contiguous strides")


# -- results --


def out_specs(file: KernelFile, arguments: Arguments, check_needs: bool = True) -> tuple[TensorSpec, ...]:
    """The op's results at these arguments, independent of tunes and device.

    Raises `DoesNotApply` where a line they depend on fails or, with `check_needs`, where a `need` that depends on
    neither tune nor device is false.
    """
    return traced_out_specs(file, file.signature.arguments(arguments), check_needs)


def traced_out_specs(file: KernelFile, regular: Mapping[str, Any], check_needs: bool = True) -> tuple[TensorSpec, ...]:
    """`out_specs` for normalised arguments, whose sizes and numbers may be symbolic."""
    plan = file.compiled
    seen = flatten_leading(file, regular)
    if isinstance(seen, Problem):
        raise DoesNotApply(seen)
    bindings = initial_bindings(file, seen.arguments, None)
    for line in plan.unconditional_lines if check_needs else plan.out_lines:
        problem = run_line(line, bindings)
        if problem is not None and check_needs:
            raise DoesNotApply(problem)
    for out in plan.outs:
        failure = bindings.failures.get(out.directive.name)
        if failure is not None:
            raise DoesNotApply(failure.problem)
    given = [seen.result(name, bindings[name].spec) for name in file.plan.op.results]
    wrong = [one for one in given if isinstance(one, Problem)]
    if wrong:
        raise DoesNotApply(wrong[0])
    return tuple(one for one in given if isinstance(one, TensorSpec))


def compare_out(evaluation: Evaluation, expected: Mapping[str, TensorSpec]) -> tuple[Problem, ...]:
    """Missing outputs, and outputs whose dtype or sizes differ from the task's; strides may differ."""
    places = {line.directive.name: line.directive.at for line in evaluation.file.compiled.outs}
    outputs = {buffer.name: buffer.spec for buffer in evaluation.buffers if buffer.role is BufferRole.OUT}
    op_at = evaluation.file.plan.op.at
    problems = []
    for name, spec in expected.items():
        at = places.get(name, op_at)
        given = outputs.get(name)
        if given is None:
            problems.append(Problem.at(at, Code.OUT, f"no `out` for {name}", f"write `out {name}: {spec}`"))
        elif (given.dtype, given.shape) != (spec.dtype, spec.shape):
            found = f"{name} is {given}, the task has {spec}"
            problems.append(Problem.at(at, Code.OUT, found, "write the `out` line as the task has it"))
    for name, given in outputs.items():
        if name not in expected:
            found = f"{name}: {given} is no result of the task"
            problems.append(Problem.at(places[name], Code.OUT, found, "use `scratch`, or leave it out"))
    return tuple(problems)
