"""TMA descriptors: a `TensorMap` record and an address become the 128 bytes a kernel takes as CUtensorMap.

A descriptor depends only on the record and the address, so it is kept per address; the number kept is bounded.
"""

from __future__ import annotations

import ctypes

from tilewright.devices.cuda.driver import DriverError, error_name
from tilewright.records import TensorMap

DESCRIPTOR_BYTES = 128
_DESCRIPTOR_ALIGNMENT = 64  # the driver refuses to encode into less
_KEPT_PER_MAP = 256

_L2_PROMOTION = {0: 0, 64: 1, 128: 2, 256: 3}


class TensorMapEncoder:
    """Encodes one map for any address. `library` is libcuda as ctypes sees it."""

    def __init__(self, library: ctypes.CDLL, record: TensorMap) -> None:
        rank = len(record.shape)
        self._record = record
        self._encode = library.cuTensorMapEncodeTiled
        self._shape = (ctypes.c_uint64 * rank)(*record.shape)
        self._stride_bytes = (ctypes.c_uint64 * max(rank - 1, 1))(*record.stride_bytes)
        self._box = (ctypes.c_uint32 * rank)(*record.box)
        self._step = (ctypes.c_uint32 * rank)(*record.step)
        self._kept: dict[int, bytes] = {}

    def descriptor(self, address: int) -> bytes:
        """The descriptor for a tensor at `address`."""
        kept = self._kept.get(address)
        return kept if kept is not None else self._encoded(address)

    def _encoded(self, address: int) -> bytes:
        record = self._record
        memory = ctypes.create_string_buffer(DESCRIPTOR_BYTES + _DESCRIPTOR_ALIGNMENT)
        start = ctypes.addressof(memory)
        aligned = -(-start // _DESCRIPTOR_ALIGNMENT) * _DESCRIPTOR_ALIGNMENT
        code = self._encode(
            ctypes.c_void_p(aligned),
            ctypes.c_int(record.data_type),
            ctypes.c_uint32(len(record.shape)),
            ctypes.c_void_p(address),
            self._shape,
            self._stride_bytes,
            self._box,
            self._step,
            ctypes.c_int(0),  # no interleave
            ctypes.c_int(record.swizzle_mode),
            ctypes.c_int(_L2_PROMOTION[record.l2_bytes]),
            ctypes.c_int(int(record.fill_nan)),
        )
        if code:
            raise DriverError(
                error_name(code),
                code,
                f"encode map {record.name} over {record.tensor} at {address:#x}: {record.dtype}, innermost first: "
                f"shape {record.shape}, stride {record.stride_bytes} bytes, box {record.box}, step {record.step}, "
                f"swizzle {record.swizzle}",
            )
        encoded = ctypes.string_at(aligned, DESCRIPTOR_BYTES)
        if len(self._kept) >= _KEPT_PER_MAP:
            self._kept.clear()
        self._kept[address] = encoded
        return encoded
