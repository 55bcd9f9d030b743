"""The roofline floor of a task: the time below which no kernel can be on its GPU, at the vendor's figures."""

from __future__ import annotations

from tilewright.measure.flops import LEAST_FLOPS, FlopAnswer, FlopRequest
from tilewright.records import LAUNCH_US, DType, GpuProfile, Precision, Task
from tilewright.reference import AnyReference, ReferenceProblem

SPLIT_PRODUCTS = 3  # 16-bit products that together are as exact as one of f32


def floor_us(task: Task, reference: AnyReference | None = None) -> float:
    """The least bytes over the bandwidth or the least products over the peak, whichever is longer, and one launch.

    Products are counted by running the reference without data, where one is given; else only bytes count.
    """
    gpu = task.profile
    memory_us = task.moved_bytes / (gpu.bandwidth_gbs * 1e3) if gpu.bandwidth_gbs else 0.0
    flops = least_flops(task, reference) if reference is not None else 0.0
    peak = peak_tflops(task, gpu)
    return max(memory_us, flops / (peak * 1e6) if peak else 0.0) + LAUNCH_US


def least_flops(task: Task, reference: AnyReference) -> float:
    """Floating-point operations of the products in the reference; 0 where it has none or cannot be counted."""
    try:
        return reference.call(LEAST_FLOPS, FlopRequest(task), FlopAnswer).operations
    except ReferenceProblem:
        return 0.0


def peak_tflops(task: Task, gpu: GpuProfile) -> float:
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
        looser = {Precision.TF32: gpu.tf32_tflops, Precision.HALF: gpu.half_tflops}
        return max(exact, looser.get(task.precision, 0.0))
    return gpu.half_tflops if dtype.itemsize == 2 else gpu.byte_tflops
