"""Runs in the child: draws input tensors, and finds values for inputs without given ones: valid indices, no NaN."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tilewright.records import (
    BETWEEN_0_AND_1,
    DType,
    IndexValues,
    IntegerValues,
    NormalValues,
    NumberInput,
    Task,
    TensorInput,
    TensorSpec,
    UniformValues,
    Values,
)
from tilewright.reference import ReferenceProblem
from tilewright.reference.loading import describe, line_of_reference
from tilewright.reference.torch_calls import TORCH_DTYPE
from tilewright.tasks.child.size_search import SizeSearch
from tilewright.tasks.child.trials import call

_LARGEST_ELEMENTS = 1 << 27
_LARGEST_SEARCHED_ELEMENTS = 1 << 22
_MOSTLY = 0.8  # of all elements
_WHOLE_NUMBERS = IntegerValues(0, 100)


def draw_all(
    task: Task, sizes: Mapping[str, int], seed: int, names: Collection[str] | None = None
) -> dict[str, torch.Tensor]:
    """The inputs of a task, or those named."""
    specs = task.specs(sizes)
    return {
        one.name: draw(specs[one.name], one.values, sizes, seed * 1000 + position)
        for position, one in enumerate(task.tensors)
        if one.name in specs and (names is None or one.name in names)
    }


def draw(spec: TensorSpec, values: Values, sizes: Mapping[str, int], seed: int) -> torch.Tensor:
    """A tensor with the layout of its spec; the same seed gives the same elements."""
    generator = torch.Generator().manual_seed(seed)
    drawn = _drawn(spec, values, sizes, generator).to(TORCH_DTYPE[spec.dtype])
    if spec.is_contiguous:
        return drawn
    laid = torch.empty_strided(spec.shape, spec.stride, dtype=drawn.dtype)
    return laid.copy_(drawn)


def _drawn(spec: TensorSpec, values: Values, sizes: Mapping[str, int], generator: torch.Generator) -> torch.Tensor:
    wide = torch.float64 if spec.dtype is DType.F64 else torch.float32
    if isinstance(values, NormalValues):
        normal = torch.randn(spec.shape, generator=generator, dtype=wide)
        return normal * values.deviation + values.mean
    if isinstance(values, UniformValues):
        return torch.rand(spec.shape, generator=generator, dtype=wide) * (values.high - values.low) + values.low
    low, high = (values.low, values.high) if isinstance(values, IntegerValues) else (0, sizes[values.dimension])
    return torch.randint(low, max(high, low + 1), spec.shape, generator=generator)


def find_values(
    function: Callable[..., Any],
    tensors: Sequence[TensorInput],
    unspecified: Collection[str],
    numbers: Sequence[NumberInput],
    search: SizeSearch,
) -> tuple[list[TensorInput], tuple[str, ...]]:
    """The tensors with values for the `unspecified` ones, and the assumptions made.

    A dimension that is indexed by given numbers becomes static. Raises if the function accepts no values.
    """
    usual = [replace(one, values=_usual(one.dtype)) if one.name in unspecified else one for one in tensors]
    indexed = _indexing(function, usual, unspecified, numbers, search)
    return _find_values(_ValueSearch(function, indexed, unspecified, numbers, search.small_sizes()), search.changing)


def _indexing(
    function: Callable[..., Any],
    tensors: list[TensorInput],
    unspecified: Collection[str],
    numbers: Sequence[NumberInput],
    search: SizeSearch,
) -> list[TensorInput]:
    """The tensors, with integers up to a dynamic dimension's size turned into indices of it."""
    whole = {
        one.name: one.values.high for one in tensors if isinstance(one.values, IntegerValues) and not one.dtype.is_float
    }
    values_search = _ValueSearch(function, tensors, {*unspecified, *whole}, numbers, search.small_sizes())
    changing, found = search.changing, {}
    for one in tensors:
        if one.name in whole and one.name not in unspecified and one.dtype is not DType.BOOL:
            values = values_search.index_values(one, changing)
            if isinstance(values, IndexValues) and values.dimension in changing:
                found[one.name] = values
    for name, index in found.items():
        if search.size_of(index.dimension) == whole[name]:
            tensors = [replace(one, values=index) if one.name == name else one for one in tensors]
        else:
            search.fix(index.dimension, f"{name} holds numbers up to {whole[name] - 1} that index it")
    return tensors


@dataclass(frozen=True)
class _Problem:
    """Why values do not work."""

    text: str
    raised: bool  # else the result is NaN or infinite


class _ValueSearch:
    """Calls of a function with several sets of values."""

    def __init__(
        self,
        function: Callable[..., Any],
        tensors: Sequence[TensorInput],
        unspecified: Collection[str],
        numbers: Sequence[NumberInput],
        sizes: Mapping[str, int],
    ) -> None:
        self._function = function
        self.tensors = tensors
        self.unspecified = unspecified
        self._numbers = {one.name: one.value for one in numbers}
        self._sizes = sizes
        self._specs = [
            TensorSpec.contiguous(one.dtype, tuple(sizes[label] for label in one.dimensions)) for one in tensors
        ]
        self.elements = sum(math.prod(spec.shape) for spec in self._specs)

    def _call(self, tensors: Sequence[TensorInput], full: Mapping[str, int]) -> tuple[torch.Tensor, ...]:
        """A call in which the tensors in `full` hold one number everywhere."""
        given = {}
        for seed, (one, spec) in enumerate(zip(tensors, self._specs, strict=True), start=1):
            if one.name in full:
                given[one.name] = torch.full(spec.shape, full[one.name], dtype=TORCH_DTYPE[one.dtype])
            else:
                given[one.name] = draw(spec, one.values, self._sizes, seed)
        return call(self._function, given, self._numbers)[0]

    def problem(self, tensors: Sequence[TensorInput]) -> _Problem | None:
        """Why these values do not work; None if they do."""
        try:
            results = self._call(tensors, {})
        except ReferenceProblem:
            raise
        except Exception as error:  # whatever the reference raises
            if line_of_reference(error) is None:
                raise
            return _Problem(f"the reference fails on drawn values: {describe(error)}", raised=True)
        floats = [one.double() for one in results if one.dtype.is_floating_point and one.numel()]  # float8 has no isinf
        if any(bool(one.isnan().any()) for one in floats):
            return _Problem("the reference gives NaN", raised=False)
        # Some infinities are legitimate results for negative inputs; almost nothing else is not.
        if any(float(one.isinf().double().mean()) > _MOSTLY for one in floats):
            return _Problem("the reference gives infinities", raised=False)
        return None

    def index_values(self, one: TensorInput, varying: Mapping[str, int]) -> Values:
        """The values of an integer input: indices of a dimension if the function refuses larger ones."""
        if self.elements > _LARGEST_SEARCHED_ELEMENTS:
            return one.values
        most = min(torch.iinfo(TORCH_DTYPE[one.dtype]).max, 2 * max(self._sizes.values(), default=1))
        if not self._takes(one, 0) or self._takes(one, most):
            return one.values
        good, bad = 0, most
        while bad - good > 1:
            middle = (good + bad) // 2
            good, bad = (middle, bad) if self._takes(one, middle) else (good, middle)
        matching = [label for label, size in self._sizes.items() if size == bad]
        matching.sort(key=lambda label: label not in varying)
        return IndexValues(matching[0]) if matching else IntegerValues(0, bad)

    def _takes(self, one: TensorInput, value: int) -> bool:
        """Whether the function accepts this number while other unspecified integers are 0."""
        lowest = [
            replace(other, values=IntegerValues(0, 1))
            if other.name in self.unspecified and not other.dtype.is_float
            else other
            for other in self.tensors
        ]
        try:
            self._call(lowest, {one.name: value})
        except Exception:  # whatever the reference raises
            return False
        return True


def _find_values(values_search: _ValueSearch, varying: Mapping[str, int]) -> tuple[list[TensorInput], tuple[str, ...]]:
    tensors = list(values_search.tensors)
    if values_search.elements > _LARGEST_ELEMENTS:
        return tensors, ("the reference was not run on real values: its static sizes are too large",)
    for position, one in enumerate(tensors):
        if one.name in values_search.unspecified and not one.dtype.is_float and one.dtype is not DType.BOOL:
            tensors[position] = replace(one, values=values_search.index_values(one, varying))
    problem = values_search.problem(tensors)
    floats = [one.name for one in tensors if one.name in values_search.unspecified and one.dtype.is_float]
    if problem and floats:
        positive = [replace(one, values=BETWEEN_0_AND_1) if one.name in floats else one for one in tensors]
        if values_search.problem(positive) is None:
            bounded = _where_needed(values_search, tensors, positive)
            names = [one.name for one, usual in zip(bounded, tensors, strict=True) if one != usual]
            hold = "holds" if len(names) == 1 else "hold"
            return bounded, (f"{', '.join(names)} {hold} numbers between 0 and 1: {problem.text} with others",)
    if problem and problem.raised:
        raise ReferenceProblem(problem.text)
    return tensors, ()


def _where_needed(
    values_search: _ValueSearch, usual: Sequence[TensorInput], bounded: Sequence[TensorInput]
) -> list[TensorInput]:
    """The bounded tensors, with the usual values for those that work with them: logits stay signed beside targets."""
    kept = list(bounded)
    for position, one in enumerate(usual):
        tried = [*kept[:position], one, *kept[position + 1 :]]
        if kept[position] != one and values_search.problem(tried) is None:
            kept = tried
    return kept


def _usual(dtype: DType) -> Values:
    if dtype.is_float:
        return NormalValues()
    return IntegerValues(0, 2) if dtype is DType.BOOL else _WHOLE_NUMBERS
