"""Which dimensions of which tensors are one and the same: found by following broadcasts, not by comparing sizes.

A square matrix has two dimensions of one size, so sizes cannot say whether a vector goes along its rows or its columns.
"""

from __future__ import annotations

from tilewright.playbook.errors import NotSupported

ONE = -1  # a dimension of size 1, which repeats along whatever it meets

Axes = tuple[int, ...]


class AxisTable:
    """Dimensions as numbers; those found to be the same are joined."""

    def __init__(self) -> None:
        self._parent: list[int] = []

    def new(self, sizes: tuple[int, ...]) -> Axes:
        """A number for every dimension of a tensor."""
        made: list[int] = []
        for size in sizes:
            if size == 1:
                made.append(ONE)
            else:
                made.append(len(self._parent))
                self._parent.append(len(self._parent))
        return tuple(made)

    def find(self, axis: int) -> int:
        while axis != ONE and self._parent[axis] != axis:
            axis = self._parent[axis]
        return axis

    def resolve(self, axes: Axes) -> Axes:
        return tuple(self.find(axis) for axis in axes)

    def join(self, a: int, b: int) -> int:
        a, b = self.find(a), self.find(b)
        if ONE in (a, b):
            return max(a, b)
        self._parent[max(a, b)] = min(a, b)
        return min(a, b)

    def broadcast(self, all_axes: list[Axes]) -> Axes:
        """The dimensions of a pointwise result: lists are aligned at their ends, as in PyTorch."""
        rank = max((len(axes) for axes in all_axes), default=0)
        found: Axes = (ONE,) * rank
        for axes in all_axes:
            padded = (ONE,) * (rank - len(axes)) + axes
            found = tuple(self.join(a, b) for a, b in zip(found, padded, strict=True))
        return found

    def reshaped(self, axes: Axes, sizes: tuple[int, ...], new_sizes: tuple[int, ...], what: str) -> Axes:
        """Axes after a view that only adds or removes dimensions of size 1."""
        if [size for size in sizes if size != 1] != [size for size in new_sizes if size != 1]:
            raise NotSupported(
                f"the playbook does not support {what} from {list(sizes)} to {list(new_sizes)}, which regroups elements"
            )
        # An expanded dimension may stand where its size is not 1 although nothing varies there: keep its number.
        kept = iter(axis for axis, size in zip(axes, sizes, strict=True) if size != 1)
        return tuple(ONE if size == 1 else next(kept) for size in new_sizes)
