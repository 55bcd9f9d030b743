"""The time of operations: measured on a GPU, or modelled from bytes and products at its roofline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode

from tilewright.frontends.finding.recording import Layout, Operation
from tilewright.records import LAUNCH_US, GpuProfile

REACHED = 0.75  # of the GPU's full speed, by a good kernel
_MARK = "tilewright operation "


def modelled_us(operation: Operation, gpu: GpuProfile) -> float:
    """Every byte and every product of one operation at the vendor's figures, and a launch."""
    if operation.is_view:
        return 0.0
    moved = sum(one.size_bytes for one in (*operation.reads, *operation.writes))
    return max(_memory_us(moved, gpu), _products_us(operation, gpu), LAUNCH_US)


def _memory_us(moved: int, gpu: GpuProfile) -> float:
    return moved / (gpu.bandwidth_gbs * 1e3) if gpu.bandwidth_gbs else 0.0


def _products_us(operation: Operation, gpu: GpuProfile) -> float:
    wide = any(one.dtype in (torch.float32, torch.float64) for one in operation.reads)
    peak = gpu.f32_tflops if wide else gpu.half_tflops
    return operation.flops / (peak * 1e6) if peak else 0.0


def expected_us(moved: Iterable[Layout], operations: Iterable[Operation], gpu: GpuProfile) -> float:
    """One kernel that reads and writes each of these once, and makes the products of these operations."""
    products = sum(_products_us(one, gpu) for one in operations)
    return max(max(_memory_us(sum(one.size_bytes for one in moved), gpu), products) / REACHED, LAUNCH_US)


class _Marked(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Puts every operation between marks that the profiler sees."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with record_function(f"{_MARK}{self.count}"):
            self.count += 1
            return func(*args, **(kwargs or {}))


def measured_us(call: Callable[[], Any], expected: Sequence[Operation]) -> list[float] | None:
    """The device time of each operation of a call that was recorded before; None where it did other things now."""
    for _ in range(2):  # workspaces, and whatever a library chooses at first
        call()
    torch.cuda.synchronize()
    marked = _Marked()
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        with marked:
            call()
        torch.cuda.synchronize()
    if marked.count != len(expected):
        return None
    times = [0.0] * marked.count
    for event in seen.events():
        if event.name.startswith(_MARK) and event.device_type.name == "CPU":
            times[int(event.name.removeprefix(_MARK))] += float(event.device_time_total)
    return times
