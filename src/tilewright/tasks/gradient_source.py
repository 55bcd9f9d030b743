"""The text of a backward reference: the forward's own, and a function that asks autograd for its gradients."""

from __future__ import annotations

import keyword
from dataclasses import dataclass

from tilewright.records import BACKWARD, DType, NumberInput, Task, TensorInput
from tilewright.tasks.errors import TaskError
from tilewright.tasks.questions import Cut, DerivativeAnswer, PrintedGradients, PrintRequest

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
    """What everything is called, without a name that the forward has already."""

    op: str
    function: str
    results: tuple[str, ...]  # of the forward, whose gradients are taken
    gradients: tuple[str, ...]  # of these
    outputs: tuple[str, ...]  # gradients by the inputs
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
    """The forward is computed again from the `saved` inputs. What no gradient depends on is stood in for by zeros."""
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


# -- from results that were kept --


def print_request(task: Task, answer: DerivativeAnswer, names: BackwardNames, cut: Cut) -> PrintRequest:
    """What the child needs to print the gradients from what a cut keeps."""
    at_hand = _at_hand(task, names, cut)
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


def _at_hand(task: Task, names: BackwardNames, cut: Cut) -> list[tuple[str, tuple[str | int, ...], DType]]:
    """What the backward takes: name, dimensions and dtype."""
    outputs = {one.name: one for one in task.outputs}
    tensors = {one.name: one for one in task.tensors}
    found: list[tuple[str, tuple[str | int, ...], DType]] = [
        (name, outputs[result].shape, outputs[result].dtype)
        for result, name in zip(names.results, names.gradients, strict=True)
    ]
    found += [(name, tensors[name].dimensions, tensors[name].dtype) for name in cut.inputs]
    return found + [(name, outputs[name].shape, outputs[name].dtype) for name in cut.results]


def _sizes(task: Task, first: int) -> dict[str, int]:
    """Sizes that all differ, where the dimensions leave a choice."""
    sizes = task.sizes
    for number, one in enumerate(one for one in task.free if one.varies):
        wanted = one.permitted(_PRIMES[(first + number) % len(_PRIMES)] * one.multiple_of)
        smaller = task.complete({**sizes, one.name: wanted})
        sizes = smaller if task.is_sound(smaller) else sizes
    return sizes


def printed_source(
    task: Task, answer: DerivativeAnswer, names: BackwardNames, cut: Cut, found: PrintedGradients
) -> str:
    """A text without the forward: the gradients, operation by operation, from what is kept."""
    kept = ", ".join(cut.results)
    at_hand = _at_hand(task, names, cut)
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
    """A tensor of the shape and dtype of an input whose values no gradient depends on, made from what is at hand."""
    outputs = {output.name: output for output in task.outputs}
    at_hand: list[tuple[str, tuple[str | int, ...], bool]] = [
        (name, outputs[result].shape, outputs[result].dtype is one.dtype)
        for result, name in zip(names.results, names.gradients, strict=True)
    ]
    tensors = {tensor.name: tensor for tensor in task.tensors}
    at_hand += [(name, tensors[name].dimensions, tensors[name].dtype is one.dtype) for name in saved]
    for name, shape, alike in at_hand:
        if alike and shape == one.dimensions:
            return f"torch.zeros_like({name})"
    sizes = [_size(task, label, at_hand) for label in one.dimensions]
    carrier = next((name for name, _, alike in at_hand if alike), "")
    shape_text = _tuple(tuple(sizes))
    if carrier:
        return f"{carrier}.new_zeros({shape_text})"
    first = at_hand[0][0]
    return f"{first}.new_zeros({shape_text}, dtype=torch.{one.dtype.torch_name})"


def _size(task: Task, label: str, at_hand: list[tuple[str, tuple[str | int, ...], bool]]) -> str:
    for name, shape, _ in at_hand:
        if label in shape:
            return f"{name}.shape[{shape.index(label)}]"
    found = next(one for one in task.dimensions if one.name == label)
    if not found.varies:
        return str(found.size)
    # One that another follows from can be told from that: cols from cols / 2.
    for other in task.dimensions:
        if other.formula is not None and other.formula.names == (label,):
            place = next((name for name, shape, _ in at_hand if other.name in shape), "")
            two = [other.formula.at({label: other_size}) for other_size in (found.size, 2 * found.size)]
            if place and two[1] == 2 * two[0] and found.size % two[0] == 0:
                shape = next(shape for name, shape, _ in at_hand if name == place)
                return f"{found.size // two[0]} * {place}.shape[{shape.index(other.name)}]"
    raise TaskError(f"the size {label} of {task.name} cannot be told from the gradients of its results")
