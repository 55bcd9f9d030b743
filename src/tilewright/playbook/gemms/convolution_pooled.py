"""The average pooling of a convolution as one convolution, with wider windows and larger steps, or of a transposed one
as a plain one: the results between them are never made."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

from tilewright.playbook.errors import NotSupported
from tilewright.playbook.gemms.convolution_algebra import again, steps_from
from tilewright.playbook.gemms.convolution_reading import Settings, pool_settings
from tilewright.playbook.gemms.graph import CONVOLUTION, Graph, taken
from tilewright.playbook.gemms.rewriting import Builder, Rewrite, shape_at
from tilewright.playbook.tracing import Items, Node

POOLED = "a convolution and the average pooling of its results are made as one convolution, whose weights are sums"
_MOST_TAPS = 128

Sizes = tuple[int, ...]
Write = Callable[[Builder], Node]


def pooled_convolution(graph: Graph, index: int) -> Rewrite | None:
    """An average pooling of a convolution, or of what is linear in it."""
    node = graph.nodes[index]
    try:
        pool, windows = pool_settings(node)
    except NotSupported:
        return None
    (inner,) = taken(node)
    rank = len(windows)
    plain = not any(pool.paddings) and node.given(6, "divisor_override") is None
    dims = tuple(range(2, rank + 2))
    found = steps_from(graph, inner, dims) if plain and len(graph.shape(inner)) == rank + 2 else None
    if found is None or graph.dtype(index) != "float32":
        return None
    steps, convolution = found
    joined = _joined(graph, index, convolution, pool, windows)
    if joined is None:
        return None

    def make(builder: Builder) -> Node:
        total = joined(builder)
        for step in steps:
            total = again(graph, builder, step, total)
        return total

    return Rewrite(index, POOLED, make)


def _joined(graph: Graph, index: int, convolution: int, pool: Settings, windows: Sizes) -> Write | None:
    """What writes the one convolution, where it is less work than both."""
    nodes = tuple(trace.nodes[convolution] for trace in graph.traces)
    own = Settings.of(nodes, len(windows))
    x, weight = taken(nodes[0])
    taps = graph.shape(weight)[2:]
    if any(len(set(one)) > 1 for one in graph.sizes(weight)[2:]) or graph.dtype(weight) != "float32":
        return None
    if any(one != 1 for one in own.dilations):
        return None
    each = list(zip(own.strides, own.paddings, taps, windows, pool.strides, strict=True))
    if own.transposed:
        if own.groups != 1 or any(not stride == window == step for stride, _, _, window, step in each):
            return None
        axes = tuple(_turned(stride, padding, wide) for stride, padding, wide, _, _ in each)
    else:
        axes = tuple(_widened(stride, padding, wide, window, step) for stride, padding, wide, window, step in each)
        if math.prod(one.taps for one in axes) >= math.prod(wide * step for _, _, wide, _, step in each):
            return None
    settings = Settings(
        tuple(one.stride for one in axes),
        tuple(one.padding for one in axes),
        own.dilations,
        (0,) * len(axes),
        False,
        own.groups,
    )
    fits = all(
        (length + 2 * axis.padding - axis.taps) // axis.stride + 1 == results
        for probe in range(len(graph.traces))
        for length, results, axis in zip(
            shape_at(graph, x, probe)[2:], shape_at(graph, index, probe)[2:], axes, strict=True
        )
    )
    if not fits or math.prod(one.taps for one in axes) > _MOST_TAPS:
        return None

    def results(probe: int) -> Sizes:
        return *shape_at(graph, convolution, probe)[:2], *shape_at(graph, index, probe)[2:]

    def write(builder: Builder) -> Node:
        made = builder.old(weight)
        if own.transposed:
            places = tuple(range(2, len(axes) + 2))
            made = builder.add("flip", builder.add("permute", made, Items((1, 0, *places))), Items(places))
        for place, axis in enumerate(axes):
            made = _summed(builder, made, place + 2, len(axes) - 1 - place, axis)
        made = builder.add("mul", made, 1.0 / math.prod(windows), overload="Tensor")
        return builder.add(CONVOLUTION, builder.old(x), made, None, *settings.arguments, shape=results)

    return write


@dataclass(frozen=True)
class _Axis:
    """Along one dimension: the window that both make, and the shifted copies of the weights whose sum it is."""

    taps: int
    stride: int
    padding: int
    shifts: tuple[tuple[int, int, int], ...]  # elements put before and behind the weights, and which is the first
    step: int  # from one that is taken to the next


def _widened(stride: int, padding: int, taps: int, window: int, step: int) -> _Axis:
    """Tap t of the j-th result in a window is tap j * stride + t of all of it."""
    more = (window - 1) * stride
    shifts = tuple((one * stride, more - one * stride, 0) for one in range(window))
    return _Axis(taps + more, stride * step, padding, shifts, 1)


def _turned(stride: int, padding: int, taps: int) -> _Axis:
    """Of the weights from the last to the first: what x[o + m] is multiplied by on its way to any of the results that
    are averaged as o. These are the taps t with 0 <= m * stride + t - padding < stride."""
    least, most = -((taps - 1 - padding) // stride), (padding + stride - 1) // stride
    count = most - least + 1
    before = stride - 1 - (taps - 1 - padding + least * stride)
    behind = count * stride - before - taps
    return _Axis(count, 1, -least, tuple((before, behind, one) for one in range(stride)), stride)


def _summed(builder: Builder, given: Node, dim: int, behind_it: int, axis: _Axis) -> Node:
    """The sum of the shifted copies of the weights along one dimension, which has others behind it."""

    def copied(shift: tuple[int, int, int]) -> Node:
        front, behind, first = shift
        made = builder.add("constant_pad_nd", given, Items((*(0, 0) * behind_it, front, behind)), 0.0)
        if axis.step == 1:
            return made
        end = (axis.taps - 1) * axis.step + first + 1
        return builder.add("slice", made, dim, first, end, axis.step, overload="Tensor")

    return reduce(lambda one, other: builder.add("add", one, other, overload="Tensor"), map(copied, axis.shifts))
