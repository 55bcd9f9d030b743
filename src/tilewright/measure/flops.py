"""A handler for the reference's child: the products of a reference, counted on tensors that have no memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilewright.records import Task

LEAST_FLOPS = "tilewright.measure.flops:count_flops"


@dataclass(frozen=True)
class FlopRequest:
    task: Task


@dataclass(frozen=True)
class FlopAnswer:
    operations: float


def count_flops(function: Callable[..., Any], request: FlopRequest) -> FlopAnswer:
    """Operations of matrix products, convolutions and attention at the task's sizes; 0 where it cannot be run so."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from tilewright.reference.torch_calls import TORCH_DTYPE

    task = request.task
    arguments: dict[str, Any] = {one.name: one.value for one in task.numbers}
    specs = task.specs()
    for one in task.tensors:
        spec = specs.get(one.name)
        arguments[one.name] = (
            None
            if spec is None
            else torch.empty_strided(spec.shape, spec.stride, dtype=TORCH_DTYPE[spec.dtype], device="meta")
        )
    counter = FlopCounterMode(display=False)
    try:
        with torch.no_grad(), torch.device("meta"), counter:
            function(**arguments)
    except Exception:  # code that looks at values cannot run without them; then bytes alone make the floor
        return FlopAnswer(0.0)
    return FlopAnswer(float(counter.get_total_flops()))
