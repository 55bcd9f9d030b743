"""The roofline floor of a task: the time below which no kernel can be on its GPU, at the vendor's figures.

The products of a reference are counted in its own process, on tensors that have no memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilewright.records import LAUNCH_US, DType, GpuProfile, Impossible, Measured, Task
from tilewright.reference import AnyReference, ReferenceProblem

COUNT_FLOPS = "tilewright.measure.floor:count_flops"
IMPOSSIBLE = 0.95  # of a floor: nothing is that fast
SPLIT_PRODUCTS = 3  # 16-bit products that together are as exact as one of f32


@dataclass(frozen=True)
class FlopRequest:
    task: Task


@dataclass(frozen=True)
class FlopAnswer:
    operations: float
    convolutions: float = 0.0  # of these, those of convolutions


def floor_us(task: Task, reference: AnyReference | None = None) -> float:
    """The least bytes over the bandwidth or the least products over the peak, whichever is longer, and one launch.

    Products are counted by running the reference without data, where one is given; else only bytes count.
    """
    gpu = task.profile
    memory_us = task.moved_bytes / (gpu.bandwidth_gbs * 1e3) if gpu.bandwidth_gbs else 0.0
    flops = least_flops(task, reference) if reference is not None else FlopAnswer(0.0)
    peak, convolving = peak_tflops(task, gpu), peak_tflops(task, gpu, convolution=True)
    products_us = (flops.operations - flops.convolutions) / (peak * 1e6) if peak else 0.0
    products_us += flops.convolutions / (convolving * 1e6) if convolving else 0.0
    return max(memory_us, products_us) + LAUNCH_US


def too_fast(measured: Measured, task: Task, needed: tuple[str, ...]) -> Impossible | None:
    """Why a time cannot be: the inputs that must be read do not come in so soon. None where it can.

    Caches are cold when a timing starts, so every byte of these comes from memory; results may stay in the cache, and
    products may be fewer than the reference's, so neither counts here.
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
    """Floating-point operations of the products in the reference; 0 where it has none or cannot be counted."""
    try:
        return reference.call(COUNT_FLOPS, FlopRequest(task), FlopAnswer)
    except ReferenceProblem:
        return FlopAnswer(0.0)


def peak_tflops(task: Task, gpu: GpuProfile, *, convolution: bool = False) -> float:
    """The fastest that products of the task's largest float input may be done, within its precision."""
    floats = {name: spec for name, spec in task.specs().items() if spec.dtype.is_float}
    if not floats:
        return gpu.byte_tflops
    dtype = max(floats.values(), key=lambda spec: spec.storage_bytes).dtype
    if dtype is DType.F64:
        return gpu.f64_tflops
    if dtype is DType.F32:
        # f32 products may be made of 16-bit ones on tensor cores, which is faster than doing them as they stand.
        exact = max(gpu.f32_tflops, gpu.half_tflops / SPLIT_PRODUCTS)
        # TF32 keeps as many digits as f16, in which products are made twice as fast.
        rounded = task.precision.rounds_convolutions if convolution else task.precision.rounds_products
        return max(exact, gpu.half_tflops if rounded else 0.0)
    return gpu.half_tflops if dtype.itemsize == 2 else gpu.byte_tflops


def count_flops(function: Callable[..., Any], request: FlopRequest) -> FlopAnswer:
    """In the reference's process: operations of matrix products, convolutions and attention at the task's sizes.

    0 where it cannot be run without data.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from tilewright.reference.torch_calls import own_arguments

    arguments = own_arguments(request.task, "meta")
    counter = FlopCounterMode(display=False)
    try:
        with torch.no_grad(), torch.device("meta"), counter:
            function(**arguments)
    except Exception:  # code that looks at values cannot run without them; then bytes alone make the floor
        return FlopAnswer(0.0)
    counts = counter.get_flop_counts().get("Global", {})
    convolved = sum(count for operation, count in counts.items() if "conv" in str(operation))
    return FlopAnswer(float(counter.get_total_flops()), float(convolved))
