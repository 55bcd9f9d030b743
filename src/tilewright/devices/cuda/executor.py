"""A CUDA device of this process: loads modules and prepares bound plans, in torch's primary context.

`executor_of` returns the process's executor of a device; another one would only load modules again.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import threading
from collections.abc import Callable
from typing import Any

import torch

from tilewright.devices.cuda import driver
from tilewright.devices.cuda.driver import DriverError, LoadedKernel, gpu_profile
from tilewright.devices.cuda.launcher import Launcher, make_launcher
from tilewright.devices.cuda.plan_layout import lay_out
from tilewright.devices.cuda.prepared import DeviceMemory, PreparedPlan
from tilewright.devices.inputs import TORCH_DTYPE
from tilewright.records import BoundPlan, GpuProfile, PackedLaunch, TensorSpec


class CaptureRefused(RuntimeError):
    """An action that is not possible during a CUDA graph capture."""


class Executor:
    """Runs plans on cuda:`index` in this process."""

    def __init__(self, index: int, launcher: Launcher | None = None, memory: DeviceMemory | None = None) -> None:
        self.index = index
        self.profile: GpuProfile = gpu_profile(index)
        self.memory: DeviceMemory = TorchMemory(index) if memory is None else memory
        self.launcher = make_launcher() if launcher is None else launcher
        self._context = driver.primary_context(index)
        self._modules: dict[bytes, Any] = {}
        self._functions: dict[tuple[bytes, str], LoadedKernel] = {}
        self._lock = threading.Lock()

    def prepare(self, cubin: bytes, plan: BoundPlan, inputs: tuple[str, ...], results: tuple[str, ...]) -> PreparedPlan:
        """Load the kernels of `plan` and lay it out for calls with tensors `inputs` that return `results`."""
        with self.memory.here():
            if self.memory.is_capturing():
                raise CaptureRefused(
                    "a module cannot be loaded while a CUDA graph is captured; run the operation once, or call its "
                    "prepare(), with the same shapes before the capture"
                )
        with self._lock:
            functions = {launch.symbol: self._function(cubin, launch) for launch in plan.launches}
            for launch in plan.launches:
                self._opt_in(functions[launch.symbol], launch)
        handles = {symbol: function.handle for symbol, function in functions.items()}
        return PreparedPlan(lay_out(plan, inputs, handles, self._context), results, self.memory, self.launcher)

    def close(self) -> None:
        """Unload every module; prepared plans and graphs that captured them must not run afterwards."""
        with self._lock:
            self._functions.clear()
            while self._modules:
                _, module = self._modules.popitem()
                driver.unload_module(self._context, module)

    def _function(self, cubin: bytes, launch: PackedLaunch) -> LoadedKernel:
        identity = hashlib.sha256(cubin).digest()
        found = self._functions.get((identity, launch.symbol))
        if found is not None:
            return found
        try:
            if identity not in self._modules:
                self._modules[identity] = driver.load_module(self._context, cubin)
            found = driver.find_function(self._context, self._modules[identity], launch.symbol)
        except DriverError as error:
            raise _located(error, launch) from error
        self._functions[identity, launch.symbol] = found
        return found

    def _opt_in(self, function: LoadedKernel, launch: PackedLaunch) -> None:
        try:
            driver.allow_dynamic_smem(self._context, function, launch.dynamic_smem_bytes)
            if launch.cluster is not None:
                driver.allow_cluster(self._context, function, launch.cluster)
            if launch.cooperative:
                self._check_coresident(function, launch)
        except DriverError as error:
            raise _located(error, launch) from error

    def _check_coresident(self, function: LoadedKernel, launch: PackedLaunch) -> None:
        """Check occupancy before the launch: the driver's own error names no limit."""
        threads, blocks = math.prod(launch.block), math.prod(launch.grid)
        per_sm = driver.resident_blocks_per_sm(self._context, function, threads, launch.dynamic_smem_bytes)
        if blocks > per_sm * self.profile.sms:
            raise DriverError(
                "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE",
                720,
                f"launch {blocks} cooperative blocks of {threads} threads where {per_sm} fit on each of "
                f"{self.profile.sms} multiprocessors; write device.sms * {per_sm} or fewer",
            )


def _located(error: DriverError, launch: PackedLaunch) -> DriverError:
    tried = f"{error.tried}, for {launch.kernel} (plan line {launch.line})"
    return DriverError(error.name, error.number, tried, launch.kernel, launch.line)


@functools.cache
def executor_of(index: int) -> Executor:
    """The process's executor of cuda:`index`."""
    return Executor(index)


# -- torch's memory and streams --


class TorchMemory:
    """Allocations on one CUDA device, which belong to the current stream like those of torch's operators."""

    def __init__(self, index: int) -> None:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        self._device = torch.device("cuda", index)
        self._index = index
        self._current_device: Callable[[], int] = torch._C._cuda_getDevice
        # With a single device the check per call is skipped.
        self._has_other_devices = torch.cuda.device_count() > 1
        self.stream: Callable[[], int] = functools.partial(torch._C._cuda_getCurrentRawStream, index)
        # The allocation of torch's compiled code: the same allocator without the operator's argument parsing.
        guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
        self._empty_strided: Callable[..., torch.Tensor] | None = getattr(guards, "_empty_strided_cuda", None)

    def is_elsewhere(self) -> bool:
        """Whether the thread's current device is another one."""
        return self._has_other_devices and self._current_device() != self._index

    def here(self) -> contextlib.AbstractContextManager[Any]:
        """Makes this the thread's current device inside the block."""
        return torch.cuda.device(self._index)

    def is_capturing(self) -> bool:
        return torch.cuda.is_current_stream_capturing()

    def allocator(self, spec: TensorSpec) -> Callable[[], torch.Tensor]:
        """A function that allocates a tensor of this layout, contents undefined, on the current device."""
        dtype = TORCH_DTYPE[spec.dtype]
        if self._empty_strided is not None:
            return functools.partial(self._empty_strided, spec.shape, spec.stride, dtype)
        return functools.partial(torch.empty_strided, spec.shape, spec.stride, dtype=dtype, device=self._device)

    def zeros(self, size_bytes: int) -> torch.Tensor:
        return torch.zeros(size_bytes, dtype=torch.uint8, device=self._device)
