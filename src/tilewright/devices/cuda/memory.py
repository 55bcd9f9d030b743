"""Device memory and streams as torch has them: its caching allocator, its current stream, its graph captures."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch

from tilewright.devices.cuda.torch_dtypes import TORCH_DTYPE
from tilewright.records import TensorSpec

Allocate = Callable[[], torch.Tensor]


class TorchMemory:
    """Memory of one CUDA device. Allocations belong to the current stream, as those of any torch operator do."""

    def __init__(self, index: int) -> None:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        self._device = torch.device("cuda", index)
        self._index = index
        self._current_device: Callable[[], int] = torch._C._cuda_getDevice
        # With one device there is nothing to be elsewhere from, so the question is not asked at every call.
        self._may_be_elsewhere = torch.cuda.device_count() > 1
        self.stream: Callable[[], int] = functools.partial(torch._C._cuda_getCurrentRawStream, index)
        self._empty_strided = _fast_empty_strided()

    def is_elsewhere(self) -> bool:
        """Whether the thread's current device is another one."""
        return self._may_be_elsewhere and self._current_device() != self._index

    def here(self) -> contextlib.AbstractContextManager[Any]:
        """Makes this the thread's current device for a while."""
        return torch.cuda.device(self._index)

    def is_capturing(self) -> bool:
        return torch.cuda.is_current_stream_capturing()

    def allocator(self, spec: TensorSpec) -> Allocate:
        """A function that allocates a tensor of this layout, contents undefined, on the current device."""
        dtype = TORCH_DTYPE[spec.dtype]
        if self._empty_strided is not None:
            return functools.partial(self._empty_strided, spec.shape, spec.stride, dtype)
        return functools.partial(torch.empty_strided, spec.shape, spec.stride, dtype=dtype, device=self._device)

    def zeros(self, size_bytes: int) -> torch.Tensor:
        return torch.zeros(size_bytes, dtype=torch.uint8, device=self._device)


def _fast_empty_strided() -> Callable[..., torch.Tensor] | None:
    """The allocation torch's own compiled code uses: the same allocator without the operator's argument parsing."""
    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    return getattr(guards, "_empty_strided_cuda", None)
