"""Runs in the child: lints a reference by comparing its results for several sets of inputs."""

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

_LEADING = ((2, 3), (3, 1, 2), ())
_ROWS, _SOME = 6, 2
_SEED = 21
_SUM_ROUNDINGS = 64.0  # roundings of the largest element: sums may run in another order
_NARROW_ROUNDINGS = 2.0  # for 16-bit dtypes, which are summed in f32

Leading = tuple[tuple[str, int], ...]


def leading_inputs(function: Callable[..., Any], task: Task, sizes: Mapping[str, int]) -> Leading:
    """The inputs that share the leading dimension, with their ranks; () if there is no such dimension."""
    label = _leading_label(task)
    if label is None:
        return ()
    found = tuple((one.name, len(one.dimensions)) for one in task.tensors if label in one.dimensions)
    asked = _Asked(function, task, frozenset(name for name, _ in found))
    try:
        alike = asked.are_apart({**sizes, label: _ROWS}) and all(
            asked.is_stacked({**sizes, label: math.prod(one)}, one) for one in _LEADING
        )
    except Exception:  # the reference does not accept more dimensions
        return ()
    return found if alike else ()


def _leading_label(task: Task) -> str | None:
    """The dimension that may be leading: free, and the first one of every output and of its inputs."""
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
        """Whether a row's result does not depend on other rows."""
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
        """Inputs in f64 if the reference accepts them: 16-bit rounding hides differences."""
        drawn = draw_all(self.task, sizes, _SEED)
        wide = {name: one.double() if one.is_floating_point() else one for name, one in drawn.items()}
        try:
            self._called(wide)
        except Exception:  # the reference accepts its own dtypes only
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
_WAYS = 3  # other distributions of floats
_REDRAWS = 3  # of one input, before it counts as idle
_REPEAT_ROUNDINGS = 16.0
_DIFFERING_FRACTION = 0.01  # an index may change with the order of a sum; noise changes most elements
_ROUNDINGS = 4.0  # a constant within these of every element passes any comparison
_MOSTLY = 0.5  # of a result's root mean square
_AS_CASTS = "compute in f32 and write what must be rounded as casts, such as x.float() and y.bfloat16()"

Tensors = dict[str, torch.Tensor]
Results = tuple[torch.Tensor, ...]


def run_lint(function: Callable[..., Any], request: LintRequest) -> LintAnswer:
    """Compare results for different inputs, for one redrawn input, and for the same inputs again."""
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
    # An output that is empty or NaN everywhere is no constant.
    no_numbers = all(not one.numel() or (one.is_floating_point() and bool(one.isnan().all())) for one in answers[0])
    constant = bool(reason) and copied is None and not no_numbers
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
    """Add inputs and results for other distributions: a mean of many numbers hardly depends on anything else."""
    given, answers = list(given), list(answers)
    for number in range(_WAYS):
        inputs = tuple(
            replace(one, values=_otherwise(one.values, number, position)) if one.dtype.is_float else one
            for position, one in enumerate(task.tensors)
        )
        tensors = draw_all(replace(task, inputs=(*inputs, *task.numbers)), sizes, 21 + number)
        try:
            results = call_reference(function, task, tensors)
        except Exception:  # the reference may refuse these values
            continue
        if all(not one.is_floating_point() or bool(one.isfinite().all()) for one in results):
            given.append(tensors)
            answers.append(results)
    return given, answers


def _otherwise(values: Values, way: int, position: int) -> Values:
    """Another distribution: scaled, shifted or uniform. Neighbours are scaled differently, so ratios change."""
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


def _mismatch(task: Task, sizes: Mapping[str, int], results: Results) -> str:
    for one, found in zip(task.output_specs(sizes).items(), results, strict=False):
        name, spec = one
        shown = f"{dtype_of(found)}{list(found.shape)}"
        if tuple(found.shape) != spec.shape or dtype_of(found) is not spec.dtype:
            at = ", ".join(f"{key}={value}" for key, value in sizes.items())
            return f"its output {name} is {spec} and the reference returns {shown} at {at}"
    return ""


def _unsound(task: Task, given: list[Tensors], answers: list[Results]) -> str:
    """Why all outputs are degenerate; one sound output is enough to verify a kernel."""
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

    def equal(given: torch.Tensor | None, result: torch.Tensor) -> bool:
        return given is not None and given.shape == result.shape and torch.equal(given.double(), result.double())

    pairs = list(zip(given, found, strict=True))
    return next((one for one in task.tensors if all(equal(t.get(one.name), r) for t, r in pairs)), None)


def _lost_in_rounding(function: Callable[..., Any], task: Task, given: list[Tensors], answers: list[Results]) -> str:
    """A reason if exact results differ by less than the reference's rounding errors: a constant would pass."""
    if not all(one.is_floating_point() for one in answers[0]):
        return ""
    truths = _exact_answers(function, task, given)
    if truths is None:
        return ""
    names = [one.name for one in task.outputs] + [one.name for one in task.tensors if one.in_place]
    for name, own, true in zip(names, answers[0], truths[0], strict=False):
        if _is_made_of_roundings(own, true):
            return f"{name} consists of rounding errors of PyTorch's 16-bit steps; {_AS_CASTS}"
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
    """Results in f64; None if the reference accepts its own dtypes only."""
    wide = [
        {name: one.double() if one.is_floating_point() else one for name, one in tensors.items()} for tensors in given
    ]
    try:
        return [call_reference(function, task, tensors) for tensors in wide]
    except Exception:
        return None


def _is_made_of_roundings(own: torch.Tensor, true: torch.Tensor) -> bool:
    """Whether most of a result is rounding error of 16-bit steps, such as the compensation of a Kahan sum."""
    if own.dtype not in (torch.float16, torch.bfloat16) or own.shape != true.shape or not own.numel():
        return False
    known = own.isfinite() & true.isfinite()
    size, error = (float(torch.where(known, one, 0.0).square().mean()) for one in (own.double(), own.double() - true))
    return error > _MOSTLY**2 * size > 0.0


def _idle(
    function: Callable[..., Any], task: Task, sizes: Mapping[str, int], given: Tensors, answer: Results
) -> tuple[str, ...]:
    """The inputs that can be redrawn without changing an output, except those changed in place."""
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
    """The tensors with a nonzero gradient; none if autograd fails.

    The first layers of a deep network matter even if they change the result by less than its rounding.
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
    except Exception:  # not differentiable, or out of memory
        return set()
    return {
        name
        for name, one in zip(leaves, found, strict=True)
        if one is not None and bool(((one != 0) & one.isfinite()).any())
    }


def _same(one: Results, other: Results) -> bool:
    """Whether two results are equal, NaN equal to NaN."""
    return len(one) == len(other) and all(
        a.shape == b.shape and torch.equal(torch.nan_to_num(a.double()), torch.nan_to_num(b.double()))
        for a, b in zip(one, other, strict=True)
    )


def _alike(one: Results, other: Results) -> bool:
    """Whether two results for the same inputs agree up to the order of sums, which threads may change."""
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
