"""Algebra with convolutions: means without the convolution, and an average pooling as part of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

from tilewright.playbook.errors import NotSupported
from tilewright.playbook.gemms.convolution_program import Settings, pool_settings
from tilewright.playbook.gemms.graph import CONVOLUTION, PRODUCT, TAP_MEANS, Builder, Graph, Rewrite, shape_at, taken
from tilewright.playbook.tracing import Items, Node, TracedArgument

MEANS = "the mean over a convolution's results is made from the means of what each tap sees: most of the work is gone"
_LINEAR = ("mul", "div", "add", "sub")
_MOST_TAPS = 32  # whose sums a thread keeps


def mean_of_convolution(graph: Graph, index: int) -> Rewrite | None:
    """The mean over some of the dimensions along which windows move, of a convolution or of what is linear in it."""
    node = graph.nodes[index]
    (inner,) = taken(node)
    given = node.arguments[1] if len(node.arguments) > 1 else None
    if node.target != "mean" or not isinstance(given, Items) or graph.dtype(index) != "float32":
        return None
    rank = len(graph.shape(inner))
    dims = tuple(sorted(int(str(one)) % rank for one in given.values))
    found = steps_from(graph, inner, dims)
    if found is None:
        return None
    steps, convolution = found
    made = _Means(graph, convolution, dims)
    if not made.pays:
        return None

    def make(builder: Builder) -> Node:
        total = made.write(builder)
        for step in steps:
            total = again(graph, builder, step, total)
        return builder.add("view", total, lambda probe: Items(shape_at(graph, index, probe)))

    return Rewrite(index, MEANS, make)


def steps_from(graph: Graph, index: int, dims: tuple[int, ...]) -> tuple[list[int], int] | None:
    """The operations from a convolution to a node, which a mean over these dimensions goes through; each used alone."""
    rank = len(graph.shape(index))
    steps: list[int] = []
    while True:
        if len(graph.users[index]) != 1 or index in graph.outputs:
            return None
        node = graph.nodes[index]
        if node.target == CONVOLUTION:
            return steps, index
        first = node.arguments[0] if node.arguments else None
        if node.target not in _LINEAR or not isinstance(first, Node) or len(node.arguments) != 2 or node.keywords:
            return None
        if len(graph.shape(first.index)) != rank or graph.shape(first.index) != graph.shape(index):
            return None
        for other in taken(node)[1:]:
            shape = (1,) * (rank - len(graph.shape(other))) + graph.shape(other)
            if any(shape[one] != 1 for one in dims) or not graph.is_given(other):
                return None
        steps.insert(0, index)
        index = first.index


def again(graph: Graph, builder: Builder, step: int, total: Node) -> Node:
    """The same operation on what stands for its operand."""

    def other(probe: int) -> TracedArgument:
        given = graph.traces[probe].nodes[step].arguments[1]
        return builder.old(given.index) if isinstance(given, Node) else given

    return builder.add(graph.nodes[step].target, total, other, overload=graph.nodes[step].overload)


class _Means:
    """A convolution whose results are averaged over some dimensions, which are 1 in what is made."""

    def __init__(self, graph: Graph, convolution: int, dims: tuple[int, ...]) -> None:
        self.graph, self.convolution, self.dims = graph, convolution, dims
        nodes = tuple(trace.nodes[convolution] for trace in graph.traces)
        self.settings = Settings.of(nodes, len(graph.shape(convolution)) - 2)
        self.x, self.weight = taken(graph.nodes[convolution])
        self.gone = tuple(one - 2 for one in dims)  # the windows' dimensions that are averaged, counted from 0
        self.kept = tuple(one for one in range(len(self.settings.strides)) if one not in self.gone)
        self.taps = graph.shape(self.weight)[2:]

    @property
    def gone_taps(self) -> int:
        return math.prod(self.taps[one] for one in self.gone)

    @property
    def pays(self) -> bool:
        """Where the dimensions are windows' and lie side by side, and taps are few."""
        together = all(b == a + 1 for a, b in zip(self.dims, self.dims[1:], strict=False))
        fits = self.dims[0] == 2 and together and self.settings.groups == 1 and self.gone_taps <= _MOST_TAPS
        plain = all(self.graph.dtype(one) == "float32" for one in (self.x, self.weight))
        return fits and plain and all(len(set(one)) == 1 for one in self.graph.sizes(self.weight)[2:])

    def write(self, builder: Builder) -> Node:
        means, weights = self._tap_means(builder), self._weights(builder)
        target, more = (CONVOLUTION, (None, *self.settings.only(self.kept).arguments)) if self.kept else (PRODUCT, ())

        def results(probe: int) -> tuple[int, ...]:
            whole = shape_at(self.graph, self.convolution, probe)
            return tuple(one for place, one in enumerate(whole) if place not in self.dims)

        def seen(probe: int) -> Items:
            whole = shape_at(self.graph, self.convolution, probe)
            return Items(tuple(1 if place in self.dims else one for place, one in enumerate(whole)))

        return builder.add("view", builder.add(target, means, weights, *more, shape=results), seen)

    def _tap_means(self, builder: Builder) -> Node:
        dims, taps = Items(self.dims), Items(tuple(self.taps[one] for one in self.gone))
        more = self.settings.only(self.gone).arguments

        def shape(probe: int) -> tuple[int, ...]:
            batch, channels, *lengths = shape_at(self.graph, self.x, probe)
            return batch, channels * self.gone_taps, *(lengths[one] for one in self.kept)

        return builder.add(TAP_MEANS, builder.old(self.x), dims, taps, *more, shape=shape)

    def _weights(self, builder: Builder) -> Node:
        """The taps that are gone as further channels: [filters, channels of all taps, taps], or [channels, filters] of
        what is a product."""
        gone, kept = (tuple(one + 2 for one in places) for places in (self.gone, self.kept))
        channels_first = self.settings.transposed or not self.kept
        filters, channels = (1, 0) if self.settings.transposed else (0, 1)
        order = (channels, *gone, filters, *kept) if channels_first else (filters, channels, *gone, *kept)
        turned = builder.add("permute", builder.old(self.weight), Items(order))

        def joined(probe: int) -> Items:
            sizes = shape_at(self.graph, self.weight, probe)
            wide = sizes[channels] * self.gone_taps
            pair = (wide, sizes[filters]) if channels_first else (sizes[filters], wide)
            return Items((*pair, *(sizes[one] for one in kept)))

        return builder.add("view", turned, joined)


# The average pooling of a convolution as one convolution, with wider windows and larger steps, or of a transposed
# one as a plain one: the results between them are never made.


POOLED = "a convolution and the average pooling of its results are made as one convolution, whose weights are sums"
_POOLED_MOST_TAPS = 128

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
    if not fits or math.prod(one.taps for one in axes) > _POOLED_MOST_TAPS:
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
