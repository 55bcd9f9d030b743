"""A backward task from a forward one: gradients of its results in, gradients of its inputs out.

The reference is the forward's own text and, after it, a function that computes the forward again with autograd and asks
for the gradients. So it says the same as PyTorch at any size and in any dtype. What is kept between forward and
backward is decided here: the fewest bytes among the inputs and results that are enough, by the graph of the gradients.
Everything that the forward's task knows of its dimensions and numbers holds of the backward too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tilewright.records import (
    Derivative,
    Dimension,
    NormalValues,
    SavedTensor,
    Task,
    TaskInput,
    TaskOutput,
    TensorInput,
    UniformValues,
)
from tilewright.reference import Reference, ReferenceProblem
from tilewright.tasks.drafts import TaskOptions
from tilewright.tasks.errors import Remedy, RemedyKind, TaskError
from tilewright.tasks.gradient_source import BackwardNames, print_request, printed_source, recomputing_source
from tilewright.tasks.lint import examine, finding, small_sizes
from tilewright.tasks.questions import (
    ANSWER_SECONDS,
    DIFFERENTIATE,
    PRINT_GRADIENTS,
    Cut,
    DerivativeAnswer,
    DerivativeRequest,
    PrintedGradients,
)


def backward_task(task: Task, options: TaskOptions) -> Task:
    """The task of a forward's gradients. Raises `TaskError` where there are none, or they prove nothing."""
    refuse_without_gradients(task)
    with Reference(task.reference, task.function) as reference:
        try:
            request = DerivativeRequest(task, small_sizes(task))
            answer: DerivativeAnswer = reference.call(DIFFERENTIATE, request, DerivativeAnswer, ANSWER_SECONDS)
        except ReferenceProblem as problem:
            raise TaskError(f"{task.name} has no gradients that can be taken: {problem}") from problem
        if not answer.by:
            raise TaskError(f"{task.name} has no gradients: no result depends on an input in a way that can be derived")
        made = _cheapest(task, answer, reference)
    with Reference(made.reference, made.function) as reference:
        try:
            seen = examine(made, reference)
        except ReferenceProblem as problem:
            raise TaskError(f"the gradients of {task.name} cannot be taken: {problem}") from problem
    reason = finding(seen)
    if reason and not options.allow_degenerate:
        remedy = Remedy(RemedyKind.ALLOW_DEGENERATE)
        raise TaskError(f"a kernel for the gradients of {task.name} would prove nothing: {reason}", remedy)
    return replace(made, degenerate=reason, leading=seen.leading)


def refuse_without_gradients(task: Task) -> None:
    """Raise `TaskError` where it is plain without a call that there can be none."""
    if task.derivative is not None:
        raise TaskError(f"{task.name} is a backward task itself; second gradients come from the function's autograd")
    changed = [one.name for one in task.tensors if one.in_place]
    if changed:
        raise TaskError(
            f"{task.name} changes {', '.join(changed)} in place, so nothing is left to take gradients at; write it so "
            "that it returns a new tensor"
        )
    if not any(one.dtype.is_float for one in task.tensors):
        raise TaskError(f"{task.name} has no floating-point input, so it has no gradients")


def _cheapest(task: Task, answer: DerivativeAnswer, reference: Reference) -> Task:
    """The backward task that keeps the fewest bytes. Of as many inputs: a text from results is for one rank alone."""
    specs = {**task.specs(), **task.output_specs()}

    def price(cut: Cut) -> tuple[int, int]:
        return sum(specs[name].storage_bytes for name in (*cut.inputs, *cut.results)), len(cut.results)

    names = BackwardNames.of(task, answer)
    for cut in sorted(answer.cuts, key=price):
        if not cut.results:
            break
        request = print_request(task, answer, names, cut)
        try:
            found: PrintedGradients = reference.call(PRINT_GRADIENTS, request, PrintedGradients, ANSWER_SECONDS)
        except (ReferenceProblem, RuntimeError):
            continue
        if found.lines:
            return _assembled(task, answer, cut, printed_source(task, answer, names, cut, found))
    cut = answer.cuts[0]
    return _assembled(task, answer, cut, recomputing_source(task, answer, names, cut.inputs))


def _assembled(task: Task, answer: DerivativeAnswer, cut: Cut, source: str) -> Task:
    names = BackwardNames.of(task, answer)
    specs = {**task.specs(), **task.output_specs()}
    saved = tuple(
        SavedTensor(name, specs[name].storage_bytes, name in cut.results) for name in (*cut.inputs, *cut.results)
    )
    grown, gradients = _gradient_inputs(task, names)
    tensors = {one.name: one for one in task.tensors}
    kept: tuple[TaskInput, ...] = tuple(tensors[name] for name in cut.inputs)
    kept += tuple(_result_input(task, answer, name, gradients) for name in cut.results)
    numbers = sorted(task.numbers, key=lambda one: one.default)
    outputs = tuple(
        TaskOutput(name, tensors[by].dtype, tensors[by].dimensions)
        for name, by in zip(names.outputs, answer.by, strict=True)
    )
    derivative = Derivative(
        task.hash,
        task.name,
        names.results,
        names.gradients,
        saved,
        answer.by,
        tuple(_without(task, answer)),
        answer.autograd_bytes,
    )
    inputs = (*gradients, *kept, *numbers)
    return replace(
        task,
        name=names.op,
        reference=source,
        function=names.function,
        inputs=inputs,
        outputs=outputs,
        dimensions=_used(grown, inputs, outputs),
        words="",
        assumptions=(),
        degenerate="",
        leading=(),
        derivative=derivative,
    )


def _result_input(task: Task, answer: DerivativeAnswer, name: str, gradients: tuple[TensorInput, ...]) -> TensorInput:
    """A kept result as an input: it holds about what the function made of the values that were drawn."""
    place = next(number for number, one in enumerate(task.outputs) if one.name == name)
    low, high = answer.ranges[place]
    values = UniformValues(low, high) if 0.0 <= low < high else NormalValues()
    alike = next(one for one in gradients if one.name.removeprefix("grad_").rstrip("_") == name)
    return replace(alike, name=name, dtype=task.outputs[place].dtype, values=values)


def _gradient_inputs(task: Task, names: BackwardNames) -> tuple[tuple[Dimension, ...], tuple[TensorInput, ...]]:
    """The gradients of the results as inputs; a size that is a plain number becomes a dimension that never varies."""
    dimensions = {one.name: one for one in task.dimensions}
    outputs = {one.name: one for one in task.outputs}
    made = []
    for result, name in zip(names.results, names.gradients, strict=True):
        labels = []
        for size in outputs[result].shape:
            label = size if isinstance(size, str) else f"always_{size}"
            dimensions.setdefault(label, Dimension(label, 0 if isinstance(size, str) else size, varies=False))
            labels.append(label)
        made.append(TensorInput(name, outputs[result].dtype, tuple(labels)))
    return tuple(dimensions.values()), tuple(made)


def _used(
    dimensions: tuple[Dimension, ...], inputs: Iterable[TaskInput], outputs: Iterable[TaskOutput]
) -> tuple[Dimension, ...]:
    """The dimensions that are left, and those that these follow from."""
    labels = {label for one in inputs if isinstance(one, TensorInput) for label in one.dimensions}
    labels |= {size for one in outputs for size in one.shape if isinstance(size, str)}
    for one in inputs:
        index = getattr(one.values, "dimension", None) if isinstance(one, TensorInput) else None
        labels |= {index} if index is not None else set()
    for dimension in dimensions:
        if dimension.name in labels and dimension.formula is not None:
            labels |= set(dimension.formula.names)
    return tuple(one for one in dimensions if one.name in labels)


def _without(task: Task, answer: DerivativeAnswer) -> Iterable[tuple[str, str]]:
    for one in task.tensors:
        if one.optional:
            yield one.name, "is absent"
        elif not one.dtype.is_float:
            yield one.name, f"holds {one.dtype.value}"
        elif one.name not in answer.by:
            yield one.name, "reaches no result that can be derived"


def derivative_words(derivative: Derivative) -> list[str]:
    """Lines for a person: whose gradients, what is kept for them, and what autograd would keep."""
    lines = [f"gradients by {', '.join(derivative.by)}, of {', '.join(derivative.results)} of {derivative.op}"]
    lines += [f"no gradient by {name}, which {why}" for name, why in derivative.without]
    kept = ", ".join(
        f"{'the result ' if one.is_result else ''}{one.name} ({_bytes_words(one.bytes)})" for one in derivative.saved
    )
    kept = kept or "nothing"
    lines.append(f"keeps {kept} from the forward; everything else is computed again")
    if derivative.autograd_bytes is not None:
        more = derivative.saved_bytes - derivative.autograd_bytes
        beside = f": {_bytes_words(more)} more, for inputs that it keeps in another form" if more > 0 else ""
        lines.append(
            f"{_bytes_words(derivative.saved_bytes)} in all; autograd would keep "
            f"{_bytes_words(derivative.autograd_bytes)}{beside}"
        )
    return lines


def _bytes_words(count: int) -> str:
    for size, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} bytes"
