"""A CUDA device of this process: loads modules, prepares plans. The GPU's own context is torch's.

It neither builds nor judges: it takes a cubin and a bound plan. `executor_of` gives the process's one executor of a
device; making another is harmless, it only loads modules again.
"""

from __future__ import annotations

import functools
import hashlib
import math
import threading
from typing import Any

from tilewright.devices.cuda import driver
from tilewright.devices.cuda.driver import DriverError, Function
from tilewright.devices.cuda.facts import gpu_profile
from tilewright.devices.cuda.launcher import Launcher, make_launcher
from tilewright.devices.cuda.layout import lay_out
from tilewright.devices.cuda.memory import TorchMemory
from tilewright.devices.cuda.prepared import Memory, Prepared
from tilewright.records import BoundPlan, GpuProfile, PackedLaunch


class CaptureRefused(RuntimeError):
    """Something that cannot happen while a CUDA graph is being captured."""


class Executor:
    """Runs plans on cuda:`index` in this process."""

    def __init__(self, index: int, launcher: Launcher | None = None, memory: Memory | None = None) -> None:
        self.index = index
        self.profile: GpuProfile = gpu_profile(index)
        self.memory: Memory = TorchMemory(index) if memory is None else memory
        self.launcher = make_launcher() if launcher is None else launcher
        self._context = driver.primary_context(index)
        self._modules: dict[bytes, Any] = {}
        self._functions: dict[tuple[bytes, str], Function] = {}
        self._lock = threading.Lock()

    def prepare(self, cubin: bytes, plan: BoundPlan, inputs: tuple[str, ...], results: tuple[str, ...]) -> Prepared:
        """Load what `plan` launches and lay it out for calls with tensors named `inputs`, answering `results`."""
        with self.memory.here():
            if self.memory.is_capturing():
                raise CaptureRefused(
                    "a module cannot be loaded while a CUDA graph is captured; run the operation once, or call its "
                    "prepare(), with the same shapes before the capture"
                )
        launches = [step for step in plan.steps if isinstance(step, PackedLaunch)]
        with self._lock:
            functions = {launch.symbol: self._function(cubin, launch) for launch in launches}
            for launch in launches:
                self._opt_in(functions[launch.symbol], launch)
        handles = {symbol: function.handle for symbol, function in functions.items()}
        return Prepared(lay_out(plan, inputs, handles, self._context), results, self.memory, self.launcher)

    def close(self) -> None:
        """Unload every module. Nothing prepared here may run afterwards, nor a graph that captured it."""
        with self._lock:
            self._functions.clear()
            while self._modules:
                _, module = self._modules.popitem()
                driver.unload_module(self._context, module)

    def _function(self, cubin: bytes, launch: PackedLaunch) -> Function:
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

    def _opt_in(self, function: Function, launch: PackedLaunch) -> None:
        try:
            driver.allow_dynamic_smem(self._context, function, launch.dynamic_smem_bytes)
            if launch.cluster is not None:
                driver.allow_cluster(self._context, function, launch.cluster)
            if launch.cooperative:
                self._check_coresident(function, launch)
        except DriverError as error:
            raise _located(error, launch) from error

    def _check_coresident(self, function: Function, launch: PackedLaunch) -> None:
        """The driver says only "too large"; this says how large would do."""
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
