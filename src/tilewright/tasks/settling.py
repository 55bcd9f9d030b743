"""Inside the child: what inputs should hold where nobody said: indices that are valid, numbers that give no NaN."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from tilewright.records import (
    DType,
    IndexValues,
    IntegerValues,
    NormalValues,
    NumberInput,
    TensorSpec,
    UniformValues,
    Values,
)
from tilewright.reference import ReferenceProblem
from tilewright.reference.loading import describe, line_of_reference
from tilewright.reference.torch_calls import TORCH_DTYPE
from tilewright.tasks.drawing import draw
from tilewright.tasks.probing_records import ProbeTensor
from tilewright.tasks.trials import call

_LARGEST_ELEMENTS = 1 << 27
_LARGEST_SEARCHED_ELEMENTS = 1 << 22
_WHOLE_NUMBERS = IntegerValues(0, 100)
_POSITIVE = UniformValues(0.01, 0.99)


def settle_values(
    function: Callable[..., Any],
    tensors: Sequence[ProbeTensor],
    numbers: Sequence[NumberInput],
    sizes: Mapping[str, int],
    varying: Mapping[str, int],
) -> tuple[tuple[Values, ...], tuple[str, ...]]:
    """Values for every tensor, and what had to be assumed for that. Raises where the function takes none of them."""
    settling = _Settling(function, tensors, numbers, sizes)
    held = [one.values or _usual(one.dtype) for one in tensors]
    if settling.elements > _LARGEST_ELEMENTS:
        return tuple(held), ("the reference was not run on real values: its fixed sizes are too large",)
    for position, one in enumerate(tensors):
        if one.values is None and not one.dtype.is_float and one.dtype is not DType.BOOL:
            held[position] = settling.index_values(position, held, varying)
    problem = settling.problem(held)
    unsaid = [position for position, one in enumerate(tensors) if one.values is None and one.dtype.is_float]
    if problem and unsaid:
        positive = [_POSITIVE if position in unsaid else value for position, value in enumerate(held)]
        if not settling.problem(positive):
            names = ", ".join(tensors[position].name for position in unsaid)
            return tuple(positive), (f"{names} hold numbers between 0 and 1: {problem} with others",)
    if isinstance(problem, _Raised):
        raise ReferenceProblem(str(problem))
    return tuple(held), ()


def indexed_labels(
    function: Callable[..., Any],
    tensors: Sequence[ProbeTensor],
    numbers: Sequence[NumberInput],
    sizes: Mapping[str, int],
    varying: Mapping[str, int],
) -> dict[int, str]:
    """For every tensor said to hold whole numbers: the varying dimension that they index, where there is one."""
    unsaid = [
        replace(one, values=None) if isinstance(one.values, IntegerValues) and not one.dtype.is_float else one
        for one in tensors
    ]
    settling = _Settling(function, unsaid, numbers, sizes)
    held = [one.values or _usual(one.dtype) for one in unsaid]
    found = {}
    for position, (one, before) in enumerate(zip(unsaid, tensors, strict=True)):
        if one is not before and one.dtype is not DType.BOOL:
            values = settling.index_values(position, held, varying)
            if isinstance(values, IndexValues) and values.dimension in varying:
                found[position] = values.dimension
    return found


class _Raised(str):
    """What the function raised, as one sentence."""


class _Settling:
    def __init__(
        self,
        function: Callable[..., Any],
        tensors: Sequence[ProbeTensor],
        numbers: Sequence[NumberInput],
        sizes: Mapping[str, int],
    ) -> None:
        self._function = function
        self._tensors = tensors
        self._numbers = {one.name: one.value for one in numbers}
        self._sizes = sizes
        self._specs = [TensorSpec.contiguous(one.dtype, tuple(sizes[label] for label in one.labels)) for one in tensors]
        self.elements = sum(math.prod(spec.shape) for spec in self._specs)

    def _call(self, held: Sequence[Values], full: dict[int, int]) -> tuple[torch.Tensor, ...]:
        given = {}
        for position, (one, spec) in enumerate(zip(self._tensors, self._specs, strict=True)):
            if position in full:
                given[one.name] = torch.full(spec.shape, full[position], dtype=TORCH_DTYPE[one.dtype])
            else:
                given[one.name] = draw(spec, held[position], self._sizes, seed=position + 1)
        return call(self._function, given, self._numbers)[0]

    def problem(self, held: Sequence[Values]) -> str:
        """Why these values will not do, or ""."""
        try:
            results = self._call(held, {})
        except ReferenceProblem:
            raise
        except Exception as error:  # whatever the reference raises
            if line_of_reference(error) is None:
                raise
            return _Raised(f"the reference fails on drawn values: {describe(error)}")
        floats = [one for one in results if one.dtype.is_floating_point]
        return "the reference gives NaN" if any(bool(one.isnan().any()) for one in floats) else ""

    def index_values(self, position: int, held: list[Values], varying: Mapping[str, int]) -> Values:
        """The numbers a whole-number input may hold: the index of a dimension, where the function refuses others."""
        if self.elements > _LARGEST_SEARCHED_ELEMENTS:
            return held[position]
        lowest: list[Values] = [
            one.values or (IntegerValues(0, 1) if not one.dtype.is_float else _usual(one.dtype))
            for one in self._tensors
        ]
        most = min(
            torch.iinfo(TORCH_DTYPE[self._tensors[position].dtype]).max, 2 * max(self._sizes.values(), default=1)
        )
        if not self._takes(lowest, position, 0) or self._takes(lowest, position, most):
            return held[position]
        good, bad = 0, most
        while bad - good > 1:
            middle = (good + bad) // 2
            good, bad = (middle, bad) if self._takes(lowest, position, middle) else (good, middle)
        matching = [label for label, size in self._sizes.items() if size == bad]
        matching.sort(key=lambda label: label not in varying)
        return IndexValues(matching[0]) if matching else IntegerValues(0, bad)

    def _takes(self, held: Sequence[Values], position: int, value: int) -> bool:
        try:
            self._call(held, {position: value})
        except Exception:  # whatever the reference raises
            return False
        return True


def _usual(dtype: DType) -> Values:
    if dtype.is_float:
        return NormalValues()
    return IntegerValues(0, 2) if dtype is DType.BOOL else _WHOLE_NUMBERS
