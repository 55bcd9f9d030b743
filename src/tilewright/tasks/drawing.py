"""Inside the child: tensors with the values a task's inputs are said to hold."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from tilewright.records import DType, IndexValues, IntegerValues, NormalValues, TensorSpec, UniformValues, Values
from tilewright.reference.torch_calls import TORCH_DTYPE


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
    low, high = (values.low, values.high) if isinstance(values, IntegerValues) else _index_range(values, sizes)
    return torch.randint(low, max(high, low + 1), spec.shape, generator=generator)


def _index_range(values: IndexValues, sizes: Mapping[str, int]) -> tuple[int, int]:
    return 0, sizes[values.dimension]
