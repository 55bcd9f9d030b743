"""Inside the child: whether the first dimension of a task's rows may stand for any number of leading ones.

Nothing is concluded from the source: the reference is called with rows as they are, with some of them alone, and with
the same rows under more dimensions, and under none, and must answer the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tilewright.records import IndexValues, Layout, Task
from tilewright.reference.torch_calls import call_reference
from tilewright.tasks.child.input_values import draw_all

_LEADING = ((2, 3), (3, 1, 2), ())
_ROWS, _SOME = 6, 2
_SEED = 21
_ROUNDINGS = 64.0  # of the largest element: the same sums may be made in another order
_NARROW_ROUNDINGS = 2.0  # of 16 bits, whose sums are made in more

Leading = tuple[tuple[str, int], ...]


def leading_inputs(function: Callable[..., Any], task: Task, sizes: Mapping[str, int]) -> Leading:
    """The inputs that share the leading dimension, each with its number of dimensions; none where there is no such."""
    label = _leading_label(task)
    if label is None:
        return ()
    found = tuple((one.name, len(one.dimensions)) for one in task.tensors if label in one.dimensions)
    asked = _Asked(function, task, frozenset(name for name, _ in found))
    try:
        alike = asked.are_apart({**sizes, label: _ROWS}) and all(
            asked.is_stacked({**sizes, label: math.prod(one)}, one) for one in _LEADING
        )
    except Exception:  # whatever the reference raises where it takes no more dimensions
        return ()
    return found if alike else ()


def _leading_label(task: Task) -> str | None:
    """The one dimension that may lead: free, first wherever it is, of every result and of all that is changed."""
    shapes = [one.shape for one in task.outputs] + [one.dimensions for one in task.tensors if one.in_place]
    first = {shape[0] if shape else None for shape in shapes}
    label = next(iter(first)) if len(first) == 1 else None
    dimension = next((one for one in task.free if one.name == label), None)
    if not isinstance(label, str) or dimension is None or not dimension.varies or dimension.branches:
        return None
    if (dimension.multiple_of, dimension.at_least, dimension.at_most) != (1, 1, None):
        return None
    if any(one.formula is not None and label in one.formula.names for one in task.dimensions):
        return None
    for one in task.tensors:
        if isinstance(one.values, IndexValues) and one.values.dimension == label:
            return None
        if label in one.dimensions and (one.memory_order or one.layout is not Layout.DENSE or one.optional):
            return None
    taken = [*shapes, *(one.dimensions for one in task.tensors if label in one.dimensions)]
    return label if all(shape[0] == label and label not in shape[1:] for shape in taken) else None


@dataclass(frozen=True)
class _Asked:
    """A reference, and the inputs that share the leading dimension."""

    function: Callable[..., Any]
    task: Task
    names: frozenset[str]

    def are_apart(self, sizes: Mapping[str, int]) -> bool:
        """Whether what becomes of a row is the same without the others."""
        whole = self._drawn(sizes)
        part = {name: one[-_SOME:].clone() if name in self.names else one for name, one in whole.items()}
        pairs = zip(self._called(whole), self._called(part), strict=True)
        return all(_is_same(one[-_SOME:], other, (_SOME,)) for one, other in pairs)

    def is_stacked(self, sizes: Mapping[str, int], leading: tuple[int, ...]) -> bool:
        flat = self._drawn(sizes)
        wide = {
            name: one.reshape((*leading, *one.shape[1:])) if name in self.names else one for name, one in flat.items()
        }
        pairs = zip(self._called(flat), self._called(wide), strict=True)
        return all(_is_same(one, other, leading) for one, other in pairs)

    def _called(self, tensors: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return call_reference(self.function, self.task, tensors)

    def _drawn(self, sizes: Mapping[str, int]) -> dict[str, torch.Tensor]:
        """Inputs in f64 where the reference bears it: roundings of 16 bits hide other answers."""
        drawn = draw_all(self.task, sizes, _SEED)
        wide = {name: one.double() if one.is_floating_point() else one for name, one in drawn.items()}
        try:
            self._called(wide)
        except Exception:  # one that is tied to its dtype
            return drawn
        return wide


def _is_same(flat: torch.Tensor, wide: torch.Tensor, leading: tuple[int, ...]) -> bool:
    if wide.shape != (*leading, *flat.shape[1:]) or wide.dtype is not flat.dtype:
        return False
    other = wide.reshape(flat.shape)
    if not flat.is_floating_point():
        return torch.equal(flat, other)
    one, other = flat.double(), other.double()
    if not torch.equal(one.isnan(), other.isnan()):
        return False
    finite = one.isfinite()
    if not torch.equal(finite, other.isfinite()) or not torch.equal(one[one.isinf()], other[one.isinf()]):
        return False
    largest = float(one[finite].abs().max()) if bool(finite.any()) else 0.0
    apart, eps = (one[finite] - other[finite]).abs(), torch.finfo(flat.dtype).eps
    roundings = _ROUNDINGS if eps < _ROUNDINGS**-2 else _NARROW_ROUNDINGS
    return bool((apart <= roundings * eps * largest).all())
