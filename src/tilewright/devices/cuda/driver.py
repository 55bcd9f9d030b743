"""The CUDA driver API through cuda-bindings: devices, profiles, contexts, modules, kernels, error explanations.

Used to prepare launches, which then go through `launcher`. Every failure is a `DriverError` with the driver's code and
the attempted action.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from cuda.bindings import driver as cu

from tilewright.records import Carried, Dim3, FaultKind, GpuProfile, known_gpu

PORTABLE_CLUSTER_BLOCKS = 8
_LARGE_CLUSTERS = frozenset({90, 100, 103})  # compute capabilities with clusters of 16 blocks


class DriverError(Carried, RuntimeError):
    """An error of the driver: its code, the attempted action, and the launch, if it was one."""

    def __init__(self, name: str, number: int, tried: str, kernel: str | None = None, line: int | None = None) -> None:
        self.name = name  # "CUDA_ERROR_INVALID_VALUE"
        self.number = number
        self.tried = tried
        self.kernel = kernel  # the C++ name expression of the launch at fault
        self.line = line  # its `launch` line in the kernel file
        super().__init__(f"{name} ({number}): {tried}")


@dataclass(frozen=True)
class LoadedKernel:
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
    """The value in a cuda-bindings return tuple; raises `DriverError` with the attempted action."""
    number = int(answer[0])
    if number:
        raise DriverError(error_name(number), number, tried)
    return answer[1] if len(answer) == 2 else answer[1:]


def initialise() -> None:
    """Load the driver; raises `DriverError` on a machine without one."""
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


def device_uuid(index: int) -> str:
    """The GPU's UUID, which does not depend on CUDA_VISIBLE_DEVICES."""
    return bytes(check(cu.cuDeviceGetUuid(device(index)), f"read the identity of cuda:{index}").bytes).hex()


def primary_context(index: int) -> int:
    """The context torch uses too, retained for the life of the process."""
    return int(check(cu.cuDevicePrimaryCtxRetain(device(index)), f"retain the primary context of cuda:{index}"))


@contextlib.contextmanager
def current(context: int) -> Iterator[None]:
    """Make a context current on this thread inside the block."""
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


def find_function(context: int, module: Any, symbol: str) -> LoadedKernel:
    """A kernel by its symbol, loaded eagerly: a lazily loaded one cannot be launched during graph capture."""
    with current(context):
        function = check(cu.cuModuleGetFunction(module, symbol.encode()), f"find kernel {symbol} in its module")
        check(cu.cuFuncLoad(function), f"load kernel {symbol}")
    return LoadedKernel(int(function), symbol)


def allow_dynamic_smem(context: int, function: LoadedKernel, bytes_needed: int) -> None:
    """Raise a kernel's limit of dynamic shared memory to `bytes_needed`; never lowers it."""
    which = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    with current(context):
        answer = cu.cuFuncGetAttribute(which, cu.CUfunction(function.handle))
    if bytes_needed > int(check(answer, f"read how much shared memory kernel {function.symbol} is allowed")):
        _set_attribute(context, function, which, bytes_needed, f"{bytes_needed} bytes of dynamic shared memory")


def allow_cluster(context: int, function: LoadedKernel, cluster: Dim3) -> None:
    """Allow clusters above the portable eight blocks."""
    blocks = cluster[0] * cluster[1] * cluster[2]
    if blocks <= PORTABLE_CLUSTER_BLOCKS:
        return
    which = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
    _set_attribute(context, function, which, 1, f"clusters of {blocks} blocks")


def _set_attribute(context: int, function: LoadedKernel, which: Any, value: int, what: str) -> None:
    with current(context):
        answer = cu.cuFuncSetAttribute(cu.CUfunction(function.handle), which, value)
    check(answer, f"allow kernel {function.symbol} {what}")


def resident_blocks_per_sm(context: int, function: LoadedKernel, threads: int, dynamic_smem_bytes: int) -> int:
    with current(context):
        answer = cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(
            cu.CUfunction(function.handle), threads, dynamic_smem_bytes
        )
    return int(check(answer, f"ask how many blocks of kernel {function.symbol} fit on a multiprocessor"))


def driver_version() -> tuple[int, int]:
    """The newest CUDA version that the driver supports: (13, 0)."""
    initialise()
    number = int(check(cu.cuDriverGetVersion(), "read the driver's version"))
    return number // 1000, number % 1000 // 10


# -- profiles --


@functools.cache
def gpu_profile(index: int) -> GpuProfile:
    """The profile of cuda:`index`."""
    read = functools.partial(attribute, index)
    found: bytes = check(cu.cuDeviceGetName(128, device(index)), f"read the name of cuda:{index}")
    name = found.split(b"\0")[0].decode().strip()
    cc = 10 * read("COMPUTE_CAPABILITY_MAJOR") + read("COMPUTE_CAPABILITY_MINOR")
    return GpuProfile(
        name=name,
        cc=cc,
        sms=read("MULTIPROCESSOR_COUNT"),
        smem_block=read("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        smem_sm=read("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
        l2=read("L2_CACHE_SIZE"),
        registers_sm=read("MAX_REGISTERS_PER_MULTIPROCESSOR"),
        threads_sm=read("MAX_THREADS_PER_MULTIPROCESSOR"),
        blocks_sm=read("MAX_BLOCKS_PER_MULTIPROCESSOR"),
        reserved_smem_block=read("RESERVED_SHARED_MEMORY_PER_BLOCK"),
        max_cluster=largest_cluster(cc, bool(read("CLUSTER_LAUNCH"))),
        memory_bytes=int(check(cu.cuDeviceTotalMem(device(index)), f"read the memory size of cuda:{index}")),
        bandwidth_gbs=known.bandwidth_gbs if (known := known_gpu(name, cc)) else 0.0,
    )


def profiles() -> tuple[GpuProfile, ...]:
    """The profiles of every GPU the driver shows, cuda:0 first."""
    return tuple(gpu_profile(index) for index in range(device_count()))


def largest_cluster(cc: int, launches_clusters: bool) -> int:
    """The largest cluster: the driver reports only whether there are clusters."""
    if not launches_clusters:
        return 1
    return 16 if cc in _LARGE_CLUSTERS else PORTABLE_CLUSTER_BLOCKS


# -- error explanations --


class ErrorPhase(Enum):
    LOAD = "while the module was loaded and its kernels were set up"
    LAUNCH = "when the launch was handed to the driver"
    RUN = "while it ran"


# Errors of running kernels, which are reported late and destroy the context.
_RUNNING: dict[str, tuple[FaultKind, str]] = {
    "CUDA_ERROR_ILLEGAL_ADDRESS": (
        FaultKind.ILLEGAL_ACCESS,
        "it read or wrote an address that belongs to no tensor; check indices against sizes",
    ),
    "CUDA_ERROR_INVALID_ADDRESS_SPACE": (
        FaultKind.ILLEGAL_ACCESS,
        "an instruction for one memory space got an address of another; check casts of shared and global pointers",
    ),
    "CUDA_ERROR_INVALID_PC": (FaultKind.ILLEGAL_ACCESS, "it jumped to an address that holds no code"),
    "CUDA_ERROR_MISALIGNED_ADDRESS": (
        FaultKind.MISALIGNED,
        "an access was not aligned to its own size; a float4 needs an address that 16 divides",
    ),
    "CUDA_ERROR_ASSERT": (FaultKind.DEVICE_ASSERT, "an assert() failed"),
    "CUDA_ERROR_ILLEGAL_INSTRUCTION": (
        FaultKind.DEVICE_ASSERT,
        "a trap was reached, or an instruction this GPU does not have",
    ),
    "CUDA_ERROR_LAUNCH_FAILED": (
        FaultKind.DEVICE_ASSERT,
        "a trap was reached, or shared or local memory was accessed out of range",
    ),
    "CUDA_ERROR_HARDWARE_STACK_ERROR": (FaultKind.OTHER, "the call stack overflowed or is damaged"),
    "CUDA_ERROR_LAUNCH_TIMEOUT": (FaultKind.TIME, "the driver's own watchdog stopped it"),
}

_UNSUITABLE = ("CUDA_ERROR_NO_BINARY_FOR_GPU", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION")
_UNREADABLE = (
    "CUDA_ERROR_INVALID_IMAGE",
    "CUDA_ERROR_INVALID_SOURCE",
    "CUDA_ERROR_INVALID_PTX",
    "CUDA_ERROR_FILE_NOT_FOUND",
    "CUDA_ERROR_NOT_FOUND",
    "CUDA_ERROR_SHARED_OBJECT_INIT_FAILED",
    "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND",
)


def explain_error(error_name: str, when: ErrorPhase) -> tuple[FaultKind, str]:
    """The kind of fault that a driver error stands for, and a remedy for the kernel's author."""
    if error_name in _RUNNING:
        return _RUNNING[error_name]
    if error_name == "CUDA_ERROR_OUT_OF_MEMORY":
        return FaultKind.MEMORY, "the device has no memory left for it; use smaller tensors or scratch"
    if error_name in _UNSUITABLE:
        return FaultKind.UNSUITABLE, "the module was built for another GPU; build it for this one"
    if when is ErrorPhase.LOAD and error_name in _UNREADABLE:
        return FaultKind.LOAD_REFUSED, "the cubin is damaged or does not hold that kernel; build it again"
    if when is not ErrorPhase.RUN:
        return FaultKind.LAUNCH_REFUSED, "check block size, registers, shared memory and cluster against the device"
    return FaultKind.OTHER, "the driver gives no more than its code"
