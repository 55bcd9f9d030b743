"""What a reference costs as PyTorch runs it, operation by operation, where no GPU can time it: a bound, not a time.

A handler for the reference's child: the function runs once, on tensors that have no memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilewright.records import REACHED_BANDWIDTH, Task

MODEL_EAGER = "tilewright.frontends.api.eager_model:model_eager"


@dataclass(frozen=True)
class EagerRequest:
    task: Task


@dataclass(frozen=True)
class EagerAnswer:
    time_us: float
    kernels: int


def model_eager(function: Callable[..., Any], request: EagerRequest) -> EagerAnswer:
    """Every operation that is no view at the speed that a long copy reaches, on a cold cache, and at least a launch."""
    import torch

    from tilewright.frontends.finding.costs import modelled_us
    from tilewright.frontends.finding.recording import record_function
    from tilewright.measure.work import least_traffic
    from tilewright.reference.torch_calls import own_arguments

    gpu = request.task.profile
    arguments = own_arguments(request.task, "meta")
    with torch.device("meta"):
        operations = record_function(lambda: function(**arguments))
    times = [modelled_us(one, gpu) for one in operations]
    evicted = least_traffic(request.task, gpu).evicted_bytes
    evicted_us = evicted / (gpu.bandwidth_gbs * 1e3) if gpu.bandwidth_gbs else 0.0
    return EagerAnswer((sum(times) + evicted_us) / REACHED_BANDWIDTH, sum(time > 0 for time in times))
