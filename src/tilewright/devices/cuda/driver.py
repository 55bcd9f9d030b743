"""The CUDA driver through cuda-bindings: devices, primary contexts, modules, functions and their attributes.

Everything here happens when something is prepared, never when it is called; calls go through `launcher`. Every
failure is a `DriverError` that names the driver's code and what was tried.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cuda.bindings import driver as cu

from tilewright.records import Dim3

DEFAULT_DYNAMIC_SMEM_BYTES = 48 * 1024  # static and dynamic together; more must be opted into
PORTABLE_CLUSTER_BLOCKS = 8


class DriverError(RuntimeError):
    """The driver refused something: its code's name and number, what was tried, and where in a plan, if in one."""

    def __init__(self, name: str, number: int, tried: str, kernel: str | None = None, line: int | None = None) -> None:
        self.name = name  # "CUDA_ERROR_INVALID_VALUE"
        self.number = number
        self.tried = tried
        self.kernel = kernel  # the C++ name expression of the launch at fault
        self.line = line  # its `launch` line in the kernel file
        super().__init__(f"{name} ({number}): {tried}")


@dataclass(frozen=True)
class Function:
    """A kernel of a loaded module. `handle` is the driver's CUfunction as an integer."""

    handle: int
    symbol: str


def error_name(number: int) -> str:
    """The driver's name of a result code."""
    try:
        return str(cu.CUresult(number).name)
    except ValueError:  # a code newer than the bindings
        return "CUDA_ERROR"


def check(answer: tuple[Any, ...], tried: str) -> Any:
    """The value of a cuda-bindings answer, or a `DriverError` that says what was tried."""
    number = int(answer[0])
    if number:
        raise DriverError(error_name(number), number, tried)
    return answer[1] if len(answer) == 2 else answer[1:]


def initialise() -> None:
    """Load the driver; a machine without one gets a sentence rather than a traceback of the bindings."""
    try:
        answer = cu.cuInit(0)
    except RuntimeError as error:
        raise DriverError(
            "CUDA_ERROR_NO_DEVICE", 100, f"load the CUDA driver (libcuda.so.1): {error}; install the NVIDIA driver"
        ) from error
    check(answer, "initialise the CUDA driver; `nvidia-smi` shows whether it sees a GPU")


def device_count() -> int:
    initialise()
    return int(check(cu.cuDeviceGetCount(), "count the CUDA devices"))


def device(index: int) -> Any:
    """The driver's handle of cuda:`index`."""
    count = device_count()
    if not 0 <= index < count:
        raise DriverError(
            "CUDA_ERROR_INVALID_DEVICE", 101, f"use cuda:{index} where the driver shows {count} device(s)"
        )
    return check(cu.cuDeviceGet(index), f"open cuda:{index}")


def attribute(index: int, name: str) -> int:
    """A device attribute by the end of its name: `MULTIPROCESSOR_COUNT`."""
    which = getattr(cu.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    return int(check(cu.cuDeviceGetAttribute(which, device(index)), f"read {name} of cuda:{index}"))


def device_name(index: int) -> str:
    name: bytes = check(cu.cuDeviceGetName(128, device(index)), f"read the name of cuda:{index}")
    return name.split(b"\0")[0].decode().strip()


def device_memory_bytes(index: int) -> int:
    return int(check(cu.cuDeviceTotalMem(device(index)), f"read the memory size of cuda:{index}"))


def primary_context(index: int) -> int:
    """The context torch uses too, retained for the life of the process."""
    return int(check(cu.cuDevicePrimaryCtxRetain(device(index)), f"retain the primary context of cuda:{index}"))


@contextlib.contextmanager
def current(context: int) -> Iterator[None]:
    """Make a context current on this thread for a while, whatever was current before."""
    check(cu.cuCtxPushCurrent(cu.CUcontext(context)), "make the device's context current")
    try:
        yield
    finally:
        check(cu.cuCtxPopCurrent(), "restore the thread's context")


def load_module(context: int, cubin: bytes) -> Any:
    with current(context):
        return check(cu.cuModuleLoadData(cubin), f"load a module of {len(cubin)} bytes; was it built for this GPU?")


def unload_module(context: int, module: Any) -> None:
    with current(context):
        check(cu.cuModuleUnload(module), "unload a module")


def find_function(context: int, module: Any, symbol: str) -> Function:
    """A kernel by its symbol, wholly loaded: a lazily loaded one could not be launched in a graph capture."""
    with current(context):
        function = check(cu.cuModuleGetFunction(module, symbol.encode()), f"find kernel {symbol} in its module")
        check(cu.cuFuncLoad(function), f"load kernel {symbol}")
    return Function(int(function), symbol)


def function_attribute(context: int, function: Function, name: str) -> int:
    """A function attribute by the end of its name: `NUM_REGS`."""
    which = getattr(cu.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
    with current(context):
        answer = cu.cuFuncGetAttribute(which, cu.CUfunction(function.handle))
    return int(check(answer, f"read {name} of kernel {function.symbol}"))


def allow_dynamic_smem(context: int, function: Function, bytes_needed: int) -> None:
    """Opt a kernel into `bytes_needed` of dynamic shared memory; never takes back what another plan opted into."""
    if bytes_needed <= function_attribute(context, function, "MAX_DYNAMIC_SHARED_SIZE_BYTES"):
        return
    which = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    with current(context):
        answer = cu.cuFuncSetAttribute(cu.CUfunction(function.handle), which, bytes_needed)
    check(answer, f"allow kernel {function.symbol} {bytes_needed} bytes of dynamic shared memory")


def allow_cluster(context: int, function: Function, cluster: Dim3) -> None:
    """Opt a kernel into clusters above the portable eight blocks."""
    blocks = cluster[0] * cluster[1] * cluster[2]
    if blocks <= PORTABLE_CLUSTER_BLOCKS:
        return
    which = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
    with current(context):
        answer = cu.cuFuncSetAttribute(cu.CUfunction(function.handle), which, 1)
    check(answer, f"allow kernel {function.symbol} clusters of {blocks} blocks")


def resident_blocks_per_sm(context: int, function: Function, threads: int, dynamic_smem_bytes: int) -> int:
    with current(context):
        answer = cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(
            cu.CUfunction(function.handle), threads, dynamic_smem_bytes
        )
    return int(check(answer, f"ask how many blocks of kernel {function.symbol} fit on a multiprocessor"))


def driver_version() -> tuple[int, int]:
    """The newest CUDA the installed driver serves: (13, 0)."""
    initialise()
    number = int(check(cu.cuDriverGetVersion(), "read the driver's version"))
    return number // 1000, number % 1000 // 10
