"""Checks that a content fits its tensor; shared by GPU and emulator, without torch and numpy."""

from __future__ import annotations

import math

from tilewright.records import ALLOCATION_ALIGNMENT, Content, Data, Integers, Part, Repeated, TensorSpec

POISON_BYTE = 0xFF  # NaN in every float type


class ContentError(ValueError):
    """A content that cannot fill its tensor; the message says why."""


def check_content(spec: TensorSpec, content: Content) -> None:
    """Raises `ContentError` for elements that do not fit the tensor."""
    dtype = spec.dtype
    if isinstance(content, Data):
        if len(content.content) != spec.storage_bytes:
            raise ContentError(
                f"{spec} with strides {spec.stride} takes {spec.storage_bytes} bytes, "
                f"its data has {len(content.content)}"
            )
    elif isinstance(content, Repeated):
        if len(content.shape) != len(spec.shape) or len(content.content) != math.prod(content.shape) * dtype.itemsize:
            raise ContentError(f"{len(content.content)} bytes of shape {content.shape} cannot be repeated to {spec}")
    elif not isinstance(content, Integers):
        if not dtype.is_float:
            raise ContentError(f"a {dtype} tensor cannot be filled from {type(content).__name__}; use Integers or Data")
        if content.part is not Part.WHOLE and len(spec.shape) < 2:
            raise ContentError(f"{spec} has no {content.part.value} triangle; that takes two dimensions")
    elif content.low >= content.high:
        raise ContentError(f"Integers from {content.low} to below {content.high} is empty")
    elif not dtype.is_float:
        lowest, highest = dtype.whole_numbers
        if content.low < lowest or content.high - 1 > highest:
            raise ContentError(f"Integers from {content.low} to {content.high - 1} do not fit {dtype}")


def misalignment(spec: TensorSpec) -> int:
    """The offset from an aligned address: a tensor gets no more alignment than its spec promises.

    Otherwise a kernel that relies on more would pass here and fail elsewhere.
    """
    return 0 if spec.alignment >= ALLOCATION_ALIGNMENT else max(spec.alignment, spec.dtype.itemsize)
