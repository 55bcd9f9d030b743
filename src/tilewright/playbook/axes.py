"""Which dimensions of which tensors are one and the same, followed through broadcasts and changes of shape.

A square matrix has two dimensions of one size, so sizes cannot say whether a vector goes along its rows or its columns.
Dimensions are numbers; those found to be the same are joined. A view that regroups elements splits a dimension into
parts or puts several together: whatever has the dimension then has its parts.
"""

from __future__ import annotations

from tilewright.playbook.errors import NoMatch

ONE = -1  # a dimension of size 1, which repeats along whatever it meets

Axes = tuple[int, ...]
Shapes = tuple[tuple[int, ...], ...]  # of one tensor, at every probe


class AxisTable:
    def __init__(self) -> None:
        self._parent: list[int] = []
        self._sizes: list[tuple[int, ...]] = []  # of every dimension, at every probe
        self._parts: dict[int, Axes] = {}  # of a dimension that was split or put together, outermost first

    def new(self, shapes: Shapes) -> Axes:
        """A number for every dimension of a tensor."""
        sizes = tuple(zip(*shapes, strict=True))
        return tuple(ONE if size[0] == 1 else self._add(size) for size in sizes)

    def _add(self, size: tuple[int, ...], parts: Axes = ()) -> int:
        axis = len(self._parent)
        self._parent.append(axis)
        self._sizes.append(size)
        if parts:
            self._parts[axis] = parts
        return axis

    def size(self, axis: int) -> tuple[int, ...]:
        return self._sizes[self.find(axis)]

    def find(self, axis: int) -> int:
        while axis != ONE and self._parent[axis] != axis:
            axis = self._parent[axis]
        return axis

    def resolve(self, axes: Axes) -> Axes:
        """One number for every dimension, for those who do not follow views that regroup elements."""
        found = tuple(self.find(axis) for axis in axes)
        if any(axis in self._parts for axis in found):
            raise NoMatch
        return found

    def atoms(self, axes: Axes) -> Axes:
        """The dimensions without those of size 1, and parts in place of what has them."""
        found: list[int] = []
        for axis in (self.find(one) for one in axes):
            if axis in self._parts:
                found += self.atoms(self._parts[axis])
            elif axis != ONE:
                found.append(axis)
        return tuple(found)

    def join(self, a: int, b: int) -> int:
        a, b = self.find(a), self.find(b)
        if ONE in (a, b):
            return max(a, b)
        for split, other in ((a, b), (b, a)):
            if split in self._parts and other not in self._parts:
                self._parts[other] = self._parts[split]
                return split
        if a in self._parts:
            self._join_parts(a, b)
            return a
        self._parent[max(a, b)] = min(a, b)
        return min(a, b)

    def _join_parts(self, a: int, b: int) -> None:
        ours, theirs = self.atoms((a,)), self.atoms((b,))
        if [self.size(one) for one in ours] != [self.size(one) for one in theirs]:
            raise NoMatch
        for one, other in zip(ours, theirs, strict=True):
            self.join(one, other)

    def broadcast(self, all_axes: list[Axes]) -> Axes:
        """The dimensions of a pointwise result: lists are aligned at their ends, as in PyTorch."""
        rank = max((len(axes) for axes in all_axes), default=0)
        found: Axes = (ONE,) * rank
        for axes in all_axes:
            padded = (ONE,) * (rank - len(axes)) + axes
            found = tuple(self.join(a, b) for a, b in zip(found, padded, strict=True))
        return found

    def reshaped(self, axes: Axes, old: Shapes, new: Shapes, what: str) -> Axes:
        """Axes after a view, which keeps the order of elements: a new dimension is whole ones, or a part of one."""
        # An expanded dimension may stand where its size is not 1 although nothing varies there: keep its number.
        kept = tuple(axis for axis, size in zip(axes, old[0], strict=True) if size != 1)
        waiting = list(self.atoms(kept))
        made = tuple(ONE if size[0] == 1 else self._taken(waiting, size) for size in zip(*new, strict=True))
        if waiting or None in made:
            raise NoMatch
        return tuple(one for one in made if one is not None)

    def repeated(self, axes: Axes, old: Shapes, new: Shapes) -> Axes:
        """Axes after a tensor was put side by side with itself: a new dimension outside of each that was repeated."""
        missing = len(new[0]) - len(axes)
        own = (ONE,) * missing + axes
        before = [(1,) * len(old)] * missing + list(zip(*old, strict=True))
        made: list[int] = []
        for axis, inner, size in zip(own, before, zip(*new, strict=True), strict=True):
            times = tuple(one // other for one, other in zip(size, inner, strict=True))
            if set(times) == {1}:
                made.append(axis)
            else:
                outer = self._add(times)
                made.append(outer if inner[0] == 1 else self._add(size, (outer, axis)))
        return tuple(made)

    def _taken(self, waiting: list[int], size: tuple[int, ...]) -> int | None:
        """A dimension of this size from the first of those waiting; None where no whole parts of them make it."""
        taken: list[int] = []
        left = size
        while any(one != 1 for one in left):
            if not waiting:
                return None
            axis = waiting.pop(0)
            own = self.size(axis)
            if all(one % other == 0 for one, other in zip(left, own, strict=True)):
                left = tuple(one // other for one, other in zip(left, own, strict=True))
            elif all(other % one == 0 for one, other in zip(left, own, strict=True)):
                outer = self._add(left)
                inner = self._add(tuple(other // one for one, other in zip(left, own, strict=True)))
                self._parts[axis] = (outer, inner)
                waiting.insert(0, inner)
                axis, left = outer, (1,) * len(left)
            else:
                return None
            taken.append(axis)
        return taken[0] if len(taken) == 1 else self._add(size, tuple(taken))
