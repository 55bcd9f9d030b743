"""An input's bytes, given or drawn from a seed, with numpy only: importing torch takes longer than most emulated jobs.

The same seed, shape and content give the same values in every layout (drawn in row-major order) and in every float type
(rounded through f32). A GPU's runner draws other values from the same seed; use `Data` for equal inputs.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.devices.contents import POISON_BYTE, ContentError, check_content
from tilewright.ptx import sparse_memory
from tilewright.ptx.global_memory import Bytes
from tilewright.records import Data, DType, InputTensor, Integers, Normal, Part, Repeated, TensorSpec, Uniform

Seeded = Normal | Uniform | Integers

_NARROW = (DType.BF16, DType.F8E4M3, DType.F8E5M2)  # no numpy dtype
_PLAIN = {one: np.dtype("uint8" if one is DType.BOOL else one.torch_name) for one in DType if one not in _NARROW}
_F8_BITS = {DType.F8E4M3: (3, 7), DType.F8E5M2: (2, 15)}  # bits of the fraction, bias of the exponent
_F8_LARGEST = {DType.F8E4M3: 448.0, DType.F8E5M2: 57344.0}


def input_bytes(one: InputTensor) -> Bytes:
    """An input's storage; raises `ContentError`."""
    try:
        check_content(one.spec, one.content)
    except ContentError as error:
        raise ContentError(f"input {one.name!r}: {error}") from error
    if isinstance(one.content, Data):
        return np.frombuffer(one.content.content, dtype=np.uint8)
    if isinstance(one.content, Repeated):
        return _repeated(one.spec, one.content)
    return drawn(one.spec, one.content)


def row_major(spec: TensorSpec, content: bytes) -> bytes:
    """The elements of a tensor's storage in row-major order."""
    if spec.is_contiguous or spec.numel == 0:
        return content
    strides = tuple(step * spec.dtype.itemsize for step in spec.stride)
    elements = np.frombuffer(content, dtype=f"u{spec.dtype.itemsize}")
    return np.ascontiguousarray(np.lib.stride_tricks.as_strided(elements, spec.shape, strides)).tobytes()


def _repeated(spec: TensorSpec, content: Repeated) -> Bytes:
    """Axis by axis, the outermost last, so that most copies are of whole rows, or only mapped."""
    elements = np.frombuffer(content.content, dtype=f"u{spec.dtype.itemsize}").reshape(content.shape)
    few, shape = content.shape, spec.shape
    cut = next((axis for axis, size in enumerate(few) if size > 1), len(few))
    # One period of the flat tensor: size 1 outside, a divisor of one axis, whole axes inside.
    is_period = few[cut + 1 :] == shape[cut + 1 :] and (cut == len(few) or shape[cut] % few[cut] == 0)
    if spec.is_contiguous and spec.numel and is_period:
        return sparse_memory.repeated(elements.reshape(-1).view(np.uint8), spec.storage_bytes)
    for axis in reversed(range(1, len(spec.shape))):
        elements = _along(elements, axis, spec.shape[axis])
    if spec.is_contiguous and spec.numel:
        return sparse_memory.repeated(np.ascontiguousarray(elements).reshape(-1).view(np.uint8), spec.storage_bytes)
    storage = np.full(spec.storage_bytes, POISON_BYTE, dtype=np.uint8)
    if spec.numel:
        strides = tuple(step * spec.dtype.itemsize for step in spec.stride)
        target: Any = np.lib.stride_tricks.as_strided(storage.view(elements.dtype), spec.shape, strides)
        target[...] = _along(elements, 0, spec.shape[0])
    return storage


def _along(elements: npt.NDArray[Any], axis: int, extent: int) -> npt.NDArray[Any]:
    if elements.shape[axis] == extent:
        return elements
    repeated: npt.NDArray[Any] = np.take(elements, np.arange(extent) % elements.shape[axis], axis=axis)
    return repeated


def drawn(spec: TensorSpec, content: Seeded) -> Bytes:
    """The tensor's storage; gaps between elements hold the poison."""
    check_content(spec, content)
    values = _values(spec, content)
    if not isinstance(content, Integers) and content.part is not Part.WHOLE and spec.numel:
        values = (np.triu if content.part is Part.UPPER else np.tril)(values.reshape(spec.shape))
    return laid_out(spec, values)


def laid_out(spec: TensorSpec, values: npt.NDArray[Any]) -> Bytes:
    """The storage of row-major values, rounded to the dtype."""
    storage = np.full(spec.storage_bytes, POISON_BYTE, dtype=np.uint8)
    if spec.numel == 0:
        return storage
    elements = _encoded(values, spec.dtype)
    target: Any = np.lib.stride_tricks.as_strided(
        storage.view(elements.dtype), spec.shape, tuple(step * spec.dtype.itemsize for step in spec.stride)
    )
    target[...] = elements.reshape(spec.shape)
    return storage


def _values(spec: TensorSpec, content: Seeded) -> npt.NDArray[Any]:
    generator = np.random.Generator(np.random.PCG64(content.seed))
    if isinstance(content, Integers):
        return generator.integers(content.low, content.high, spec.numel, dtype=np.int64)
    if isinstance(content, Normal):
        return generator.standard_normal(spec.numel) * content.deviation + content.mean
    if content.low == content.high:  # nothing to draw
        return np.broadcast_to(np.float64(content.low), spec.numel)
    return generator.random(spec.numel) * (content.high - content.low) + content.low


def _encoded(values: npt.NDArray[Any], dtype: DType) -> npt.NDArray[Any]:
    if dtype is DType.F64 or not dtype.is_float:
        return values.astype(_PLAIN[dtype])
    single = values.astype(np.float32)
    if dtype in _PLAIN:
        return single.astype(_PLAIN[dtype])
    if dtype is DType.BF16:
        bits = single.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)  # to nearest, ties to even
    return _encoded_f8(single, dtype)


def _encoded_f8(values: npt.NDArray[np.float32], dtype: DType) -> npt.NDArray[np.uint8]:
    """Round to the nearest finite number, by a table."""
    table = _f8_values(dtype)
    size = np.minimum(np.abs(values), _F8_LARGEST[dtype])
    above = np.clip(np.searchsorted(table, size), 1, len(table) - 1)
    below = above - 1
    to_below, to_above = size - table[below], table[above] - size
    down = (to_below < to_above) | ((to_below == to_above) & (below % 2 == 0))
    sign = np.where(np.signbit(values), 128, 0)
    return (np.where(down, below, above) + sign).astype(np.uint8)


@cache
def _f8_values(dtype: DType) -> npt.NDArray[np.float32]:
    """The finite non-negative numbers, in rising order of their codes."""
    fraction_bits, bias = _F8_BITS[dtype]
    code = np.arange(128)
    exponent, fraction = code >> fraction_bits, code & ((1 << fraction_bits) - 1)
    steps = np.where(exponent == 0, fraction, fraction + (1 << fraction_bits))
    values = np.ldexp(steps.astype(np.float32), np.maximum(exponent, 1) - bias - fraction_bits)
    finite: npt.NDArray[np.float32] = values[values <= _F8_LARGEST[dtype]]
    return finite
