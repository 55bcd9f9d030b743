"""Convolutions that need not be made, or smaller ones that do: what is changed in a graph, and a sentence for each."""

from __future__ import annotations

import math

from tilewright.playbook.gemms.convolution_reading import Settings
from tilewright.playbook.gemms.graph import CONVOLUTION, PRODUCT, TAP_MEANS, Graph, taken
from tilewright.playbook.gemms.rewriting import Builder, Rewrite, shape_at
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
