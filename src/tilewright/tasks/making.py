"""The common end of every way to a task: probe the reference, name what was found, lint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.records import (
    Dimension,
    IndexValues,
    NumberInput,
    Origin,
    Task,
    TaskOutput,
    TensorInput,
    Values,
    following,
)
from tilewright.reference import Reference, ReferenceProblem
from tilewright.tasks.arguments import GivenInput, GivenTensor
from tilewright.tasks.kinds import classify, kind_of
from tilewright.tasks.lint import examine, idle_reason
from tilewright.tasks.naming import ONE, dimension_names, output_names
from tilewright.tasks.options import TaskError, TaskOptions
from tilewright.tasks.probing_records import PROBE, ProbeAnswer, ProbedDimension, ProbeRequest, ProbeTensor

PROBE_SECONDS = 120.0


@dataclass(frozen=True)
class Draft:
    """A reference and its inputs at one size each: what is known before anything was run."""

    name: str
    source: str
    function: str
    inputs: tuple[GivenInput, ...]
    origin: Origin
    results: tuple[str, ...] = ()  # names, where they are known
    assumptions: tuple[str, ...] = ()

    @property
    def tensors(self) -> tuple[GivenTensor, ...]:
        return tuple(one for one in self.inputs if isinstance(one, GivenTensor))


def make_task(draft: Draft, options: TaskOptions) -> Task:
    """The task, probed and linted. Raises `TaskError`, also where the reference is at fault."""
    with Reference(draft.source, draft.function) as reference:
        try:
            task = probe_task(draft, options, reference)
            return linted(task, options, reference)
        except ReferenceProblem as problem:
            raise TaskError(str(problem)) from problem


def probe_task(draft: Draft, options: TaskOptions, reference: Reference) -> Task:
    """The task without the lint."""
    labels = [tuple(_label(size) for size in one.shape) for one in draft.tensors]
    sizes = {_label(size): size for one in draft.tensors for size in one.shape}
    request = ProbeRequest(
        tuple(
            ProbeTensor(one.name, one.dtype, own, _given_values(one))
            for one, own in zip(draft.tensors, labels, strict=True)
        ),
        tuple(one for one in draft.inputs if isinstance(one, NumberInput)),
        tuple(ProbedDimension(label, size, not options.fixed_all, 1) for label, size in sizes.items()),
        unlink=not options.fixed_all,
    )
    answer: ProbeAnswer = reference.call(PROBE, request, ProbeAnswer, PROBE_SECONDS)
    kind = kind_of(draft.source, draft.function)
    results = output_names(len(answer.outputs), draft.results, [one.name for one in draft.inputs])
    avoid = [*(one.name for one in draft.inputs), *results]
    names = dimension_names(answer, [one.name for one in draft.tensors], results, kind, avoid)
    return assemble(draft, answer, names, results, options)


def _label(size: int) -> str:
    return ONE if size == 1 else f"d{size}"


def _given_values(one: GivenTensor) -> Values | None:
    if isinstance(one.values, IndexValues):
        return None  # the name of a dimension means something only once dimensions have names
    return one.values


def assemble(
    draft: Draft, answer: ProbeAnswer, names: dict[str, str], results: Sequence[str], options: TaskOptions
) -> Task:
    """A task from what probing found, under the names given to its labels."""
    order = dict.fromkeys(label for one in answer.tensors for label in one.labels)
    found = {one.label: one for one in answer.dimensions}
    dimensions = tuple(
        _dimension(found[label], names)
        for label in (*order, *(label for label in found if label not in order and label in names))
    )
    probed = dict(zip((one.name for one in draft.tensors), answer.tensors, strict=True))
    inputs: list[TensorInput | NumberInput] = []
    for one in draft.inputs:
        if isinstance(one, NumberInput):
            inputs.append(one)
            continue
        own = probed[one.name]
        values = one.values if isinstance(one.values, IndexValues) else _renamed(own.values, names)
        axes = tuple(names[label] for label in own.labels)
        inputs.append(TensorInput(one.name, one.dtype, axes, values, in_place=own.in_place, parameter=one.parameter))
    outputs = tuple(
        TaskOutput(name, one.dtype, tuple(names[size] if isinstance(size, str) else size for size in one.shape))
        for name, one in zip(results, answer.outputs, strict=True)
    )
    try:
        task = Task(
            draft.name,
            draft.source,
            draft.function,
            tuple(inputs),
            outputs,
            held(dimensions, options),
            gpu=options.gpu,
            precision=options.precision,
            goal=options.goal,
            allow_library=options.allow_library,
            origin=draft.origin,
            assumptions=(*draft.assumptions, *(_spelled(note, names) for note in answer.assumptions)),
        )
    except TaskError:
        raise
    except ValueError as error:
        raise TaskError(str(error)) from None
    return replace(task, kind=classify(task))


def _dimension(one: ProbedDimension, names: dict[str, str]) -> Dimension:
    formula = one.formula.renamed(names) if one.formula is not None else None
    return Dimension(names[one.label], one.size, one.varies, one.multiple_of, formula, one.at_least)


def _renamed(values: Values, names: dict[str, str]) -> Values:
    return IndexValues(names[values.dimension]) if isinstance(values, IndexValues) else values


def _spelled(note: str, names: dict[str, str]) -> str:
    for label, name in names.items():
        note = note.replace(f"{{{label}}}", name)
    return note


def held(dimensions: tuple[Dimension, ...], options: TaskOptions) -> tuple[Dimension, ...]:
    """The dimensions with those that the person wants fixed made so, and what these follow from."""
    known = {one.name: one for one in dimensions}
    fixed: set[str] = set()
    for name in options.fixed:
        if name not in known:
            raise TaskError(f"no dimension is called {name}; this task has {', '.join(known)}")
        formula = known[name].formula
        fixed |= {name} if formula is None else {*formula.names}
    return following(
        tuple(replace(one, varies=one.varies and not options.fixed_all and one.name not in fixed) for one in dimensions)
    )


def linted(task: Task, options: TaskOptions, reference: Reference) -> Task:
    """The task with the lint's finding; raises where answers prove nothing and that was not allowed."""
    answer = examine(task, reference)
    return with_finding(task, answer.reason or idle_reason(answer.idle), options)


def with_finding(task: Task, reason: str, options: TaskOptions) -> Task:
    if reason and not options.allow_degenerate:
        raise TaskError(f"task {task.name} proves nothing: {reason} (--allow-degenerate makes it anyway)")
    return replace(task, degenerate=reason)
