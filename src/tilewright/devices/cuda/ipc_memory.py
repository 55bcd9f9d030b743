"""Device memory shared between two processes by CUDA IPC handles.

The exporting process owns the memory until it frees it or dies. Allocations come from the driver, not from torch's
caching allocator, so that a handle exposes nothing else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from cuda.bindings import driver as cu

from tilewright.devices.cuda import driver
from tilewright.devices.cuda.driver import DriverError, check, current
from tilewright.devices.inputs import TORCH_DTYPE
from tilewright.devices.protocol import NotOpened
from tilewright.records import SharedTensor


class _Bytes:
    """Memory at an address, for `torch.as_tensor` without a copy."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


class IpcMemory:
    """The allocations of one GPU that this process exports."""

    def __init__(self, index: int) -> None:
        self._device = torch.device("cuda", index)
        self._context = driver.primary_context(index)
        self._allocations: dict[int, int] = {}  # bytes by address

    def allocate(self, size: int) -> torch.Tensor:
        """Exportable bytes, valid until `release`. Raises `torch.OutOfMemoryError`."""
        torch.cuda.empty_cache()  # memory cached by torch is not available to the driver
        try:
            with current(self._context):
                address = int(check(cu.cuMemAlloc(max(size, 1)), f"allocate {size} bytes to lend"))
        except DriverError as error:
            raise torch.OutOfMemoryError(str(error)) from error
        self._allocations[address] = size
        return torch.as_tensor(_Bytes(address, size), device=self._device)

    def handle(self, address: int) -> tuple[bytes, int]:
        """The IPC handle of the allocation that contains an address, and the offset in it."""
        start = max(one for one in self._allocations if one <= address)
        with current(self._context):
            handle = check(cu.cuIpcGetMemHandle(start), "lend an allocation to another process")
        return bytes(handle.reserved), address - start

    def release(self) -> None:
        """Free all allocations."""
        with current(self._context):
            while self._allocations:
                address, _ = self._allocations.popitem()
                check(cu.cuMemFree(address), "free an allocation that was lent")


@contextlib.contextmanager
def open_shared(shared: SharedTensor, index: int) -> Iterator[torch.Tensor]:
    """Open a tensor exported by another process on GPU `index`, inside the block."""
    spec, context = shared.spec, driver.primary_context(index)
    handle = cu.CUipcMemHandle()
    handle.reserved = shared.handle
    with current(context):
        flags = cu.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
        try:
            address = check(cu.cuIpcOpenMemHandle(handle, flags.value), f"open {shared.name}, which the runner lends")
        except DriverError as error:
            raise NotOpened(str(error)) from error
    try:
        storage = torch.as_tensor(
            _Bytes(int(address) + shared.offset, spec.storage_bytes), device=torch.device("cuda", index)
        )
        yield storage.view(TORCH_DTYPE[spec.dtype]).as_strided(spec.shape, spec.stride)
        torch.cuda.synchronize(index)
    finally:
        with current(context):
            check(cu.cuIpcCloseMemHandle(address), f"close {shared.name}")
