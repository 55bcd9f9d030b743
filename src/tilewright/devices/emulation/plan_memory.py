"""A plan's tensors in the emulator's memory, by name: laid out as specified, poisoned until something writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tilewright.records import ALLOCATION_ALIGNMENT, Buffer, Clearing, TensorSpec

if TYPE_CHECKING:
    from tilewright.ptx.memory import Memory

POISON_BYTE = 0xFF  # NaN in every float type

Bytes = npt.NDArray[np.uint8]


class PlanMemory:
    """The tensors of one run of a plan."""

    def __init__(self) -> None:
        from tilewright.ptx.memory import Memory

        self.memory: Memory = Memory()
        self._specs: dict[str, TensorSpec] = {}
        self._addresses: dict[str, int] = {}

    def add_input(self, name: str, spec: TensorSpec, content: Bytes, *, writable: bool) -> None:
        """A tensor the caller brings: `content` is its storage, from its first element to its last."""
        self._add(name, spec, content.copy(), writable=writable, initialised=True)

    def add_buffer(self, buffer: Buffer, *, initialised: bool = False) -> None:
        """Memory the runner provides; `initialised` leaves reads of it unchecked."""
        cleared = buffer.clearing is not Clearing.UNDEFINED
        content = np.full(buffer.spec.storage_bytes, 0 if cleared else POISON_BYTE, dtype=np.uint8)
        self._add(buffer.name, buffer.spec, content, writable=True, initialised=cleared or initialised)

    def _add(self, name: str, spec: TensorSpec, content: Bytes, *, writable: bool, initialised: bool) -> None:
        self._specs[name] = spec
        self._addresses[name] = self.memory.add(
            name,
            spec.storage_bytes,
            element_bytes=spec.dtype.itemsize,
            shape=spec.shape,
            stride=spec.stride,
            writable=writable,
            initialised=initialised,
            data=content,
            misaligned_by=_offset(spec),
        )

    def __contains__(self, name: str) -> bool:
        return name in self._specs

    def spec(self, name: str) -> TensorSpec:
        return self._specs[name]

    def address(self, name: str) -> int:
        return self._addresses[name]

    def content(self, name: str) -> Bytes:
        """The tensor's storage, not a copy."""
        return self.memory.bytes(name)

    def write(self, name: str, content: Bytes) -> None:
        """Put the elements in from outside a kernel, as a library step does."""
        self.memory.bytes(name)[...] = content
        self.memory.mark_initialised(name)

    def unwritten(self, name: str) -> tuple[int, tuple[int, ...]] | None:
        """How many elements nothing wrote a byte of, and the index of the first; None where all were written."""
        spec = self._specs[name]
        if spec.numel == 0:
            return None
        written = self.memory.written(name)
        if written.all():
            return None
        size = spec.dtype.itemsize
        strides = tuple(step * size for step in spec.stride)
        elements: Any = np.lib.stride_tricks.as_strided(written, (*spec.shape, size), (*strides, 1))
        missing = ~elements.all(axis=-1)
        count = int(missing.sum())
        return None if count == 0 else (count, tuple(int(i) for i in np.argwhere(missing)[0]))


def _offset(spec: TensorSpec) -> int:
    """A tensor that is promised less alignment must get less, or a kernel that relies on more passes here alone."""
    return 0 if spec.alignment >= ALLOCATION_ALIGNMENT else max(spec.alignment, spec.dtype.itemsize)
