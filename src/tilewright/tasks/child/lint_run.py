"""Inside the child: the reference called with several sets of inputs, and what its answers have in common."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from tilewright.records import IndexValues, Layout, NormalValues, Origin, Task, TensorInput, UniformValues, Values
from tilewright.reference.torch_calls import call_reference, dtype_of, flat_results
from tilewright.tasks.child.input_values import draw_all
from tilewright.tasks.questions import LintAnswer, LintRequest

# -- inside the child: --

_LEADING = ((2, 3), (3, 1, 2), ())
_ROWS, _SOME = 6, 2
_SEED = 21
_SUM_ROUNDINGS = 64.0  # of the largest element: the same sums may be made in another order
_NARROW_ROUNDINGS = 2.0  # of 16 bits, whose sums are made in more

Leading = tuple[tuple[str, int], ...]


def leading_inputs(function: Callable[..., Any], task: Task, sizes: Mapping[str, int]) -> Leading:
    """The inputs that share the leading dimension, each with its number of dimensions; none where there is no such."""
    label = _leading_label(task)
    if label is None:
        return ()
    found = tuple((one.name, len(one.dimensions)) for one in task.tensors if label in one.dimensions)
    asked = _Asked(function, task, frozenset(name for name, _ in found))
    try:
        alike = asked.are_apart({**sizes, label: _ROWS}) and all(
            asked.is_stacked({**sizes, label: math.prod(one)}, one) for one in _LEADING
        )
    except Exception:  # whatever the reference raises where it takes no more dimensions
        return ()
    return found if alike else ()


def _leading_label(task: Task) -> str | None:
    """The one dimension that may lead: free, first wherever it is, of every result and of all that is changed."""
    shapes = [one.shape for one in task.outputs] + [one.dimensions for one in task.tensors if one.in_place]
    first = {shape[0] if shape else None for shape in shapes}
    label = next(iter(first)) if len(first) == 1 else None
    dimension = next((one for one in task.free if one.name == label), None)
    if not isinstance(label, str) or dimension is None or not dimension.varies or dimension.branches:
        return None
    if (dimension.multiple_of, dimension.at_least, dimension.at_most) != (1, 1, None):
        return None
    if any(one.formula is not None and label in one.formula.names for one in task.dimensions):
        return None
    for one in task.tensors:
        if isinstance(one.values, IndexValues) and one.values.dimension == label:
            return None
        if label in one.dimensions and (one.memory_order or one.layout is not Layout.DENSE or one.optional):
            return None
    taken = [*shapes, *(one.dimensions for one in task.tensors if label in one.dimensions)]
    return label if all(shape[0] == label and label not in shape[1:] for shape in taken) else None


@dataclass(frozen=True)
class _Asked:
    """A reference, and the inputs that share the leading dimension."""

    function: Callable[..., Any]
    task: Task
    names: frozenset[str]

    def are_apart(self, sizes: Mapping[str, int]) -> bool:
        """Whether what becomes of a row is the same without the others."""
        whole = self._drawn(sizes)
        part = {name: one[-_SOME:].clone() if name in self.names else one for name, one in whole.items()}
        pairs = zip(self._called(whole), self._called(part), strict=True)
        return all(_is_same(one[-_SOME:], other, (_SOME,)) for one, other in pairs)

    def is_stacked(self, sizes: Mapping[str, int], leading: tuple[int, ...]) -> bool:
        flat = self._drawn(sizes)
        wide = {
            name: one.reshape((*leading, *one.shape[1:])) if name in self.names else one for name, one in flat.items()
        }
        pairs = zip(self._called(flat), self._called(wide), strict=True)
        return all(_is_same(one, other, leading) for one, other in pairs)

    def _called(self, tensors: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return call_reference(self.function, self.task, tensors)

    def _drawn(self, sizes: Mapping[str, int]) -> dict[str, torch.Tensor]:
        """Inputs in f64 where the reference bears it: roundings of 16 bits hide other answers."""
        drawn = draw_all(self.task, sizes, _SEED)
        wide = {name: one.double() if one.is_floating_point() else one for name, one in drawn.items()}
        try:
            self._called(wide)
        except Exception:  # one that is tied to its dtype
            return drawn
        return wide


def _is_same(flat: torch.Tensor, wide: torch.Tensor, leading: tuple[int, ...]) -> bool:
    if wide.shape != (*leading, *flat.shape[1:]) or wide.dtype is not flat.dtype:
        return False
    other = wide.reshape(flat.shape)
    if not flat.is_floating_point():
        return torch.equal(flat, other)
    one, other = flat.double(), other.double()
    if not torch.equal(one.isnan(), other.isnan()):
        return False
    finite = one.isfinite()
    if not torch.equal(finite, other.isfinite()) or not torch.equal(one[one.isinf()], other[one.isinf()]):
        return False
    largest = float(one[finite].abs().max()) if bool(finite.any()) else 0.0
    apart, eps = (one[finite] - other[finite]).abs(), torch.finfo(flat.dtype).eps
    roundings = _SUM_ROUNDINGS if eps < _SUM_ROUNDINGS**-2 else _NARROW_ROUNDINGS
    return bool((apart <= roundings * eps * largest).all())


_SEEDS = (11, 12, 13)
_WAYS = 3  # in which floats are drawn otherwise
_REDRAWS = 3  # of one input, before it is said to have no influence
_REPEAT_ROUNDINGS = 16.0
_DIFFERING_FRACTION = 0.01  # an index may change with the order of a sum; noise changes most elements
_ROUNDINGS = 4.0  # a constant within so many roundings of every element satisfies any honest comparison
_MOSTLY = 0.5  # of a result's size, in the mean square
_AS_CASTS = "compute in f32 and write what must be rounded as casts, such as x.float() and y.bfloat16()"

Tensors = dict[str, torch.Tensor]
Results = tuple[torch.Tensor, ...]


def run_lint(function: Callable[..., Any], request: LintRequest) -> LintAnswer:
    """Compare the answers to different inputs, to one changed input, and to the same inputs again."""
    task, sizes = request.task, request.sizes
    given = [draw_all(task, sizes, seed) for seed in _SEEDS]
    answers = [call_reference(function, task, tensors) for tensors in given]
    mismatch = _mismatch(task, sizes, answers[0])
    if mismatch:
        described = task.origin in (Origin.FOLDER, Origin.WORDS)
        remedy = "correct [outputs]" if described else "an op's sizes must follow from its shapes, not from values"
        mismatch = f"{mismatch}; {remedy}"
    if any(one.shape != other.shape for results in answers[1:] for one, other in zip(results, answers[0], strict=True)):
        mismatch = "the size of what the reference returns depends on values; an op's sizes follow from its shapes"
    if mismatch:
        return LintAnswer(mismatch, "")
    reason = _unsound(task, given, answers)
    copied = _copied(task, given, [results[0] for results in answers])
    constant = bool(reason) and copied is None and not _are_no_numbers(answers)
    if constant:
        given, answers = _with_other_values(function, task, sizes, given, answers)
        reason = _unsound(task, given, answers)
    if reason:
        return LintAnswer("", reason, copied=copied.name if copied else "", constant=constant)
    if not _alike(answers[0], call_reference(function, task, given[0])):
        return LintAnswer("", "two calls with the same inputs give different answers")
    if _lost_in_rounding(function, task, given, answers):
        given, answers = _with_other_values(function, task, sizes, given[: len(_SEEDS)], answers[: len(_SEEDS)])
        reason = _lost_in_rounding(function, task, given, answers)
    if reason:
        return LintAnswer("", reason, constant=True)
    leading = leading_inputs(function, task, sizes)
    return LintAnswer("", "", _idle(function, task, sizes, given[0], answers[0]), leading=leading)


def _with_other_values(
    function: Callable[..., Any], task: Task, sizes: Mapping[str, int], given: list[Tensors], answers: list[Results]
) -> tuple[list[Tensors], list[Results]]:
    """The inputs and answers with some more, of floats that are drawn otherwise: a mean over many numbers is hardly
    anything but their distribution's, and kernels are judged on several distributions."""
    given, answers = list(given), list(answers)
    for number in range(_WAYS):
        inputs = tuple(
            replace(one, values=_otherwise(one.values, number, position)) if one.dtype.is_float else one
            for position, one in enumerate(task.tensors)
        )
        tensors = draw_all(replace(task, inputs=(*inputs, *task.numbers)), sizes, 21 + number)
        try:
            results = call_reference(function, task, tensors)
        except Exception:  # whatever the reference raises of values that nobody said it takes
            continue
        if all(not one.is_floating_point() or bool(one.isfinite().all()) for one in results):
            given.append(tensors)
            answers.append(results)
    return given, answers


def _otherwise(values: Values, way: int, position: int) -> Values:
    """Less, more beside a common part, and evenly spread; of what lies between bounds, other parts of that. Neighbours
    are drawn unlike each other: where all is scaled alike, a ratio stays."""
    if isinstance(values, NormalValues):
        if way == _WAYS - 1:
            return UniformValues(values.mean - values.deviation, values.mean + values.deviation)
        factor = ((0.25, 2.0), (3.0, 1.0))[way][position % 2]
        return NormalValues(values.mean + way * 0.5 * values.deviation, factor * values.deviation)
    if isinstance(values, UniformValues):
        start, end = ((0.0, 0.5), (0.5, 1.0), (0.4, 0.6))[(way + position) % _WAYS]
        width = values.high - values.low
        return UniformValues(values.low + start * width, values.low + end * width)
    return values


def _are_no_numbers(answers: list[Results]) -> bool:
    """Whether every output is NaN everywhere, or has no elements."""
    return all(not one.numel() or (one.is_floating_point() and bool(one.isnan().all())) for one in answers[0])


def _mismatch(task: Task, sizes: Mapping[str, int], results: Results) -> str:
    for one, found in zip(task.output_specs(sizes).items(), results, strict=False):
        name, spec = one
        shown = f"{dtype_of(found)}{list(found.shape)}"
        if tuple(found.shape) != spec.shape or dtype_of(found) is not spec.dtype:
            at = ", ".join(f"{key}={value}" for key, value in sizes.items())
            return f"its output {name} is {spec} and the reference returns {shown} at {at}"
    return ""


def _unsound(task: Task, given: list[Tensors], answers: list[Results]) -> str:
    """What is wrong with all outputs at once; one sound output is enough to judge a kernel by."""
    reasons = [_output_reason(task, given, answers, index) for index in range(len(answers[0]))]
    return reasons[0] if reasons and all(reasons) else ""


def _output_reason(task: Task, given: list[Tensors], answers: list[Results], index: int) -> str:
    names = [one.name for one in task.outputs] + [one.name for one in task.tensors if one.in_place]
    name = names[index]
    found = [results[index] for results in answers]
    if found[0].numel() == 0:
        return f"{name} has no elements"
    if all(bool(one.isnan().all()) for one in found if one.dtype.is_floating_point) and found[0].is_floating_point():
        return f"{name} is NaN everywhere"
    if all(_same((found[0],), (one,)) for one in found[1:]):
        return f"{name} does not depend on the inputs"
    together = torch.cat([one.double().flatten() for one in found])
    if bool(together.isfinite().all()):
        low, high = float(together.min()), float(together.max())
        if high - low <= _ROUNDINGS * _epsilon(found[0]) * max(abs(low), abs(high)):
            return f"{name} is {low:.6g} for all inputs up to rounding: a constant would pass"
    copied = _copied(task, given, found)
    return f"{name} equals {copied.name} for the values it holds" if copied else ""


def _copied(task: Task, given: list[Tensors], found: list[torch.Tensor]) -> TensorInput | None:
    """The input that an output equals every time."""
    for one in task.tensors:
        if all(_equal_values(tensors.get(one.name), held) for tensors, held in zip(given, found, strict=True)):
            return one
    return None


def _equal_values(held: torch.Tensor | None, found: torch.Tensor) -> bool:
    if held is None or held.shape != found.shape:
        return False
    return bool(torch.equal(held.double(), found.double()))


def _lost_in_rounding(function: Callable[..., Any], task: Task, given: list[Tensors], answers: list[Results]) -> str:
    """Whether exact answers differ by less than the reference's own rounding errors, so that a constant will do."""
    if not all(one.is_floating_point() for one in answers[0]):
        return ""
    truths = _exact_answers(function, task, given)
    if truths is None:
        return ""
    names = [one.name for one in task.outputs] + [one.name for one in task.tensors if one.in_place]
    for name, own, true in zip(names, answers[0], truths[0], strict=False):
        if _is_made_of_roundings(own, true):
            return f"{name} is made of roundings in PyTorch's steps, something else without them; {_AS_CASTS}"
    for index, found in enumerate(answers[0]):
        true = torch.stack([truth[index].double() for truth in truths])
        if true.shape[1:] != found.shape or not bool(true.isfinite().all()):
            return ""
        spread = float(true.max() - true.min())
        error = max(
            float((answer[index].double() - one).abs().max()) for answer, one in zip(answers, true, strict=True)
        )
        if spread > 2.0 * error:
            return ""
    constant = "zeros" if float(true.abs().max()) <= 2.0 * error else "a constant"
    return f"the reference's answers differ by less than its own rounding errors: {constant} would pass"


def _exact_answers(function: Callable[..., Any], task: Task, given: list[Tensors]) -> list[Results] | None:
    """In f64; None where the reference is tied to its dtype."""
    wide = [
        {name: one.double() if one.is_floating_point() else one for name, one in tensors.items()} for tensors in given
    ]
    try:
        return [call_reference(function, task, tensors) for tensors in wide]
    except Exception:
        return None


def _is_made_of_roundings(own: torch.Tensor, true: torch.Tensor) -> bool:
    """Whether most of a result is what 16-bit steps lose: what a compensated sum carries along, say."""
    if own.dtype not in (torch.float16, torch.bfloat16) or own.shape != true.shape or not own.numel():
        return False
    known = own.isfinite() & true.isfinite()
    size, error = (float(torch.where(known, one, 0.0).square().mean()) for one in (own.double(), own.double() - true))
    return error > _MOSTLY**2 * size > 0.0


def _idle(
    function: Callable[..., Any], task: Task, sizes: Mapping[str, int], given: Tensors, answer: Results
) -> tuple[str, ...]:
    """The tensors that can be drawn anew without any output changing; one that is overwritten need not matter."""
    known = _with_derivative(function, task, given)
    suspects = {one.name for one in task.tensors if one.name in given and not one.in_place} - known

    def changes(names: set[str]) -> bool:
        for attempt in range(_REDRAWS):
            others = draw_all(task, sizes, 100 + attempt, names)
            if not _same(answer, call_reference(function, task, {**given, **others})):
                return True
        return False

    if suspects and changes(suspects):
        suspects = {name for name in suspects if not changes({name})}
    return tuple(one.name for one in task.tensors if one.name in suspects)


def _with_derivative(function: Callable[..., Any], task: Task, given: Tensors) -> set[str]:
    """The tensors that an output has a derivative by; none where that cannot be asked.

    What the first layers of a deep network hold may change the result by less than a rounding and matters all the same.
    """
    leaves = {name: one.clone().requires_grad_() for name, one in given.items() if one.is_floating_point()}
    arguments: dict[str, Any] = {one.name: one.value for one in task.numbers}
    for one in task.tensors:
        held = leaves.get(one.name, given.get(one.name))
        arguments[one.name] = None if held is None else held.clone()
    try:
        with torch.enable_grad():
            results = flat_results(function(**arguments))
            results += tuple(arguments[one.name] for one in task.tensors if one.in_place and one.name in given)
            results = tuple(one for one in results if one.requires_grad)
            generator = torch.Generator().manual_seed(1)
            weights = [torch.rand(one.shape, generator=generator).to(one.dtype) for one in results]
            found = torch.autograd.grad(results, list(leaves.values()), weights, allow_unused=True)
    except Exception:  # it has steps without a derivative, or there is no memory for them
        return set()
    return {
        name
        for name, one in zip(leaves, found, strict=True)
        if one is not None and bool(((one != 0) & one.isfinite()).any())
    }


def _same(one: Results, other: Results) -> bool:
    """Whether two answers are equal, NaN for NaN."""
    return len(one) == len(other) and all(
        a.shape == b.shape and torch.equal(torch.nan_to_num(a.double()), torch.nan_to_num(b.double()))
        for a, b in zip(one, other, strict=True)
    )


def _alike(one: Results, other: Results) -> bool:
    """Whether two answers to the same inputs agree but for the order of sums, which threads may change."""
    for a, b in zip(one, other, strict=True):
        if a.shape != b.shape:
            return False
        difference = torch.nan_to_num(a.double()).sub(torch.nan_to_num(b.double())).abs()
        allowed = (
            _REPEAT_ROUNDINGS * _epsilon(a) * float(torch.nan_to_num(a.double()).abs().max()) if a.numel() else 0.0
        )
        if float((difference > allowed).double().mean()) > _DIFFERING_FRACTION:
            return False
    return True


def _epsilon(tensor: torch.Tensor) -> float:
    return float(torch.finfo(tensor.dtype).eps) if tensor.is_floating_point() else 0.0
