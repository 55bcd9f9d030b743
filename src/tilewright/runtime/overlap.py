"""Whether tensors share memory: a tensor that is changed in place may share none with the other arguments."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.records import TensorSpec


@dataclass(frozen=True)
class Region:
    """A tensor's elements in memory: an address, and sizes with strides in bytes."""

    address: int
    dimensions: tuple[tuple[int, int], ...]  # (size, stride in bytes) of the dimensions longer than one
    itemsize: int
    is_empty: bool

    @property
    def end(self) -> int:
        return self.address + self.itemsize + sum((size - 1) * step for size, step in self.dimensions)


def region(address: int, spec: TensorSpec) -> Region:
    itemsize = spec.dtype.itemsize
    dimensions = tuple((n, s * itemsize) for n, s in zip(spec.shape, spec.stride, strict=True) if n > 1)
    return Region(address, dimensions, itemsize, spec.numel == 0)


def overlap(one: Region, other: Region) -> bool:
    """Whether two tensors may share an element. Exact for ranges that are apart and for slices of common rows."""
    if one.is_empty or other.is_empty or one.end <= other.address or other.end <= one.address:
        return False
    pitches = {step for _, step in (*one.dimensions, *other.dimensions)}
    return not any(_apart_within(pitch, one, other) for pitch in pitches if pitch > 0)


def _apart_within(pitch: int, one: Region, other: Region) -> bool:
    """Whether both lie in rows of `pitch` bytes, each in columns of its own: the halves of a matrix, say."""
    first, second = sorted((one, other), key=lambda tensor: tensor.address)
    widths = _row_width(pitch, first), _row_width(pitch, second)
    if widths[0] is None or widths[1] is None:
        return False
    start = (second.address - first.address) % pitch  # in rows that begin where the first tensor does
    return widths[0] <= start and start + widths[1] <= pitch


def _row_width(pitch: int, tensor: Region) -> int | None:
    """How many bytes of a row of `pitch` the tensor reaches over; None where it does not keep to such rows."""
    if any(step % pitch for _, step in tensor.dimensions if step >= pitch):
        return None
    inner = sum((size - 1) * step for size, step in tensor.dimensions if step < pitch)
    return tensor.itemsize + inner
