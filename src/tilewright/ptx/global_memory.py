"""Emulated global memory: named regions at virtual addresses, far apart.

A region may be a strided view of its bytes; the bytes between its elements are then out of bounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

import numpy as np
import numpy.typing as npt

from tilewright.ptx import sparse_memory
from tilewright.ptx.launch_order import OLDEST, LaunchOrder

Bytes = npt.NDArray[np.uint8]

# A GPU's tensors mostly lie here; some drivers give low addresses.
_HIGH, _HIGH_PLACES, _LOW, _SEGMENT = 0x7E10_0000_0000, 1216, 0x3_4000_0000, 2 << 20
_WINDOWS_BYTES, _WINDOW_STEP = 1 << 36, 16 << 20  # of generic addresses of other spaces
_SMALL, _SMALL_UNIT = 1 << 20, 512  # PyTorch puts tensors below that size together in segments of 2 MiB
_GUARD_BYTES = 1 << 30  # unmapped before and after each region
_ALIGNMENT, _PLACES = 256, 1 << 20
_EVERY_DIGIT = 0o1111111  # multiplied by 0 to 7 it gives every 3-bit value at every bit position
_SCANNED = 16 << 20  # bytes at a time
_LAST_ADDRESS = 0x7FF0_0000_0000
_NEVER, _WRITTEN, _OUTSIDE = 0, 1, 3
_REMAINS_BYTES = 3 << 20
_POISON = 0xFF  # a float of these bytes is a NaN


@dataclass(frozen=True)
class MemoryRegion:
    """One tensor, scratch buffer or variable of a module."""

    name: str
    address: int
    data: Bytes
    state: Bytes | None  # per byte: never written, written, outside the view; None: all written, all inside
    element_bytes: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]  # in elements
    writable: bool
    recent: npt.NDArray[np.uint16] | None = (
        None  # per byte: accesses by this launch and those before; None: not tracked
    )

    @property
    def end(self) -> int:
        return self.address + len(self.data)

    def index_of(self, offset: int) -> tuple[int, ...] | None:
        """The index of the element that holds a byte; None if it is in no element."""
        element = offset // self.element_bytes
        order = sorted(range(len(self.shape)), key=lambda axis: -self.stride[axis])
        index = [0] * len(self.shape)
        for axis in order:
            if self.shape[axis] > 1 and self.stride[axis] > 0:
                index[axis] = min(element // self.stride[axis], self.shape[axis] - 1)
                element -= index[axis] * self.stride[axis]
        return tuple(index) if element == 0 else None

    def describe(self, offset: int) -> str:
        """Describe an offset: "x[3, 17]", or "4 bytes after the end of x"."""
        if offset < 0:
            return f"{_bytes(-offset)} before the start of {self.name}"
        if offset >= len(self.data):
            return f"{_bytes(offset - len(self.data))} after the end of {self.name}"
        index = self.index_of(offset)
        if index is None:
            before = offset
            while before >= 0 and (self.index_of(before) is None):
                before -= self.element_bytes
            near = f"{_bytes(offset - before)} after {self._element(before)}" if before >= 0 else f"byte {offset}"
            return f"{near}, between the elements of {self.name}"
        inside = offset % self.element_bytes
        return self._element(offset) + (f" (its byte {inside})" if inside else "")

    def _element(self, offset: int) -> str:
        index = self.index_of(offset) or ()
        return f"{self.name}[{', '.join(map(str, index))}]" if self.shape else self.name


def _bytes(count: int) -> str:
    return f"{count} byte" if count == 1 else f"{count} bytes"


class GlobalMemory:
    """Regions by name, with guard zones around each."""

    def __init__(self, place: int | None = None, *, packed: bool = False) -> None:
        """`place` varies the addresses of regions, but not their alignment. `packed`: they lie side by side, as
        PyTorch's allocator puts them, so that some accesses out of bounds are not found."""
        self._regions: dict[str, MemoryRegion] = {}
        self._ordered: list[MemoryRegion] = []
        self._place, self.packed = place, packed
        self._random = Random(f"{place} {packed}")
        low = place is not None and place % 4 == 3
        self._next = _LOW if low else _HIGH + self._random.randrange(_HIGH_PLACES) * _GUARD_BYTES
        self._next += packed * self._random.randrange(_GUARD_BYTES // _SEGMENT) * _SEGMENT
        self.windows = _windows(_HIGH if low else self._next, self._random)
        self._modules: dict[int, dict[str, MemoryRegion]] = {}
        self._order = LaunchOrder()
        self.remains = np.zeros(_REMAINS_BYTES, dtype=np.uint8)  # of blocks that ended

    def add(
        self,
        name: str,
        nbytes: int,
        *,
        element_bytes: int = 1,
        shape: Sequence[int] | None = None,
        stride: Sequence[int] | None = None,
        writable: bool = True,
        initialised: bool = True,
        data: bytes | Bytes | None = None,
        misaligned_by: int = 0,
    ) -> int:
        """Add a region and return its address.

        `shape` and `stride` (in elements) define the bytes that belong to the tensor, by default all. An array `data`
        is used in place; bytes are copied. Without data an initialised region is zero, others are 0xFF bytes. The
        address is 256-byte aligned plus `misaligned_by`.
        """
        if name in self._regions:
            raise ValueError(f"memory already has a region called `{name}`; names must differ")
        if nbytes < 0 or element_bytes < 1:
            raise ValueError(f"`{name}` cannot have {nbytes} bytes in elements of {element_bytes}")
        storage = _storage(name, nbytes, data, initialised)
        extents = (nbytes // element_bytes,) if shape is None else tuple(int(extent) for extent in shape)
        steps = _dense(extents) if stride is None else tuple(int(step) for step in stride)
        _check_view(name, nbytes, element_bytes, extents, steps)
        state = _initial_state(nbytes, element_bytes, extents, steps, initialised, whole=shape is None)
        at = self._free(nbytes) + misaligned_by
        region = MemoryRegion(name, at, storage, state, element_bytes, extents, steps, writable)
        if region.end + 2 * _GUARD_BYTES > _LAST_ADDRESS:
            raise ValueError("the emulated address space is full")
        self._regions[name] = region
        self._ordered.append(region)
        self._next = region.end if self.packed else -(-(region.end + _GUARD_BYTES) // _GUARD_BYTES) * _GUARD_BYTES
        return region.address

    def circumstance(self) -> int:
        """A number for what differs from launch to launch, such as clocks."""
        return self._random.getrandbits(64)

    def _free(self, nbytes: int) -> int:
        """The address of the next region."""
        as_pytorch = self.packed or (self._place is not None and self._place // 8 % 4 == 3)
        if not as_pytorch:
            return self._next + self._moved()
        unit = _SMALL_UNIT if nbytes < _SMALL else _SEGMENT
        return -(-self._next // unit) * unit

    def _moved(self) -> int:
        """The address offset of the next region. Over eight consecutive places any three address bits take all values,
        and regions move independently."""
        if self._place is None:
            return 0
        number = len(self._regions)
        turn, round_ = self._place * (2 * number + 1) % 8, self._place // 8
        other = Random(f"{round_} {number}").randrange(_PLACES)
        return _ALIGNMENT * (turn * _EVERY_DIGIT % _PLACES ^ other)

    def bytes(self, name: str) -> Bytes:
        """A region's storage: a view, not a copy."""
        return self._regions[name].data

    def address(self, name: str) -> int:
        return self._regions[name].address

    def written(self, name: str) -> npt.NDArray[np.bool_]:
        """Per byte of a region, whether it was written."""
        region = self._regions[name]
        if region.state is None:
            return np.ones(len(region.data), dtype=np.bool_)
        is_written: npt.NDArray[np.bool_] = region.state == _WRITTEN
        return is_written

    def written_rows(self, name: str, row_bytes: int) -> npt.NDArray[np.int64]:
        """The rows of `row_bytes` with any written byte."""
        region = self._regions[name]
        count = len(region.data) // row_bytes
        if region.state is None:
            return np.arange(count)
        found = [np.arange(0)]
        step = max(_SCANNED // row_bytes, 1)
        for start in range(0, count, step):
            part = region.state[start * row_bytes : (start + step) * row_bytes]
            if part.any():
                rows = part.view(f"u{row_bytes}") if row_bytes in (1, 2, 4, 8) else part.reshape(-1, row_bytes).any(1)
                found.append(start + np.flatnonzero(rows))
        return np.concatenate(found)

    def written_of(self, name: str, rows: npt.NDArray[np.int64], row_bytes: int) -> npt.NDArray[np.bool_]:
        """`written` for some rows of `row_bytes`."""
        region = self._regions[name]
        if region.state is None:
            return np.ones((len(rows), row_bytes), dtype=np.bool_)
        is_written: npt.NDArray[np.bool_] = region.state.reshape(-1, row_bytes)[rows] == _WRITTEN
        return is_written

    def mark_initialised(self, name: str) -> None:
        """Mark all bytes as written."""
        state = self._regions[name].state
        if state is not None:
            state[state == _NEVER] = _WRITTEN

    # -- for launches --

    def remember_touches(self) -> None:
        """Track accesses to writable bytes from the next launch on."""
        for name, region in self._regions.items():
            if region.writable and region.recent is None:
                self._regions[name] = replace(region, recent=np.zeros(len(region.data), dtype=np.uint16))
        self._ordered = list(self._regions.values())

    def begin_launch(self, *, overlaps: bool = False) -> tuple[int, int]:
        """Shift the tracked accesses by one launch; returns the bits of those that the new launch may collide with,
        before and after it has waited."""
        for region in self._ordered:
            if region.recent is not None and overlaps:
                np.bitwise_or(region.recent << 2, region.recent & OLDEST, out=region.recent)
            elif region.recent is not None:
                region.recent.fill(0)
        return self._order.begin(overlaps=overlaps)

    def end_launch(self, *, awaited: bool, awaited_first: bool) -> None:
        self._order.end(awaited=awaited, awaited_first=awaited_first)

    def add_module_variable(self, module: int, name: str, address: int, data: Bytes, writable: bool) -> None:
        """Add a module variable at its fixed address, once per module and memory."""
        known = self._modules.setdefault(module, {})
        if name not in known:
            known[name] = MemoryRegion(name, address, data, None, 1, (len(data),), (1,), writable)

    def inherit_modules(self, used: GlobalMemory) -> None:
        """Share the module variables of another memory, and what its blocks left."""
        self.remains = used.remains
        self._modules = {module: dict(known) for module, known in used._modules.items()}

    def regions(self, module: int) -> list[MemoryRegion]:
        """The regions visible to a launch of this module, by address."""
        own = sorted(self._modules.get(module, {}).values(), key=lambda region: region.address)
        return [*self._ordered, *own]

    def describe(self, module: int, address: int) -> str:
        """Describe an address by the nearest region."""
        nearest = min(self.regions(module), key=lambda region: _distance(region, address), default=None)
        if nearest is None or _distance(nearest, address) > _GUARD_BYTES // 2:
            return f"address {address:#x}, near no tensor"
        return nearest.describe(address - nearest.address)


def _windows(before: int, random: Random) -> dict[str, int]:
    """Where the other spaces lie among generic addresses, below the tensors."""
    lowest = before - 2 * _WINDOWS_BYTES + random.randrange(_WINDOWS_BYTES // _WINDOW_STEP) * _WINDOW_STEP
    names = random.sample(("shared_window", "local_window", "parameter_window"), 3)
    starts = (random.randrange(number * 1024, number * 1024 + 512) * _WINDOW_STEP for number in range(3))
    return {"windows": lowest, **{name: lowest + start for name, start in zip(names, starts, strict=True)}}


def _distance(region: MemoryRegion, address: int) -> int:
    if address < region.address:
        return region.address - address
    return max(0, address - region.end + 1)


def _storage(name: str, nbytes: int, data: bytes | Bytes | None, initialised: bool) -> Bytes:
    if data is None:
        return np.full(nbytes, 0 if initialised else _POISON, dtype=np.uint8)
    if isinstance(data, np.ndarray):
        if data.dtype != np.uint8 or data.ndim != 1 or not data.flags.c_contiguous or not data.flags.writeable:
            raise ValueError(f"the data of `{name}` must be a flat, contiguous, writable array of uint8")
        array = data
    else:
        array = np.frombuffer(bytearray(data), dtype=np.uint8)
    if len(array) != nbytes:
        raise ValueError(f"the data of `{name}` has {len(array)} bytes, not {nbytes}")
    return array


def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    steps, step = [], 1
    for extent in reversed(shape):
        steps.append(step)
        step *= extent
    return tuple(reversed(steps))


def _check_view(name: str, nbytes: int, element_bytes: int, shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
    if len(shape) != len(stride) or any(extent < 0 for extent in shape) or any(step < 0 for step in stride):
        raise ValueError(f"`{name}` has the shape {shape} and the stride {stride}, which do not go together")
    if 0 in shape:
        return
    last = sum((extent - 1) * step for extent, step in zip(shape, stride, strict=True))
    if (last + 1) * element_bytes > nbytes:
        raise ValueError(f"`{name}` has {nbytes} bytes, but its shape and stride reach {(last + 1) * element_bytes}")


def _initial_state(
    nbytes: int, element_bytes: int, shape: tuple[int, ...], stride: tuple[int, ...], initialised: bool, whole: bool
) -> Bytes | None:
    filled = _WRITTEN if initialised else _NEVER
    covers = whole or (math.prod(shape) * element_bytes == nbytes and stride == _dense(shape))
    if covers:
        return None if initialised else sparse_memory.zeros(nbytes)  # untouched pages cost nothing
    state = np.full(nbytes, _OUTSIDE, dtype=np.uint8)
    if 0 not in shape:
        steps = tuple(step * element_bytes for step in stride)
        view = np.lib.stride_tricks.as_strided(state, (*shape, element_bytes), (*steps, 1))
        view[...] = filled
    if initialised and not (state == _OUTSIDE).any():
        return None
    return state
