"""`TensorSpec`: the dtype and layout of a tensor, which is all that a launch plan knows of it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from tilewright.records.dtypes import DType

ALLOCATION_ALIGNMENT = 256


def contiguous_stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides, in elements."""
    stride: list[int] = []
    step = 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1) if type(size) is int else size  # symbolic sizes cannot be compared
    return tuple(reversed(stride))


def strides_in(shape: tuple[int, ...], order: tuple[int, ...], gap: int = 0, step: int = 1) -> tuple[int, ...]:
    """Strides of dimensions in this order in memory, with a gap of so many elements between rows."""
    stride = [0] * len(shape)
    for dim in reversed(order):
        stride[dim] = step
        step, gap = step * max(shape[dim], 1) + gap, 0
    return tuple(stride)


_LAID_OUT = re.compile(r"(?P<plain>.*?)(?:\s+order(?P<order>(?:\s+\d+)+))?(?P<strided>\s+strided)?", re.DOTALL)
_GAP = 16


@dataclass(frozen=True)
class TensorSpec:
    """Dtype, shape, strides in elements, and the alignment of the first element in bytes."""

    dtype: DType
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    alignment: int = ALLOCATION_ALIGNMENT

    @classmethod
    def contiguous(cls, dtype: DType, shape: tuple[int, ...]) -> TensorSpec:
        return cls(dtype, shape, contiguous_stride(shape))

    @classmethod
    def parse(cls, text: str) -> TensorSpec:
        """Parse `4096x1024:bf16` or `(4096, 1024):bf16`.

        `scalar:f32` and `:f32` have no dimensions; the default dtype is f32. After it may stand `order 1 0`, the
        dimensions from the outermost to the innermost in memory, and `strided` for rows with a gap between them.
        """
        found = _LAID_OUT.fullmatch(text.strip())
        assert found is not None
        sizes, _, dtype = found["plain"].partition(":")
        sizes = "" if sizes == "scalar" else sizes
        if re.fullmatch(r"\(.*\)|\[.*\]", sizes.strip()):
            listed = sizes.strip()[1:-1].strip()
            sizes = (listed.removesuffix(",") or listed).replace(",", "x")
        try:
            shape = tuple(int(size) for size in sizes.lower().split("x")) if sizes else ()
            if any(size < 0 for size in shape):
                raise ValueError
        except ValueError:
            such = "such as 4096x1024:bf16, or scalar:f32"
            raise ValueError(f"{text!r} is not a shape; write sizes and a dtype, {such}") from None
        order = tuple(int(one) for one in (found["order"] or "").split()) or tuple(range(len(shape)))
        if sorted(order) != list(range(len(shape))):
            raise ValueError(f"{text!r}: order must name each of its {len(shape)} dimensions once, from 0")
        stride = strides_in(shape, order, _GAP if found["strided"] else 0)
        return cls(DType.read(dtype or "f32"), shape, stride)

    @property
    def order(self) -> tuple[int, ...]:
        """The dimensions from the outermost to the innermost in memory; () where that is row-major."""
        found = tuple(sorted(range(self.ndim), key=lambda dim: (-self.stride[dim], dim)))
        return () if self.is_contiguous or found == tuple(range(self.ndim)) else found

    @property
    def is_dense(self) -> bool:
        """Whether its elements lie side by side, in whatever order of dimensions."""
        return self.has_strides(strides_in(self.shape, self.order or tuple(range(self.ndim))))

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def extent(self) -> int:
        """The number of elements from the first to the last in memory; 0 for an empty tensor."""
        if 0 in self.shape:
            return 0
        return 1 + sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))

    @property
    def storage_bytes(self) -> int:
        return self.extent * self.dtype.itemsize

    @property
    def is_contiguous(self) -> bool:
        return self.has_strides(contiguous_stride(self.shape))

    def has_strides(self, stride: tuple[int, ...]) -> bool:
        """Whether these strides address the same elements."""
        return 0 in self.shape or all(n == 1 or a == b for n, a, b in zip(self.shape, self.stride, stride, strict=True))

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"
