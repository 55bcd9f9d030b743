"""Bitmaps of the units of memory that sliced launches write and read, kept by the core."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from tilewright.ptx import sparse_memory
from tilewright.ptx.native import RawNotes, RawPath, RawTwice, RegionNotes

Words = npt.NDArray[np.uint64]

_ALL = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
_MOST_TWICE, _MOST_PATHS = 64, 64
_COUNTED = 1 << 20  # words at a time


class Content(IntEnum):
    """What a tensor's bytes are worth where an address depends on them."""

    MISSING = 0
    GIVEN = 1
    WRITTEN = 2  # only where something was written


class Bits:
    """A bit for each unit of a tensor; untouched parts take no memory."""

    def __init__(self, units: int) -> None:
        self.units = units
        self.words: Words = sparse_memory.zeros((units // 64 + 2) * 8).view(np.uint64)

    def fill(self) -> None:
        self.words[: self.units // 64] = _ALL
        if self.units % 64:
            self.words[self.units // 64] = np.uint64((1 << self.units % 64) - 1)

    def clear(self) -> None:
        self.words[:] = 0

    @property
    def count(self) -> int:
        parts = (self.words[at : at + _COUNTED] for at in range(0, len(self.words), _COUNTED))
        return sum(int(np.bitwise_count(one).sum()) for one in parts)

    @property
    def first_clear(self) -> int | None:
        for at in range(0, len(self.words), _COUNTED):
            part = self.words[at : at + _COUNTED]
            left = np.flatnonzero(part != _ALL)
            if len(left):
                word = int(part[left[0]])
                unit = (at + int(left[0])) * 64 + ((~word & (word + 1)).bit_length() - 1)
                return unit if unit < self.units else None
        return None

    def first_common(self, other: Bits, *, apart: bool = False) -> int | None:
        """The first unit that is set here and there; `apart`: and not there."""
        for at in range(0, len(self.words), _COUNTED):
            there = other.words[at : at + _COUNTED]
            more = self.words[at : at + _COUNTED] & (~there if apart else there)
            found = np.flatnonzero(more)
            if len(found):
                word = int(more[found[0]])
                return (at + int(found[0])) * 64 + ((word & -word).bit_length() - 1)
        return None

    @property
    def flags(self) -> npt.NDArray[np.bool_]:
        """All units, one byte each."""
        each = np.unpackbits(self.words.view(np.uint8), bitorder="little")[: self.units]
        return each.view(np.bool_)


@dataclass
class TensorNotes:
    """The notes on one tensor, over all launches."""

    name: str
    unit_bytes: int
    units: int
    content: Content
    written: Bits | None = None
    read: Bits | None = None
    hollow: Bits | None = None  # written by stores whose values were sliced away
    owned: bool = False  # keep who wrote each unit
    hollowed: bool = False
    misfit: bool = False
    fresh: Bits | None = None  # written in this launch
    owners: npt.NDArray[np.uint32] | None = None

    def begin_launch(self, *, watched: bool) -> None:
        """`watched`: the launch may write it, and whether twice is asked."""
        self.fresh = self.owners = None
        if not watched or self.written is None:
            return
        if self.owned:
            self.owners = sparse_memory.zeros(4 * self.units + 8).view(np.uint32)
        else:
            self.fresh = Bits(self.units) if self.written.words.any() else self.written

    def raw(self) -> RegionNotes:
        return RegionNotes(
            written=_pointer(self.written),
            fresh=_pointer(self.fresh),
            read=_pointer(self.read),
            hollow=_pointer(self.hollow),
            owners=None if self.owners is None else self.owners.ctypes.data,
            shift=self.unit_bytes.bit_length() - 1,
            content=int(self.content),
            hollowed=int(self.hollowed),
        )


def _pointer(bits: Bits | None) -> int | None:
    return None if bits is None else bits.words.ctypes.data


@dataclass(frozen=True)
class Twice:
    tensor: str
    unit: int
    first: int  # threads of the launch
    second: int


@dataclass
class AddressNotes:
    """The notes on one launch."""

    tensors: dict[str, TensorNotes]
    seed: int
    _names: list[str] = field(default_factory=list)
    _raw: RawNotes = field(default_factory=RawNotes)
    _regions: ctypes.Array[RegionNotes] | None = None
    _twice: ctypes.Array[RawTwice] = field(default_factory=(RawTwice * _MOST_TWICE))
    _paths: ctypes.Array[RawPath] = field(default_factory=(RawPath * _MOST_PATHS))
    _touched: Words = field(default_factory=lambda: np.zeros(0, np.uint64))

    def attached(self, names: Sequence[str], instructions: int) -> int:
        """The address of the core's structure, for a launch with these regions, by address."""
        self._names = list(names)
        self._regions = (RegionNotes * len(names))()
        for entry, name in zip(self._regions, names, strict=True):
            known = self.tensors.get(name)
            ctypes.memmove(
                ctypes.byref(entry), ctypes.byref(known.raw() if known else _OTHER), ctypes.sizeof(RegionNotes)
            )
        self._touched = np.zeros(instructions, np.uint64)
        self._raw = RawNotes(
            regions=ctypes.cast(self._regions, ctypes.c_void_p),
            touched=self._touched.ctypes.data,
            twice=ctypes.cast(self._twice, ctypes.c_void_p),
            paths=ctypes.cast(self._paths, ctypes.c_void_p),
            twice_capacity=_MOST_TWICE,
            path_capacity=_MOST_PATHS,
            random=self.seed,
        )
        return ctypes.addressof(self._raw)

    def settle(self) -> dict[str, int]:
        """Take over what the core found. How many units of each tensor were written twice."""
        again = {}
        for entry, name in zip(self._regions or (), self._names, strict=False):
            known = self.tensors.get(name)
            if known is not None:
                known.hollowed |= bool(entry.hollowed)
                known.misfit |= bool(entry.misfit)
                if entry.twice:
                    again[name] = int(entry.twice)
        return again

    @property
    def missing(self) -> str:
        """The tensor whose contents an address depends on and that are not known; "" where there is none."""
        number = self._raw.missing - 1
        return self._names[number] if 0 <= number < len(self._names) else "?" if number >= 0 else ""

    def touching(self, tensor: str) -> list[int]:
        """The instructions, by position, that accessed a tensor."""
        bit = np.uint64(1 << self._names.index(tensor) % 64)
        return [int(one) for one in np.flatnonzero(self._touched & bit)]

    @property
    def twice(self) -> list[Twice]:
        found = self._twice[: self._raw.twice_count]
        return [Twice(self._names[one.region], int(one.unit), int(one.first), int(one.second)) for one in found]

    @property
    def paths(self) -> list[tuple[int, int]]:
        """For each way through the slice, how many blocks (or clusters) take it, and one of them."""
        return [(int(one.blocks), int(one.example)) for one in self._paths[: self._raw.path_count]]


_OTHER = RegionNotes(content=int(Content.GIVEN))
