"""Inside the child: tensors drawn as a task says, and what inputs should hold where nobody said: indices that are
valid, numbers that give no NaN."""

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
_NOTHING_ELSE = 0.8  # of all elements
_WHOLE_NUMBERS = IntegerValues(0, 100)


def draw_all(
    task: Task, sizes: Mapping[str, int], seed: int, names: Collection[str] | None = None
) -> dict[str, torch.Tensor]:
    """The inputs of a task, or those named of them."""
    specs = task.specs(sizes)
    return {
        one.name: draw(specs[one.name], one.values, sizes, seed * 1000 + position)
        for position, one in enumerate(task.tensors)
        if one.name in specs and (names is None or one.name in names)
    }


def draw(spec: TensorSpec, values: Values, sizes: Mapping[str, int], seed: int) -> torch.Tensor:
    """A tensor laid out as its spec says; the same seed gives the same elements."""
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


def settle_values(
    function: Callable[..., Any],
    tensors: Sequence[TensorInput],
    unsaid: Collection[str],
    numbers: Sequence[NumberInput],
    search: SizeSearch,
) -> tuple[list[TensorInput], tuple[str, ...]]:
    """The tensors with values for those that are `unsaid`, and what had to be assumed for that.

    A dimension that others index by numbers that a person gave is held. Raises where the function takes no values.
    """
    usual = [replace(one, values=_usual(one.dtype)) if one.name in unsaid else one for one in tensors]
    settled = _indexing(function, usual, unsaid, numbers, search)
    return _settled(_Settling(function, settled, unsaid, numbers, search.small_sizes()), search.moving)


def _indexing(
    function: Callable[..., Any],
    tensors: list[TensorInput],
    unsaid: Collection[str],
    numbers: Sequence[NumberInput],
    search: SizeSearch,
) -> list[TensorInput]:
    """The tensors, with those said to hold whole numbers up to a varying dimension's size made indices of it."""
    whole = {
        one.name: one.values.high for one in tensors if isinstance(one.values, IntegerValues) and not one.dtype.is_float
    }
    settling = _Settling(function, tensors, {*unsaid, *whole}, numbers, search.small_sizes())
    moving, found = search.moving, {}
    for one in tensors:
        if one.name in whole and one.name not in unsaid and one.dtype is not DType.BOOL:
            values = settling.index_values(one, moving)
            if isinstance(values, IndexValues) and values.dimension in moving:
                found[one.name] = values
    for name, index in found.items():
        if search.size_of(index.dimension) == whole[name]:
            tensors = [replace(one, values=index) if one.name == name else one for one in tensors]
        else:
            search.hold(index.dimension, f"{name} holds numbers up to {whole[name] - 1} that index it")
    return tensors


@dataclass(frozen=True)
class _Problem:
    """Why values will not do."""

    text: str
    raised: bool  # else the function only gives what is no number


class _Settling:
    """Calls of a function with one set of values or another; `unsaid` tensors hold the usual."""

    def __init__(
        self,
        function: Callable[..., Any],
        tensors: Sequence[TensorInput],
        unsaid: Collection[str],
        numbers: Sequence[NumberInput],
        sizes: Mapping[str, int],
    ) -> None:
        self._function = function
        self.tensors = tensors
        self.unsaid = unsaid
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
        """Why these values will not do; None where they will."""
        try:
            results = self._call(tensors, {})
        except ReferenceProblem:
            raise
        except Exception as error:  # whatever the reference raises
            if line_of_reference(error) is None:
                raise
            return _Problem(f"the reference fails on drawn values: {describe(error)}", raised=True)
        floats = [one for one in results if one.dtype.is_floating_point and one.numel()]
        if any(bool(one.isnan().any()) for one in floats):
            return _Problem("the reference gives NaN", raised=False)
        # Some infinities are a choice that negative numbers should be seen to make; nothing else is no answer.
        if any(float(one.isinf().double().mean()) > _NOTHING_ELSE for one in floats):
            return _Problem("the reference gives infinities", raised=False)
        return None

    def index_values(self, one: TensorInput, varying: Mapping[str, int]) -> Values:
        """The numbers a whole-number input may hold: the index of a dimension, where the function refuses others."""
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
        """Whether the function takes this number, while the other unsaid whole numbers are 0."""
        lowest = [
            replace(other, values=IntegerValues(0, 1))
            if other.name in self.unsaid and not other.dtype.is_float
            else other
            for other in self.tensors
        ]
        try:
            self._call(lowest, {one.name: value})
        except Exception:  # whatever the reference raises
            return False
        return True


def _settled(settling: _Settling, varying: Mapping[str, int]) -> tuple[list[TensorInput], tuple[str, ...]]:
    tensors = list(settling.tensors)
    if settling.elements > _LARGEST_ELEMENTS:
        return tensors, ("the reference was not run on real values: its fixed sizes are too large",)
    for position, one in enumerate(tensors):
        if one.name in settling.unsaid and not one.dtype.is_float and one.dtype is not DType.BOOL:
            tensors[position] = replace(one, values=settling.index_values(one, varying))
    problem = settling.problem(tensors)
    floats = [one.name for one in tensors if one.name in settling.unsaid and one.dtype.is_float]
    if problem and floats:
        positive = [replace(one, values=BETWEEN_0_AND_1) if one.name in floats else one for one in tensors]
        if settling.problem(positive) is None:
            bounded = _where_needed(settling, tensors, positive)
            names = [one.name for one, usual in zip(bounded, tensors, strict=True) if one != usual]
            hold = "holds" if len(names) == 1 else "hold"
            return bounded, (f"{', '.join(names)} {hold} numbers between 0 and 1: {problem.text} with others",)
    if problem and problem.raised:
        raise ReferenceProblem(problem.text)
    return tensors, ()


def _where_needed(
    settling: _Settling, usual: Sequence[TensorInput], bounded: Sequence[TensorInput]
) -> list[TensorInput]:
    """The bounded tensors, with those at their usual values that the function takes so beside the others: logits keep
    their signs though targets have none."""
    kept = list(bounded)
    for position, one in enumerate(usual):
        tried = [*kept[:position], one, *kept[position + 1 :]]
        if kept[position] != one and settling.problem(tried) is None:
            kept = tried
    return kept


def _usual(dtype: DType) -> Values:
    if dtype.is_float:
        return NormalValues()
    return IntegerValues(0, 2) if dtype is DType.BOOL else _WHOLE_NUMBERS
