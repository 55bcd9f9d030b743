"""Device memory that two processes of a machine look at: one lends it, the other opens it for a while.

Whoever lends owns it: it stays until the lender gives it back or dies. It is the driver's own allocation, not a part of
torch's, so that opening it shows nothing else.
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
    """Memory at an address, as torch takes it without a copy."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


class IpcMemory:
    """The allocations of one GPU that this process lends."""

    def __init__(self, index: int) -> None:
        self._device = torch.device("cuda", index)
        self._context = driver.primary_context(index)
        self._held: dict[int, int] = {}  # bytes by address

    def take(self, size: int) -> torch.Tensor:
        """Bytes that can be lent; theirs is the memory until `release`. Raises `torch.OutOfMemoryError`."""
        torch.cuda.empty_cache()  # what torch keeps is not to be had otherwise
        try:
            with current(self._context):
                address = int(check(cu.cuMemAlloc(max(size, 1)), f"allocate {size} bytes to lend"))
        except DriverError as error:
            raise torch.OutOfMemoryError(str(error)) from error
        self._held[address] = size
        return torch.as_tensor(_Bytes(address, size), device=self._device)

    def handle(self, address: int) -> tuple[bytes, int]:
        """The handle of the allocation that an address lies in, and how far into it that is."""
        start = max(one for one in self._held if one <= address)
        with current(self._context):
            handle = check(cu.cuIpcGetMemHandle(start), "lend an allocation to another process")
        return bytes(handle.reserved), address - start

    def release(self) -> None:
        """Take everything back."""
        with current(self._context):
            while self._held:
                address, _ = self._held.popitem()
                check(cu.cuMemFree(address), "free an allocation that was lent")


@contextlib.contextmanager
def open_shared(shared: SharedTensor, index: int) -> Iterator[torch.Tensor]:
    """A tensor that another process lends, on GPU `index` of this one, for the length of the block."""
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
