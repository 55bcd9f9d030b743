"""Tensor maps for the emulator: what a CUtensorMap holds, laid out in the clear where core/tensor_map.h reads it.

The driver's encoding is opaque, so kernels get these 128 bytes in its place; only the instructions that take a map
look at them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tilewright.ptx.syntax import PtxError
from tilewright.records import TensorMap

MAP_BYTES = 128
_LAYOUT = struct.Struct("<8sQ4Q5I5H10B6h2H24x")
_MAGIC = b"TWTMAP1\0"
_ALIGNMENT = 16
_RANK = 5


@dataclass(frozen=True)
class PixelBox:
    """What an im2col map has beside a tiled one: corners relative to the tensor's, and the size of a column."""

    lower: tuple[int, ...]
    upper: tuple[int, ...]
    channels: int
    pixels: int


def encoded_map(record: TensorMap, address: int, pixel_box: PixelBox | None = None) -> bytes:
    """The map over a tensor at `address`; raises `PtxError` where the driver would refuse it."""
    if address % _ALIGNMENT:
        raise PtxError(f"map {record.name}: {record.tensor} lies at {address:#x}, and maps need {_ALIGNMENT} bytes")
    rank = len(record.shape)

    def padded(values: tuple[int, ...], count: int = _RANK) -> tuple[int, ...]:
        return (*values, *(0,) * (count - len(values)))

    corners = (0,) * 6 if pixel_box is None else (*padded(pixel_box.lower, 3), *padded(pixel_box.upper, 3))
    column = (0, 0) if pixel_box is None else (pixel_box.channels, pixel_box.pixels)
    kinds = (rank, record.data_type, record.swizzle_mode, int(record.fill_nan), int(pixel_box is not None))
    return _LAYOUT.pack(
        _MAGIC,
        address,
        *padded(record.stride_bytes, _RANK - 1),
        *padded(tuple(extent - 1 for extent in record.shape)),
        *padded(record.box),
        *padded(record.step),
        *kinds,
        *corners,
        *column,
    )
