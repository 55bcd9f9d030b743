"""Makes the backward task of a forward task: takes gradients of its results, returns gradients of its inputs.

The backward reference either recomputes the forward under autograd, or computes the gradients from saved results. The
tensors saved between forward and backward are the fewest bytes that determine the gradients.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tilewright.records import (
    BACKWARD,
    Derivative,
    Dimension,
    DType,
    NormalValues,
    NumberInput,
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
from tilewright.tasks.questions import (
    ANSWER_SECONDS,
    DIFFERENTIATE,
    PRINT_GRADIENTS,
    DerivativeAnswer,
    DerivativeRequest,
    PrintedGradients,
    PrintRequest,
    SavedSet,
    degenerate_reason,
    lint_reference,
    small_sizes,
)

# -- the source of a backward reference --

_PRIMES = (5, 7, 11, 13, 17, 19, 23, 29, 31)

_FLATTENED = '''

def {flat}(returned):
    """The tensors of what a function returned, in order."""
    if isinstance(returned, torch.Tensor):
        return [returned]
    parts = returned.values() if hasattr(returned, "values") else returned or ()
    return [tensor for part in parts for tensor in {flat}(part)]
'''


@dataclass(frozen=True)
class BackwardNames:
    """Names in the backward task, different from those of the forward."""

    op: str
    function: str
    results: tuple[str, ...]  # differentiable results of the forward
    gradients: tuple[str, ...]  # their gradients
    outputs: tuple[str, ...]  # gradients of the inputs
    flat: str

    @classmethod
    def of(cls, task: Task, answer: DerivativeAnswer) -> BackwardNames:
        results = tuple(one.name for one, real in zip(task.outputs, answer.differentiable, strict=True) if real)
        taken = {one.name for one in (*task.inputs, *task.outputs)}
        gradients = tuple(_unused(f"grad_{name}", taken) for name in results)
        outputs = tuple(_unused(f"grad_{name}", taken) for name in answer.by)
        function = f"{task.function}{BACKWARD}"
        while function in task.reference:
            function += "_"
        return cls(f"{task.name}{BACKWARD}", function, results, gradients, outputs, f"_results_of_{task.function}")


def _unused(wanted: str, taken: set[str]) -> str:
    while wanted in taken or keyword.iskeyword(wanted):
        wanted += "_"
    taken.add(wanted)
    return wanted


def recomputing_source(task: Task, answer: DerivativeAnswer, names: BackwardNames, saved: tuple[str, ...]) -> str:
    """A source that recomputes the forward from the `saved` inputs. Inputs that no gradient depends on become zeros."""
    lines = [_head(task, names, saved), f'    """The gradients of `{task.function}` by {", ".join(answer.by)}."""']
    lines += ["    with torch.enable_grad():"]
    for one in task.tensors:
        if one.optional:
            continue
        made = one.name if one.name in saved else _stand_in(task, one, names, saved)
        if one.name in answer.by:
            lines.append(f"        {one.name} = {made}.detach().requires_grad_()")
        elif one.name not in saved:
            lines.append(f"        {one.name} = {made}")
    absent = {one.name for one in task.tensors if one.optional}
    call = ", ".join(f"{one.name}={'None' if one.name in absent else one.name}" for one in task.inputs)
    lines += _results_lines(task, answer, names, f"{task.function}({call})")
    wanted, by, given = (_tuple(some) for some in (names.results, answer.by, names.gradients))
    lines.append(f"        return torch.autograd.grad({wanted}, {by}, {given})")
    helper = _FLATTENED.format(flat=names.flat) if answer.structure == "nested" else ""
    imported = "" if "import torch\n" in task.reference else "\n\nimport torch\n"
    text = "\n".join(lines)
    return f"{task.reference.rstrip()}\n{imported}{helper}\n\n{text}\n"


# -- gradients from saved results --


def print_request(task: Task, answer: DerivativeAnswer, names: BackwardNames, cut: SavedSet) -> PrintRequest:
    """The request to print the gradients computed from a set of saved tensors."""
    at_hand = _at_hand(task, names, cut.inputs, cut.results)
    known: dict[str, str] = {}
    for name, shape, _ in at_hand:
        for axis, label in enumerate(shape):
            if isinstance(label, str):
                known.setdefault(label, f"{name}.shape[{axis}]")
    dtypes = {f"torch.{dtype.torch_name}": f"{name}.dtype" for name, _, dtype in reversed(at_hand)}
    sizes = [_sizes(task, first) for first in (0, 3, 6)]
    labels = {one.name: one.dimensions for one in task.tensors}
    return PrintRequest(
        task, sizes[0], tuple(sizes[1:]), answer.by, cut.inputs, cut.results, names.gradients, labels, known, dtypes
    )


def _at_hand(
    task: Task, names: BackwardNames, inputs: tuple[str, ...], results: tuple[str, ...] = ()
) -> list[tuple[str, tuple[str | int, ...], DType]]:
    """The tensors that the backward takes: gradients and saved tensors, with dimensions and dtype."""
    outputs = {one.name: one for one in task.outputs}
    tensors = {one.name: one for one in task.tensors}
    found: list[tuple[str, tuple[str | int, ...], DType]] = [
        (name, outputs[result].shape, outputs[result].dtype)
        for result, name in zip(names.results, names.gradients, strict=True)
    ]
    found += [(name, tensors[name].dimensions, tensors[name].dtype) for name in inputs]
    return found + [(name, outputs[name].shape, outputs[name].dtype) for name in results]


def _sizes(task: Task, first: int) -> dict[str, int]:
    """Sizes that all differ, as far as the dimensions allow."""
    sizes = task.sizes
    for number, one in enumerate(one for one in task.free if one.varies):
        wanted = one.permitted(_PRIMES[(first + number) % len(_PRIMES)] * one.multiple_of)
        smaller = task.complete({**sizes, one.name: wanted})
        sizes = smaller if task.is_sound(smaller) else sizes
    return sizes


def printed_source(
    task: Task, answer: DerivativeAnswer, names: BackwardNames, cut: SavedSet, found: PrintedGradients
) -> str:
    """A source without the forward: the gradients, operation by operation, from saved tensors."""
    kept = ", ".join(cut.results)
    at_hand = _at_hand(task, names, cut.inputs, cut.results)
    ranks = ", ".join(f"{name}.ndim" for name, _, _ in at_hand)
    wanted = ", ".join(str(len(shape)) for _, shape, _ in at_hand)
    lines = [
        "import torch\n\n",
        _head(task, names, (*cut.inputs, *cut.results)),
        f'    """The gradients of `{task.function}` by {", ".join(answer.by)}, from its result {kept}."""',
        f"    if ({ranks}) != ({wanted}):",
        '        raise ValueError("these lines are for tensors of other ranks")',
        *(f"    {line}" for line in found.lines),
        f"    return {_tuple(found.returned)}",
    ]
    return "\n".join(lines) + "\n"


def _tuple(names: tuple[str, ...]) -> str:
    return f"({', '.join(names)}{',' if len(names) == 1 else ''})"


def _head(task: Task, names: BackwardNames, saved: tuple[str, ...]) -> str:
    numbers = sorted(task.numbers, key=lambda one: one.default)
    given = [*names.gradients, *saved, *(_parameter(one) for one in numbers)]
    return f"def {names.function}({', '.join(given)}):"


def _parameter(one: NumberInput) -> str:
    kind = type(one.value).__name__
    return f"{one.name}: {kind} = {one.value!r}" if one.default else f"{one.name}: {kind}"


def _results_lines(task: Task, answer: DerivativeAnswer, names: BackwardNames, call: str) -> list[str]:
    every = [one.name for one in task.outputs]
    if answer.structure == "one":
        return [f"        {every[0]} = {call}"]
    call = call if answer.structure == "flat" else f"{names.flat}({call})"
    kept = ", ".join(name if name in names.results else "_" for name in every)
    return [f"        {kept}{',' if len(every) == 1 else ''} = {call}"]


def _stand_in(task: Task, one: TensorInput, names: BackwardNames, saved: tuple[str, ...]) -> str:
    """An expression for zeros of the shape and dtype of an input, made from the tensors at hand."""
    at_hand = _at_hand(task, names, saved)
    for name, shape, dtype in at_hand:
        if dtype is one.dtype and shape == one.dimensions:
            return f"torch.zeros_like({name})"
    places: dict[str | int, str] = {}
    for name, shape, _ in at_hand:
        for axis, label in enumerate(shape):
            places.setdefault(label, f"{name}.shape[{axis}]")
    shape_text = _tuple(tuple(_size(task, label, places) for label in one.dimensions))
    if carrier := next((name for name, _, dtype in at_hand if dtype is one.dtype), ""):
        return f"{carrier}.new_zeros({shape_text})"
    return f"{at_hand[0][0]}.new_zeros({shape_text}, dtype=torch.{one.dtype.torch_name})"


def _size(task: Task, label: str, places: Mapping[str | int, str]) -> str:
    if label in places:
        return places[label]
    found = next(one for one in task.dimensions if one.name == label)
    if not found.varies:
        return str(found.size)
    # Solve the formula of another dimension for it: cols from cols / 2.
    for other in task.dimensions:
        if other.formula is not None and other.formula.names == (label,) and other.name in places:
            two = [other.formula.at({label: other_size}) for other_size in (found.size, 2 * found.size)]
            if two[1] == 2 * two[0] and found.size % two[0] == 0:
                return f"{found.size // two[0]} * {places[other.name]}"
    raise TaskError(f"the size {label} of {task.name} does not follow from the gradients of its results")


def backward_task(task: Task, options: TaskOptions) -> Task:
    """The task of a forward's gradients. Raises `TaskError` if there are none or the task is degenerate."""
    refuse_without_gradients(task)
    with Reference(task.reference, task.function) as reference:
        try:
            request = DerivativeRequest(task, small_sizes(task))
            answer: DerivativeAnswer = reference.call(DIFFERENTIATE, request, DerivativeAnswer, ANSWER_SECONDS)
        except ReferenceProblem as problem:
            raise TaskError(f"{task.name} cannot be differentiated: {problem}") from problem
        if not answer.by:
            raise TaskError(f"{task.name} has no gradients: no result is a differentiable function of an input")
        made = _cheapest(task, answer, reference)
    with Reference(made.reference, made.function) as reference:
        try:
            seen = lint_reference(made, reference)
        except ReferenceProblem as problem:
            raise TaskError(f"the gradients of {task.name} cannot be computed: {problem}") from problem
    reason = degenerate_reason(seen)
    if reason and not options.allow_degenerate:
        remedy = Remedy(RemedyKind.ALLOW_DEGENERATE)
        raise TaskError(f"a kernel for the gradients of {task.name} would prove nothing: {reason}", remedy)
    return replace(made, degenerate=reason, leading=seen.leading)


def refuse_without_gradients(task: Task) -> None:
    """Raise `TaskError` if the task plainly has no gradients."""
    if task.derivative is not None:
        raise TaskError(f"{task.name} is a backward task; for second derivatives use autograd of its function")
    changed = [one.name for one in task.tensors if one.in_place]
    if changed:
        raise TaskError(
            f"{task.name} changes {', '.join(changed)} in place, which has no gradient; return a new tensor instead"
        )
    if not any(one.dtype.is_float for one in task.tensors):
        raise TaskError(f"{task.name} has no floating-point input, so it has no gradients")


def _cheapest(task: Task, answer: DerivativeAnswer, reference: Reference) -> Task:
    """The backward task that saves the fewest bytes; at equal bytes the one that saves fewer results."""
    specs = {**task.specs(), **task.output_specs()}

    def price(cut: SavedSet) -> tuple[int, int]:
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


def _assembled(task: Task, answer: DerivativeAnswer, cut: SavedSet, source: str) -> Task:
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
    """A saved result as an input, with values in the range that the forward computed."""
    place = next(number for number, one in enumerate(task.outputs) if one.name == name)
    low, high = answer.ranges[place]
    values = UniformValues(low, high) if 0.0 <= low < high else NormalValues()
    alike = next(one for one in gradients if one.name.removeprefix("grad_").rstrip("_") == name)
    return replace(alike, name=name, dtype=task.outputs[place].dtype, values=values)


def _gradient_inputs(task: Task, names: BackwardNames) -> tuple[tuple[Dimension, ...], tuple[TensorInput, ...]]:
    """The gradients of the results as inputs. A size that is a number becomes a static dimension."""
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
    """The dimensions that are used, and those in their formulas."""
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
            yield one.name, "reaches no differentiable result"


def derivative_words(derivative: Derivative) -> list[str]:
    """Lines that describe the gradients, what is saved for them, and what autograd would save."""
    lines = [f"gradients by {', '.join(derivative.by)}, of {', '.join(derivative.results)} of {derivative.op}"]
    lines += [f"no gradient by {name}, which {why}" for name, why in derivative.without]
    kept = ", ".join(
        f"{'the result ' if one.is_result else ''}{one.name} ({_bytes_words(one.bytes)})" for one in derivative.saved
    )
    kept = kept or "nothing"
    lines.append(f"saves {kept} from the forward and recomputes everything else")
    if derivative.autograd_bytes is not None:
        more = derivative.saved_bytes - derivative.autograd_bytes
        beside = f": {_bytes_words(more)} more, because it saves inputs in another form" if more > 0 else ""
        lines.append(
            f"{_bytes_words(derivative.saved_bytes)} in all; autograd would save "
            f"{_bytes_words(derivative.autograd_bytes)}{beside}"
        )
    return lines


def _bytes_words(count: int) -> str:
    for size, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} bytes"
