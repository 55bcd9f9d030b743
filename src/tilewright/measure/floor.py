"""The roofline floor of a task: a lower bound of any kernel's time, from the vendor's peak figures.

The reference's floating-point operations are counted in its own process, on meta tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilewright.records import LAUNCH_US, DType, GpuProfile, Impossible, Measured, Task
from tilewright.reference import AnyReference, ReferenceProblem

COUNT_FLOPS = "tilewright.measure.floor:count_flops"
IMPOSSIBLE = 0.95  # of a lower bound: a faster time must be wrong
SPLIT_PRODUCTS = 3  # 16-bit products that together are as accurate as one f32 product (split-f32)


@dataclass(frozen=True)
class FlopRequest:
    task: Task


@dataclass(frozen=True)
class FlopAnswer:
    operations: float
    convolutions: float = 0.0  # of these, those of convolutions


def floor_us(task: Task, reference: AnyReference | None = None) -> float:
    """The longer of the least memory traffic over the bandwidth and the products over the peak, plus one launch.

    Without a reference only bytes count.
    """
    gpu = task.profile
    memory_us = task.moved_bytes / (gpu.bandwidth_gbs * 1e3) if gpu.bandwidth_gbs else 0.0
    flops = least_flops(task, reference) if reference is not None else FlopAnswer(0.0)
    peak, convolving = peak_tflops(task, gpu), peak_tflops(task, gpu, convolution=True)
    products_us = (flops.operations - flops.convolutions) / (peak * 1e6) if peak else 0.0
    products_us += flops.convolutions / (convolving * 1e6) if convolving else 0.0
    return max(memory_us, products_us) + LAUNCH_US


def too_fast(measured: Measured, task: Task, needed: tuple[str, ...]) -> Impossible | None:
    """Why a measured time is impossible: the inputs that must be read take longer to load. None where it is possible.

    Caches are cold, so these bytes come from memory. Results may stay in the cache and a kernel may need fewer products
    than the reference, so neither counts.
    """
    specs, bandwidth_gbs = task.specs(), task.profile.bandwidth_gbs
    size = sum(specs[name].storage_bytes for name in needed)
    least_us = size / (bandwidth_gbs * 1e3) if bandwidth_gbs else 0.0
    if measured.time_us >= IMPOSSIBLE * least_us:
        return None
    return Impossible(
        f"{' and '.join(needed)} must be read, {size / 1e6:,.3g} MB, which takes {measured.gpu} {least_us:,.4g} us at "
        f"its full bandwidth, and a whole call took {measured.time_us:,.4g} us",
        measured.time_us,
        least_us,
        "us",
    )


def least_flops(task: Task, reference: AnyReference) -> FlopAnswer:
    """Floating-point operations of the reference's products; 0 where they cannot be counted."""
    try:
        return reference.call(COUNT_FLOPS, FlopRequest(task), FlopAnswer)
    except ReferenceProblem:
        return FlopAnswer(0.0)


def peak_tflops(task: Task, gpu: GpuProfile, *, convolution: bool = False) -> float:
    """The highest rate for products of the task's largest float input at its precision."""
    floats = {name: spec for name, spec in task.specs().items() if spec.dtype.is_float}
    if not floats:
        return gpu.byte_tflops
    dtype = max(floats.values(), key=lambda spec: spec.storage_bytes).dtype
    if dtype is DType.F64:
        return gpu.f64_tflops
    if dtype is DType.F32:
        # Split-f32: several 16-bit products on tensor cores are faster than one f32 product.
        exact = max(gpu.f32_tflops, gpu.half_tflops / SPLIT_PRODUCTS)
        # TF32 keeps as many digits as f16, whose products are twice as fast.
        rounded = task.precision.rounds_convolutions if convolution else task.precision.rounds_products
        return max(exact, gpu.half_tflops if rounded else 0.0)
    return gpu.half_tflops if dtype.itemsize == 2 else gpu.byte_tflops


def count_flops(function: Callable[..., Any], request: FlopRequest) -> FlopAnswer:
    """In the reference's process: the FLOPs of matmuls, convolutions and attention at the task's sizes, on meta
    tensors."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from tilewright.reference.torch_calls import own_arguments

    arguments = own_arguments(request.task, "meta")
    counter = FlopCounterMode(display=False)
    try:
        with torch.no_grad(), torch.device("meta"), counter:
            function(**arguments)
    except Exception:  # code that depends on values does not run on meta tensors: only bytes count
        return FlopAnswer(0.0)
    counts = counter.get_flop_counts().get("Global", {})
    convolved = sum(count for operation, count in counts.items() if "conv" in str(operation))
    return FlopAnswer(float(counter.get_total_flops()), float(convolved))
