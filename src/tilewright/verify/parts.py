"""In the reference's process: split a large call along the dimensions in which the reference is independent.

A reference is independent in a dimension if its results at some indices follow from the inputs at those indices alone:
rows of a softmax, rows and columns of a GEMM, images of a batch. Each part of a call can then be judged by itself.
Independence is found by calling the reference in f64 on a few indices together and on each alone, and checked once at
the dtype on the whole call and every part.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from tilewright.records import IndexValues, Task
from tilewright.verify.tolerance import are_numbers

Tensors = dict[str, torch.Tensor]
Results = tuple[torch.Tensor, ...]
Call = Callable[[Tensors], Results]
Part = Mapping[str, range]  # indices of some dimensions; all of the others

_SAME = 1e-9  # relative, in f64: the order of a sum may differ between calls
_SAVES = 0.8  # of its elements at most must remain for a further cut to pay
_NEAR = 1e-2  # RMS relative difference at the dtype


@dataclass(frozen=True)
class Axes:
    """The axis of one dimension in each input, by name, and in each result."""

    inputs: Mapping[str, int]
    results: tuple[int, ...]


def result_dimensions(task: Task) -> tuple[tuple[str | int, ...], ...]:
    """The dimensions of every output, then of every tensor changed in place."""
    return (*(one.shape for one in task.outputs), *(one.dimensions for one in task.tensors if one.in_place))


def sliceable(task: Task) -> dict[str, Axes]:
    """The dimensions along which a call can be split at all, the outermost of the first result first."""
    results = result_dimensions(task)
    formulas = [one.formula for one in task.dimensions if one.formula is not None]
    following = {one.name for one in task.dimensions if one.formula is not None}
    following |= {name for formula in formulas for name in formula.names}
    following |= {one.values.dimension for one in task.tensors if isinstance(one.values, IndexValues)}
    given = [one for one in task.tensors if not one.optional]
    found: dict[str, Axes] = {}
    for name in results[0] if results else ():
        if not isinstance(name, str) or name in following or name in found:
            continue
        once = all(shape.count(name) == 1 for shape in results)
        if once and all(one.dimensions.count(name) <= 1 for one in given):
            inputs = {one.name: one.dimensions.index(name) for one in given if name in one.dimensions}
            if inputs:
                found[name] = Axes(inputs, tuple(shape.index(name) for shape in results))
    return found


class Cutting:
    """Slices the tensors of a call along some dimensions."""

    def __init__(self, axes: Mapping[str, Axes]) -> None:
        self.axes = dict(axes)

    def inputs(self, tensors: Tensors, part: Part) -> Tensors:
        """A part's inputs, as views."""
        cut = dict(tensors)
        for name, places in part.items():
            for tensor, axis in self.axes[name].inputs.items():
                cut[tensor] = cut[tensor].narrow(axis, places.start, len(places))
        return cut

    def result(self, result: torch.Tensor, position: int, part: Part) -> torch.Tensor:
        """A part of one result, as a view."""
        for name, places in part.items():
            result = result.narrow(self.axes[name].results[position], places.start, len(places))
        return result

    def start(self, position: int, rank: int, part: Part) -> tuple[int, ...]:
        """The index at which a part of one result begins."""
        at = [0] * rank
        for name, places in part.items():
            at[self.axes[name].results[position]] = places.start
        return tuple(at)


# -- independent dimensions --


def independent(call: Call, tensors: Tensors, axes: Mapping[str, Axes]) -> dict[str, Axes]:
    """The dimensions in which the reference is independent; `call` is in f64."""
    found: dict[str, Axes] = {}
    for name, one in axes.items():
        size = next(tensors[tensor].shape[axis] for tensor, axis in one.inputs.items())
        # One index of the dimensions already found is enough.
        few = Cutting(found).inputs(tensors, {known: range(1) for known in found})
        some = (sorted({0, size // 2, size - 1}), [0, 1])
        if size > 1 and all(_same_alone(call, few, one, places) for places in some):
            found[name] = one
    return found


def _same_alone(call: Call, tensors: Tensors, axes: Axes, places: list[int]) -> bool:
    try:
        together = call(_at(tensors, axes, places))
        for number, place in enumerate(places):
            alone = call(_at(tensors, axes, [place]))
            for mine, other, axis in zip(alone, together, axes.results, strict=True):
                if not _is_same(mine, other.narrow(axis, number, 1)):
                    return False
    except Exception:  # a reference that insists on its sizes
        return False
    return True


def _at(tensors: Tensors, axes: Axes, places: list[int]) -> Tensors:
    taken = dict(tensors)
    for name, axis in axes.inputs.items():
        chosen = torch.tensor(places, device=tensors[name].device)
        taken[name] = tensors[name].index_select(axis, chosen)
    return taken


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape:
        return False
    if not one.is_floating_point():
        return torch.equal(one, other)
    finite = other[other.isfinite()]
    usual = float(finite.square().mean().sqrt()) if finite.numel() else 0.0
    return torch.allclose(one, other, rtol=_SAME, atol=_SAME * usual, equal_nan=True)


def agree_whole(call: Call, tensors: Tensors, cutting: Cutting, parts: Sequence[Part]) -> bool:
    """Whether the reference computes each part as in the whole call, at the dtype.

    This finds a reference that branches on a size or depends on positions.
    """
    whole = call(tensors)
    for part in parts:
        for position, made in enumerate(call(cutting.inputs(tensors, part))):
            if not _is_near(made, cutting.result(whole[position], position, part)):
                return False
    return True


def _is_near(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape:
        return False
    if not one.is_floating_point():
        return one.numel() == 0 or float((one != other).double().mean()) <= _NEAR
    if are_numbers(one, other):
        return bool((one.float() - other.float()).norm() <= _NEAR * other.float().norm())
    finite = one.isfinite() & other.isfinite()
    if not torch.equal(one.isfinite(), other.isfinite()):
        return False
    apart = torch.where(finite, one.float() - other.float(), 0.0).norm()
    return bool(apart <= _NEAR * torch.where(finite, other.float(), 0.0).norm())


# -- sizes of parts --


def parts_of(task: Task, sizes: Mapping[str, int], axes: Mapping[str, Axes], most: int) -> list[Part]:
    """Parts that cover the call, each of about `most` elements of inputs and results.

    Inputs that every part takes whole, such as the weights of a layer split by rows, are processed again for each, so a
    part is never so small that they dominate.
    """
    shapes = [one.dimensions for one in task.tensors if not one.optional] + list(result_dimensions(task))

    def elements(steps: Mapping[str, int]) -> int:
        return sum(
            math.prod(steps.get(name, sizes[name]) if isinstance(name, str) else name for name in shape)
            for shape in shapes
        )

    most = max(most, 2 * elements(dict.fromkeys(axes, 0)))
    steps = {name: sizes[name] for name in axes}
    while elements(steps) > most and any(step > 1 for step in steps.values()):
        # Halve the dimension that saves most, in a GEMM rows and columns in turn, else the outermost.
        halved = [{**steps, name: -(-step // 2)} for name, step in steps.items() if step > 1]
        least = min(halved, key=elements)
        if elements(least) > _SAVES * elements(steps):
            break
        steps = least
    along = [
        [range(start, min(start + step, sizes[name])) for start in range(0, sizes[name], step)]
        for name, step in steps.items()
    ]
    return [dict(zip(steps, chosen, strict=True)) for chosen in itertools.product(*along)]


def part_text(part: Part, sizes: Mapping[str, int]) -> str:
    """rows 0 to 127 of 4096, cols 256 to 511 of 1024"""
    cut = [(name, places) for name, places in part.items() if len(places) < sizes[name]]
    return ", ".join(f"{name} {places.start} to {places.stop - 1} of {sizes[name]}" for name, places in cut)
