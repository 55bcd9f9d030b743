"""What a driver error means for the job it happened in: the kind of fault, and a sentence with a remedy."""

from __future__ import annotations

from enum import Enum

from tilewright.records import FaultKind


class When(Enum):
    LOAD = "while the module was loaded and its kernels were set up"
    LAUNCH = "when the launch was handed to the driver"
    RUN = "while it ran"


# Errors of running kernels, whenever they are noticed: the context is lost with each of them.
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


def meaning(error_name: str, when: When) -> tuple[FaultKind, str]:
    """The fault that a driver error stands for, and what it says to the author of the kernel."""
    if error_name in _RUNNING:
        return _RUNNING[error_name]
    if error_name == "CUDA_ERROR_OUT_OF_MEMORY":
        return FaultKind.MEMORY, "the device has no memory left for it; use smaller tensors or scratch"
    if error_name in _UNSUITABLE:
        return FaultKind.UNSUITABLE, "the module was built for another GPU; build it for this one"
    if when is When.LOAD and error_name in _UNREADABLE:
        return FaultKind.LOAD_REFUSED, "the cubin is damaged or does not hold that kernel; build it again"
    if when is not When.RUN:
        return FaultKind.LAUNCH_REFUSED, "check block size, registers, shared memory and cluster against the device"
    return FaultKind.OTHER, "the driver gives no more than its code"
