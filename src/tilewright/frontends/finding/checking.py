"""Whether a model with kernels in it still computes what it did: its outputs against those of the model as it was.

Both are compared with the same model in a wider type. A kernel rounds in other places than PyTorch does, so outputs
differ; that is honest as long as they are not further from the wider model than the model was itself.
"""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

_SLACK = 2.0  # so much more error than the model's own is rounding
_LEAST = {torch.bfloat16: 2.0**-9, torch.float16: 2.0**-12}  # of the outputs' size, whatever the model's own error
_WARM_UP, _TIMED = 5, 21  # calls
_LARGEST_COPY = 40 << 30  # bytes of a wider copy


@dataclass(frozen=True)
class Agreement:
    """Errors are root mean squares over the outputs, as fractions of the outputs' own."""

    error: float  # of the swapped model
    own_error: float  # of the model as it was
    difference: float  # between the two
    wider: bool  # whether there was a wider model to compare with

    @property
    def is_honest(self) -> bool:
        return math.isfinite(self.error) and self.error <= self.allowed

    @property
    def allowed(self) -> float:
        return _SLACK * self.own_error

    @property
    def words(self) -> str:
        if not self.wider:
            return f"outputs differ by {self.difference:.2g} of their size"
        return (
            f"outputs differ by {self.difference:.2g} of their size; from the model in a wider type by "
            f"{self.error:.2g}, and before by {self.own_error:.2g}"
        )


class Judge:
    """Holds a model's outputs as they were, and those of a wider copy, on one call."""

    def __init__(self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._call = (model, args, kwargs)
        self._before = _outputs(*self._call)
        self._least = max((_LEAST.get(one.dtype, 2.0**-22) for one in self._before), default=0.0)
        self._wide = _wider_outputs(model, args, kwargs)

    def agreement(self) -> Agreement:
        """Of the model as it is now."""
        now = _outputs(*self._call)
        difference = _error(now, self._before)
        if self._wide is None:
            return Agreement(difference, self._least, difference, False)
        own = max(_error(self._before, self._wide), self._least)
        return Agreement(_error(now, self._wide), own, difference, True)


def _outputs(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    with torch.no_grad():
        made = model(*copy.deepcopy(args), **copy.deepcopy(kwargs))
    return [one.detach() for one in tree_leaves(made) if isinstance(one, torch.Tensor) and one.is_floating_point()]


def _wider_outputs(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor] | None:
    """None where the model is too large for a wider copy, or cannot be run in one."""
    dtypes = {one.dtype for one in model.parameters() if one.is_floating_point()}
    wide = torch.float64 if torch.float32 in dtypes else torch.float32
    if sum(one.numel() for one in model.parameters()) * wide.itemsize > _LARGEST_COPY:
        return None
    widen: Callable[[torch.Tensor], torch.Tensor] = lambda one: one.to(wide) if one.is_floating_point() else one  # noqa: E731
    try:
        copied = copy.deepcopy(model).to(wide)
        given = tree_map_only(torch.Tensor, widen, (args, kwargs))
        return _outputs(copied, given[0], given[1])
    except Exception:  # a model that insists on its own types
        return None


def call_time_us(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float | None:
    """The median time of a call on the GPU; None where the model is not on one."""
    if not all(one.is_cuda for one in model.parameters()):
        return None
    times = []
    with torch.no_grad():
        for _ in range(_WARM_UP + _TIMED):
            begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begun.record()
            model(*args, **kwargs)
            ended.record()
            torch.cuda.synchronize()
            times.append(float(begun.elapsed_time(ended)) * 1e3)
    return statistics.median(times[_WARM_UP:])


def _error(these: list[torch.Tensor], those: list[torch.Tensor]) -> float:
    if len(these) != len(those) or any(a.shape != b.shape for a, b in zip(these, those, strict=True)):
        return math.inf
    worst = 0.0
    for one, other in zip(these, those, strict=True):
        size = float(other.double().square().mean().sqrt()) or 1.0
        error = float((one.double() - other.double()).square().mean().sqrt()) / size
        worst = max(worst, error if math.isfinite(error) else math.inf)
    return worst
