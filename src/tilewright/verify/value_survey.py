"""In the reference's process: which values outside the task's own the reference accepts, found by calling it.

Kernels must do what the reference does. So values outside the task's are used where the reference accepts them and
defines the result: the order of NaN and its conversion to an integer are undefined, formulas that are equal for numbers
differ for infinities, and a product may be computed in ways that spread a NaN or an infinity further than the sum
itself would.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tilewright.records import Case, IndexValues, Task
from tilewright.reference.torch_calls import call_reference, to_torch
from tilewright.verify.distributions import (
    NUMBERS,
    TASK,
    WHOLE,
    case_task,
    draw_inputs,
    has_varied_floats,
    values_with,
    whole_inputs,
)
from tilewright.verify.expectation import in_f64
from tilewright.verify.float_values import (
    ANYWHERE,
    BOTH,
    EDGES,
    HUGE,
    INFINITE,
    LOWER,
    NAN_ANYWHERE,
    NAN_ROWS,
    OUTSIDE,
    PATTERNED,
    SPECIAL,
    UPPER,
    bounded,
)
from tilewright.verify.integer_values import IGNORED
from tilewright.verify.judging_records import SurveyRequest, ValueSurvey

_PRODUCTS = frozenset({"mm", "bmm", "mv", "dot", "addmm", "baddbmm", "addbmm", "addmv", "linear", "_int_mm"})
_ATTENTION = "_scaled_dot_product"
_OF_ZEROS = frozenset({"diag_embed", "block_diag", "eye"})  # a product with such a matrix may skip its zeros
_CONVOLUTIONS = frozenset({"convolution", "_convolution", "conv1d", "conv2d", "conv3d", "im2col", "col2im"})
_ORDERED = frozenset(
    {"sort", "topk", "argmax", "argmin", "argsort", "kthvalue", "median", "nanmedian", "mode", "cummax", "cummin"}
    | {"msort", "unique", "searchsorted", "bucketize"}
)
# Return indices too, the former where a dimension is given; the values alone are NaN where there is one.
_WITH_PLACES = frozenset({"max", "min", "max_pool2d_with_indices", "max_pool3d_with_indices"})
_BY_PLACES = frozenset({"gather", "index", "index_select", "take", "max_unpool2d", "max_unpool3d", "scatter"})
_DIVISIONS = frozenset({"div", "floor_divide", "remainder", "fmod", "divide", "true_divide"})
# Operations that masks with infinities are for. Elementwise, x * (x > 0) is a relu too.
_OF_ROWS = (
    _ORDERED
    | _WITH_PLACES
    | {"_softmax", "_log_softmax", "_safe_softmax", "logsumexp", "logcumsumexp", "amax", "amin", "max"}
)
_OF_ROWS |= {"min", "sum", "mean", "cumsum", "prod", "any", "all"}
_ALGEBRA = frozenset({"mul", "sub", "rsub", "div", "addcmul", "addcdiv", "lerp"})
# Written with fmaxf and fminf, which drop NaN. Inside a formula that is accepted; as the result it is wrong.
_BOUNDS = frozenset({"clamp", "clamp_min", "clamp_max", "maximum", "minimum", "relu", "hardtanh", "amax", "amin"})
_COPIES = frozenset({"clone", "_to_copy", "copy", "contiguous", "detach"})
_LEAST_FACTOR = 1e-2
_SHIFTS = frozenset({"bitwise_left_shift", "bitwise_right_shift", "__lshift__", "__rshift__", "pow"})


def survey_values(function: Callable[..., Any], request: SurveyRequest) -> ValueSurvey:
    """The handler: the further kinds of values that the task's cases may hold."""
    survey = _Survey(function, request.task, request.sizes)
    if request.whole:
        return ValueSurvey(tuple(survey.whole_numbers()))
    return ValueSurvey((*survey.special(), *survey.huge(), *survey.edges(), *survey.outside(), *survey.numbers()))


class _Watching(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records what a call of the reference does."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled, and asking would import the compiler, which takes seconds

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: set[str] = set()
        self.whole_divisors = self.shifts = False
        self.algebra = False  # of two tensors, which may be reordered: inf - inf * y is not (1 - y) * inf
        self.bounds = 0
        self.ends_with_bound = False
        self.converts = False  # floats to integers
        self.divides = False  # by floats of a tensor
        self.places = False  # returned beside the largest

    @property
    def keeps_nan(self) -> bool:
        """Whether a NaN on the way is guaranteed to reach the results, if they are floats."""
        ordered = self.operations & _ORDERED or (self.places and self.operations & _BY_PLACES)
        return not ordered and self.bounds <= self.ends_with_bound

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        name = func._schema.name.rpartition("::")[2].rstrip("_") or func._schema.name
        self.operations.add(name)
        if not any(one.alias_info is not None for one in func._schema.returns) and name not in _COPIES:
            self.ends_with_bound = name in _BOUNDS
            self.bounds += name in _BOUNDS
        second = args[1] if len(args) > 1 and isinstance(args[1], torch.Tensor) else None
        if second is not None and not second.is_floating_point() and name in _DIVISIONS:
            self.whole_divisors = True
        self.divides |= second is not None and second.is_floating_point() and name in _DIVISIONS
        if second is not None and second.is_floating_point() and name in _ALGEBRA:
            self.algebra = True
        if second is not None and name in _SHIFTS:
            self.shifts = True
        first = args[0] if args and isinstance(args[0], torch.Tensor) else None
        self.places |= name in _WITH_PLACES and isinstance(results, (tuple, list))
        made = results if isinstance(results, torch.Tensor) else None
        floats = first is not None and first.is_floating_point()
        whole = made is not None and not made.is_floating_point() and made.dtype != torch.bool
        if floats and whole and name in ("_to_copy", "to", "copy"):
            self.converts = True
        return results


class _Survey:
    def __init__(self, function: Callable[..., Any], task: Task, sizes: dict[str, int]) -> None:
        self._function = function
        self._task = task
        self._sizes = sizes

    def special(self) -> Iterator[str]:
        """The kinds with NaN or infinities that are well-defined here, if any."""
        with _Watching() as seen:
            results = self._results(TASK)
        if results is None:
            return
        if not self._holds_more_than_numbers(seen):
            return
        fused = any(one.startswith(_ATTENTION) for one in seen.operations)
        products = seen.operations & _PRODUCTS or fused
        # For a NaN query PyTorch returns zeros on a CPU and NaN on a GPU.
        with_nan = seen.keeps_nan and not fused
        with_nan = with_nan and not (seen.places and any(not one.is_floating_point() for one in results))
        with_nan = with_nan and not (products and seen.operations & _OF_ZEROS)  # 0 * NaN, which a kernel may skip
        with_infinities = not (seen.algebra or products) and bool(seen.operations & _OF_ROWS)
        floats = [one for one in self._task.tensors if one.dtype.is_float and not one.optional]
        anywhere = with_nan and not products and len(floats) > 1
        kinds = [SPECIAL if with_nan else INFINITE] if with_infinities else []
        if anywhere or (with_nan and not with_infinities):
            kinds.append(NAN_ANYWHERE if anywhere else NAN_ROWS)
        yield from (one for one in kinds if self._results(one) is not None)

    def huge(self) -> Iterator[str]:
        """Huge numbers, where some are divisors and the reference at its dtype agrees with f64."""
        with _Watching() as seen:
            results = self._results(HUGE)
        if results is None or not seen.divides or not self._holds_more_than_numbers(seen):
            return
        case = Case(self._sizes, 7, HUGE)
        wide = in_f64(lambda given: call_reference(self._function, self._task, given), self._drawn(self._task, case))
        if all(_agrees(one, other) for one, other in zip(results, wide, strict=True)):
            yield HUGE

    def _holds_more_than_numbers(self, seen: _Watching) -> bool:
        """Whether NaN and infinities propagate at all."""
        narrow = any(one.dtype.is_float and one.dtype.itemsize == 1 for one in self._task.tensors)
        return not (narrow or seen.converts or seen.operations & _CONVOLUTIONS)

    def edges(self) -> Iterator[str]:
        """Tensors with elements at 0 and 1 where the reference is finite: all together, or as far as each allows."""
        names = [one.name for one in self._task.tensors if bounded(one)]
        together = values_with(EDGES, dict.fromkeys(names, BOTH))
        if not names or self._is_finite(together):
            yield from [together] if names else []
            return
        alone = [
            (name, level)
            for name in names
            for level in itertools.islice(
                (one for one in (BOTH, LOWER, UPPER) if self._is_finite(values_with(EDGES, {name: one}))), 1
            )
        ]
        if len(alone) > 1 and self._is_finite(values_with(EDGES, dict(alone))):
            yield values_with(EDGES, dict(alone))
        else:
            yield from (values_with(EDGES, {name: level}) for name, level in alone)

    def _is_finite(self, values: str) -> bool:
        results = self._results(values)
        return results is not None and all(bool(one.isfinite().all()) for one in results)

    def outside(self) -> Iterator[str]:
        """Numbers outside 0 and 1, where some of them give NaN and affect no other element, such as log(|x|) for
        log(x)."""
        given = [one for one in self._task.tensors if not one.optional]
        if len(given) != 1 or not bounded(given[0]) or given[0].in_place:
            return
        with _Watching() as seen:
            values = values_with(OUTSIDE, {given[0].name: ANYWHERE})
            results = self._results(values)
        if results is None or not (seen.keeps_nan and self._holds_more_than_numbers(seen)):
            return
        case = Case(self._sizes, 7, values)
        name, spec = given[0].name, self._task.specs(self._sizes)[given[0].name]
        drawn = to_torch(spec, draw_inputs(self._task, case)[name])
        beyond = (drawn < 0) | (drawn > 1)
        inside = self._call_with({name: drawn.masked_fill(beyond, 0.5)})
        if inside is not None and all(_differs_at(beyond, *pair) for pair in zip(results, inside, strict=True)):
            yield values

    def whole_numbers(self) -> Iterator[str]:
        """Each integer tensor in the widest range that the reference accepts, with the others in the task's."""
        given = whole_inputs(self._task)
        if not given:
            return
        with _Watching() as seen:
            if self._results(TASK) is None:
                return
        found: dict[str, str] = {}
        for one in given:
            wide = [] if isinstance(one.values, IndexValues) else ["full", "large"]
            levels = [*wide, "signed", IGNORED, "own"]
            if seen.whole_divisors or seen.shifts:
                levels = [level for level in levels if level != "full"]
            if seen.shifts:
                levels = ["own"]
            if one.dtype.value == "u8":
                levels = [level for level in levels if level not in ("signed", IGNORED)]
            found[one.name] = next(
                (level for level in levels if self._results(values_with(WHOLE, {one.name: level})) is not None), ""
            )
        chosen = {name: level for name, level in found.items() if level}
        if chosen and self._results(values_with(WHOLE, chosen)) is not None:
            yield values_with(WHOLE, chosen)
        elif chosen:
            yield values_with(WHOLE, dict.fromkeys(chosen, "own"))

    def numbers(self) -> Iterator[str]:
        """Scalars at other values for which the reference is finite and does something else.

        All are changed at once, or each alone where that fails. Floats are also 1 among patterns, so that ties of what
        they divide are exact.
        """
        usual = self._called(TASK)
        if usual is None:
            return
        others = {
            one.name: [value for value in _other_values(one.value, turn) if one.takes(value)]
            for turn, one in enumerate(self._task.numbers)
        }
        seen = [usual]
        for turn in range(max(map(len, others.values()), default=0)):
            wanted = [{name: values[turn] for name, values in others.items() if turn < len(values)}]
            while wanted:
                chosen = wanted.pop(0)
                found = self._shaped(chosen)
                if found is None or self._ignores_signs(chosen, found[1]):
                    wanted += [{name: value} for name, value in chosen.items()] if len(chosen) > 1 else []
                elif not any(_same(found[1], one) for one in seen):
                    seen.append(found[1])
                    yield found[0]
        floats = [one for one in self._task.numbers if isinstance(one.value, float)]
        ones = {one.name: 1.0 for one in floats if one.value != 1.0 and one.takes(1.0)}
        if ones and has_varied_floats(self._task) and self._results(values_with(PATTERNED, ones)) is not None:
            yield values_with(PATTERNED, ones)

    def _ignores_signs(self, chosen: Mapping[str, float], results: tuple[torch.Tensor, ...]) -> bool:
        """Whether negative numbers are treated as 0, as PyTorch does with a negative smoothing, which is undefined."""
        if not any(value < 0 for value in chosen.values()):
            return False
        nothing = self._shaped({name: max(value, 0.0) for name, value in chosen.items()})
        return nothing is not None and _same(nothing[1], results)

    def _shaped(self, chosen: Mapping[str, float]) -> tuple[str, tuple[torch.Tensor, ...]] | None:
        """The kind of values with these numbers and the resulting shapes, and the results; None where they cannot be
        judged."""
        plain = values_with(NUMBERS, chosen)
        results = self._called(plain)
        made = () if results is None else results[: len(self._task.outputs)]
        if results is None or not all(one.numel() and bool(one.isfinite().all()) for one in made):
            return None
        expected = self._task.output_specs(self._sizes)
        if all(tuple(one.shape) == spec.shape for one, spec in zip(made, expected.values(), strict=True)):
            return plain, results
        if not all(one.dim() for one in made) or min(chosen.values()) < 1:
            return None  # a size below 1 is no size, whatever slices make of it
        shapes = {
            one.name: "x".join(map(str, found.shape)) for one, found in zip(self._task.outputs, made, strict=True)
        }
        return values_with(NUMBERS, {**chosen, **shapes}), results

    def _results(self, values: str) -> tuple[torch.Tensor, ...] | None:
        """What the reference returns; None where it fails or returns other shapes than the task's."""
        results = self._called(values)
        if results is None:
            return None
        made = self._task.output_specs(self._sizes)
        shapes = itertools.zip_longest((one.shape for one in made.values()), results[: len(made)])
        if any(one is None or two is None or tuple(one) != tuple(two.shape) for one, two in shapes):
            return None
        return results

    def _called(self, values: str) -> tuple[torch.Tensor, ...] | None:
        case = Case(self._sizes, 7, values)
        task = case_task(self._task, case)
        return self._call_with(self._drawn(task, case), task)

    def _drawn(self, task: Task, case: Case) -> dict[str, torch.Tensor]:
        specs = task.specs(self._sizes)
        return {name: to_torch(specs[name], content) for name, content in draw_inputs(task, case).items()}

    def _call_with(self, tensors: dict[str, torch.Tensor], task: Task | None = None) -> tuple[torch.Tensor, ...] | None:
        try:
            return call_reference(self._function, task or self._task, tensors)
        except Exception:  # whatever the reference raises
            return None


def _other_values(value: float, turn: int) -> list[float]:
    """Other values of a scalar: signs, 0, 1, a little more, much more or less, in another order for every scalar. Two
    scalars at 0 or 1 at once could hide each other. A small float is an epsilon, which must not be negative."""
    if isinstance(value, bool):
        return [int(not value)]
    if isinstance(value, int):
        wanted: list[float] = [value + 1, -value, 0, 1, 33, value - 1, 2 * value + 1]
    elif 0 < abs(value) < _LEAST_FACTOR:
        wanted = [1.0, 0.0]
    else:
        wanted = [-value, 40.0 * value, 0.0, 1.0, -40.0 * value, value / 4096]
    kept = [one for one in dict.fromkeys(wanted) if one != value]
    return [kept[(place + turn) % len(kept)] for place in range(len(kept))]


def _differs_at(places: torch.Tensor, one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether one has NaN at these places only and otherwise equals the other, which has none."""
    if one.shape != places.shape or not bool(one.isnan().any()):
        return False
    return torch.equal(one[~places], other[~places]) and not bool(other.isnan().any())


def _agrees(own: torch.Tensor, wide: torch.Tensor) -> bool:
    """Whether the own arithmetic has what f64 has, to a few bits, or an infinity where f64 has more than it holds."""
    if not own.is_floating_point():
        return torch.equal(own, wide)
    if not bool(wide.isfinite().all()):
        return False
    near = (own.double() - wide).abs() <= 2.0**-6 * wide.abs() + torch.finfo(own.dtype).tiny
    return bool((near | (own.isinf() & (wide.abs() > 0.99 * torch.finfo(own.dtype).max))).all())


def _same(one: tuple[torch.Tensor, ...], other: tuple[torch.Tensor, ...]) -> bool:
    pairs = zip(one, other, strict=True)
    return all(
        a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in pairs
    )
