"""Algebra: graphs with GEMMs and norms as others that do less."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from tilewright.playbook.errors import NotSupported
from tilewright.playbook.gemms.convolution_algebra import mean_of_convolution, pooled_convolution
from tilewright.playbook.gemms.convolution_program import pool_settings
from tilewright.playbook.gemms.graph import (
    CONVOLUTION,
    PRODUCT,
    RESHAPES,
    TURNS,
    Builder,
    Given,
    Graph,
    Rewrite,
    rewritten,
    shape_at,
    taken,
)
from tilewright.playbook.gemms.tensors import FINISH_RULES
from tilewright.playbook.pooling.kernel import MEANS, POOLS
from tilewright.playbook.reductions import REDUCTION_RULES
from tilewright.playbook.tracing import Items, Node, TracedNode

RUNNING = "_native_batch_norm_legit_no_training"
SPLIT = "what is normalised is not stored: means and scales are, and they are applied where it is read"
GROUPS, LAYER, BATCH = "native_group_norm", "native_layer_norm", "_native_batch_norm_legit"
NORMS = (GROUPS, LAYER, BATCH)
_LEAST_ROW = 32  # elements for each pair of statistics


def split_norm(graph: Graph, index: int) -> Rewrite | None:
    """The first result of a norm as work on elements, where that becomes part of a reduction or a pooling."""
    node = graph.nodes[index]
    if node.target != "getitem" or node.arguments[1] != 0 or graph.nodes[taken(node)[0]].target not in NORMS:
        return None
    norm = _Norm(graph, taken(node)[0])
    made = any(graph.nodes[one].target == CONVOLUTION for one in graph.ancestors(norm.index))
    if not made or not norm.fits or not _becomes_less(graph, index):
        return None
    return Rewrite(index, SPLIT, norm.write)


def running_norm(graph: Graph, index: int) -> Rewrite | None:
    """A norm by running statistics as work on elements: what makes them does that too."""
    node = graph.nodes[index]
    if node.target != "getitem" or node.arguments[1] != 0 or graph.nodes[taken(node)[0]].target != RUNNING:
        return None
    norm = _Norm(graph, taken(node)[0])
    made = any(graph.nodes[one].target == CONVOLUTION for one in graph.ancestors(norm.index))
    return Rewrite(index, "", norm.write_running) if made and graph.dtype(norm.index) == "float32" else None


def _becomes_less(graph: Graph, index: int) -> bool:
    """Whether what is made of a node's elements is pooled, or reduced over its last dimensions, or over all channels of
    groups; over others, rows would not have statistics of their own."""
    grouped = graph.nodes[taken(graph.nodes[index])[0]].target == GROUPS
    todo, reached = [index], False
    while todo:
        one = todo.pop()
        for user in graph.users[one]:
            target = graph.nodes[user].target
            if target in POOLS or (target in REDUCTION_RULES and _over_last(graph, user, grouped)):
                reached = True
            elif target in FINISH_RULES:
                todo.append(user)
            else:
                return False
    return reached


def _over_last(graph: Graph, index: int, channels: bool) -> bool:
    node = graph.nodes[index]
    rank = len(graph.shape(taken(node)[0]))
    given = node.given(1, "dim")
    dims = {int(str(one)) % rank for one in (given.values if isinstance(given, Items) else ())}
    last = dims == set(range(rank - len(dims), rank)) or (channels and dims == {1})
    return last and node.target in ("sum", "mean", "amax", "amin", "logsumexp")


@dataclass(frozen=True)
class _Norm:
    graph: Graph
    index: int

    @property
    def node(self) -> TracedNode:
        return self.graph.nodes[self.index]

    @property
    def fits(self) -> bool:
        """With statistics of the elements at hand, and few of them."""
        node = self.node
        if node.target == BATCH and node.overload != "no_stats":
            return False
        if node.target == GROUPS and len({trace.nodes[self.index].arguments[6] for trace in self.graph.traces}) > 1:
            return False
        statistics = node.results[1]
        few = statistics is not None and math.prod(statistics.shape) * _LEAST_ROW <= math.prod(node.result.shape)
        return few and self.graph.dtype(self.index) == "float32"

    def write(self, builder: Builder) -> Node:
        made = builder.old(taken(self.node)[0])
        if self.node.target == GROUPS:
            made = builder.add("view", made, self._grouped)
        for op, number in (("sub", 1), ("mul", 2)):
            made = builder.add(op, made, self._statistic(builder, number), overload="Tensor")
        if self.node.target == GROUPS:
            made = builder.add("view", made, self._whole)
        return self._scaled(builder, made)

    def write_running(self, builder: Builder) -> Node:
        x, mean, variance = (
            builder.old(one.index) for place in (0, 3, 4) if isinstance(one := self.node.arguments[place], Node)
        )
        mean, variance = (builder.add("view", one, self._by_channel) for one in (mean, variance))
        # eps may be an argument, and so another number in each
        above = builder.add("add", variance, partial(self.graph.argument, self.index, 6), overload="Scalar")
        scale = builder.add("rsqrt", above)
        made = builder.add("sub", x, mean, overload="Tensor")
        return self._scaled(builder, builder.add("mul", made, scale, overload="Tensor"))

    def _scaled(self, builder: Builder, made: Node) -> Node:
        """Times the weight and plus the bias, where it has them."""
        first = 2 if self.node.target == LAYER else 1
        for op, place in (("mul", first), ("add", first + 1)):
            given = self.node.arguments[place]
            if isinstance(given, Node):
                other = builder.old(given.index)
                if self.node.target != LAYER:
                    other = builder.add("view", other, self._by_channel)
                made = builder.add(op, made, other, overload="Tensor")
        return made

    def _whole(self, probe: int) -> Items:
        return Items(shape_at(self.graph, self.index, probe))

    def _by_channel(self, probe: int) -> Items:
        _, channels, *rest = shape_at(self.graph, self.index, probe)
        return Items((channels, *(1 for _ in rest)))

    def _grouped(self, probe: int) -> Items:
        groups = self.node.arguments[6]
        assert isinstance(groups, int)
        batch, channels, *rest = shape_at(self.graph, self.index, probe)
        return Items((batch, groups, channels // groups, *rest))

    def _statistic(self, builder: Builder, number: int) -> Node:
        """The norm's result of that number, with a dimension for each of the elements'."""

        def own(probe: int) -> tuple[int, ...]:
            result = self.graph.traces[probe].nodes[self.index].results[number]
            assert result is not None
            return result.shape

        def seen(probe: int) -> Items:
            if self.node.target == BATCH:
                return self._by_channel(probe)
            ones = () if self.node.target == LAYER else (1 for _ in self._grouped(probe).values[2:])
            return Items((*own(probe), *ones))

        return builder.add("view", builder.add("getitem", builder.old(self.index), number, shape=own), seen)


# -- products that need not be made: what is changed in a graph, and a sentence for each change --
# A sum over the columns of a product is a product with summed columns, and a product with a diagonal matrix is a
# scaling of rows or columns. Both give the same numbers to within f32's roundings.


SUMS = "the sum over a product's columns is made as a product with the summed weights: one column is left of all"
WINDOWS = "the means of a product's neighbouring columns are made as a product with the means of the weights"
DIAGONAL = "a product with a diagonal matrix is made as a scaling: no product is left"
POOLS_AS_ONE = "two poolings one after the other are made as one with larger windows"
_MOST_CELLS = 64  # of a window that one pooling goes through well
_NUMBERS = ("mul", "div", "add", "sub")


def simplified(graph: Graph) -> tuple[Graph, tuple[str, ...]]:
    """The graph with less work in it, and what was done in words."""
    notes: list[str] = []
    while True:
        found = next((one for index in range(len(graph.nodes)) if (one := _found(graph, index)) is not None), None)
        if found is None:
            alive = graph.extracted(graph.outputs, {}) if "" in notes else graph  # what is gone is no user of anything
            return alive, tuple(dict.fromkeys(filter(None, notes)))
        graph = rewritten(graph, found)
        notes.append(found.note)


def _found(graph: Graph, index: int) -> Rewrite | None:
    node = graph.nodes[index]
    if node.target == PRODUCT:
        return _diagonal(graph, index)
    if node.target in ("sum", "mean"):
        return _column_sum(graph, index) or _column_windows(graph, index) or mean_of_convolution(graph, index)
    if node.target == "getitem":
        return split_norm(graph, index) or running_norm(graph, index)
    if node.target in POOLS:
        return _one_pool(graph, index) or (pooled_convolution(graph, index) if node.target in MEANS else None)
    return None


# -- poolings of poolings --


def _one_pool(graph: Graph, index: int) -> Rewrite | None:
    """Two poolings of a kind, whose windows leave nothing out between them, are one with larger windows."""
    node = graph.nodes[index]
    (between,) = taken(node)
    first = taken(graph.nodes[between])[0] if graph.nodes[between].target == "getitem" else between
    before = graph.nodes[first]
    used = [one for one in graph.users[first] if graph.users[one] or one in graph.outputs]  # not the places
    alone = len(used) == len(graph.users[between]) == 1 and between not in graph.outputs
    if before.target != node.target or not alone:
        return None
    try:
        (inner, inner_sides), (outer, outer_sides) = pool_settings(before), pool_settings(node)
    except NotSupported:
        return None
    if any((*inner.paddings, *outer.paddings)) or max(*inner.dilations, *outer.dilations) > 1:
        return None
    if any(len(one.arguments) > 5 or one.keywords for one in (before, node)):
        return None
    steps = list(zip(inner.strides, inner_sides, strict=True))
    if any(stride > side if node.target not in MEANS else stride != side for stride, side in steps):
        return None
    sides = tuple((wide - 1) * stride + side for wide, (stride, side) in zip(outer_sides, steps, strict=True))
    strides = tuple(a * b for a, b in zip(inner.strides, outer.strides, strict=True))
    if math.prod(sides) > _MOST_CELLS:
        return None

    def make(builder: Builder) -> Node:
        source, shape = builder.old(taken(before)[0]), partial(shape_at, graph, index)
        return builder.add(node.target, source, Items(sides), Items(strides), shape=shape)

    return Rewrite(index, POOLS_AS_ONE, make)


# -- diagonal matrices --


def _diagonal(graph: Graph, index: int) -> Rewrite | None:
    a, b = taken(graph.nodes[index])
    for place, one, other in ((0, a, b), (1, b, a)):
        inner = graph.nodes[one]
        if inner.target != "diag_embed" or len(inner.arguments) > 1 or inner.keywords or len(graph.shape(other)) != 2:
            continue
        (vector,) = taken(inner)

        def make(builder: Builder, place: int = place, vector: int = vector, other: int = other) -> Node:
            scale = builder.old(vector)
            if place == 0:
                scale = builder.add("unsqueeze", scale, -1)
            return builder.add("mul", builder.old(other), scale, overload="Tensor")

        return Rewrite(index, DIAGONAL, make)
    return None


# -- sums over columns --


@dataclass(frozen=True)
class _Step:
    """One operation between a product and the sum over its columns: with a number, or with one number per column."""

    node: int
    other: int | None  # the node with the columns' numbers; None: a number of the graph's own


def _column_sum(graph: Graph, index: int) -> Rewrite | None:
    """sum(x @ W + bias) over the columns is x @ sum(W) + sum(bias)."""
    node = graph.nodes[index]
    dims = node.arguments[1] if len(node.arguments) > 1 else None
    (inner,) = taken(node)
    shape = graph.shape(inner)
    if (
        not shape
        or not isinstance(dims, Items)
        or [int(str(one)) % len(shape) for one in dims.values] != [len(shape) - 1]
    ):
        return None
    steps, product = _steps_to_product(graph, inner)
    if product is None or len(shape) != 2:
        return None
    a, b = taken(graph.nodes[product])
    weights = graph.nodes[b]
    turned = weights.target in TURNS and graph.nodes[taken(weights)[0]].target == "input"
    if len(graph.shape(b)) != 2 or not (turned or weights.target == "input") or graph.dtype(b) != "float32":
        return None
    keep = len(node.arguments) > 2 and bool(node.arguments[2])

    def columns(probe: int) -> int:
        return shape_at(graph, product, probe)[1]

    def make(builder: Builder) -> Node:
        def summed(given: int, dim: int) -> Node:
            return builder.add("sum", builder.old(given), Items((dim,)), overload="dim_IntList")

        weight = summed(taken(weights)[0], 0) if turned else summed(b, 1)
        total = builder.add(PRODUCT, builder.old(a), weight)  # an element per row
        total = builder.add("unsqueeze", total, 1, overload="Tensor") if keep else total
        for step in steps:  # the same operation on the sum: factors stay as they are, terms are summed too
            target, number = graph.nodes[step.node].target, partial(graph.argument, step.node, 1)
            other: Given = number
            if step.other is not None:
                other = summed(step.other, 0)
            elif target not in ("mul", "div"):
                other = builder.add("mul", builder.add("scalar_tensor", columns), number, overload="Tensor")
            total = builder.add(target, total, other, overload="Tensor")
        return builder.add("div", total, columns, overload="Tensor") if node.target == "mean" else total

    return Rewrite(index, SUMS, make)


def _column_windows(graph: Graph, index: int) -> Rewrite | None:
    """The mean of every so many neighbouring columns of x @ W + bias is x @ mean(W) + mean(bias)."""
    node = graph.nodes[index]
    (inner,) = taken(node)
    shape, dims = graph.shape(inner), node.given(1, "dim")
    last = isinstance(dims, Items) and [int(str(one)) % len(shape) for one in dims.values] == [len(shape) - 1]
    if node.target != "mean" or not last or graph.nodes[inner].target not in RESHAPES:
        return None
    while graph.nodes[inner].target in RESHAPES:
        if len(graph.users[inner]) != 1 or inner in graph.outputs:
            return None
        (inner,) = taken(graph.nodes[inner])
    steps, product = _steps_to_product(graph, inner)
    if product is None or len(graph.shape(product)) != 2 or graph.shape(product)[1] != shape[-2] * shape[-1]:
        return None
    a, b = taken(graph.nodes[product])
    weights = graph.nodes[b]
    turned = weights.target in TURNS and graph.nodes[taken(weights)[0]].target == "input"
    if not turned or graph.dtype(b) != "float32":
        return None
    wide, given = shape[-1], taken(weights)[0]

    def means(builder: Builder, old: int) -> Node:
        """Of every so many neighbours along the first dimension."""

        def parted(probe: int) -> Items:
            columns = shape_at(graph, product, probe)[1] // wide
            return Items((columns, wide, *shape_at(graph, old, probe)[1:]))

        return builder.add("mean", builder.add("view", builder.old(old), parted), Items((1,)))

    def make(builder: Builder) -> Node:
        total = builder.add(PRODUCT, builder.old(a), builder.add("transpose", means(builder, given), 0, 1))
        for step in steps:  # the same operation on the means, for which a number stays what it is
            other = partial(graph.argument, step.node, 1) if step.other is None else means(builder, step.other)
            total = builder.add(graph.nodes[step.node].target, total, other, overload="Tensor")
        return builder.add("view", total, lambda probe: Items(shape_at(graph, index, probe)))

    return Rewrite(index, WINDOWS, make)


def _steps_to_product(graph: Graph, index: int) -> tuple[list[_Step], int | None]:
    """The operations from a product to a node, each used by the next alone; None where there is no such way."""
    steps: list[_Step] = []
    while graph.nodes[index].target != PRODUCT:
        node = graph.nodes[index]
        nodes = taken(node)
        first = node.arguments[0] if node.arguments else None
        if node.target not in _NUMBERS or not isinstance(first, Node) or len(node.arguments) != 2 or node.keywords:
            return [], None
        if index in graph.outputs or len(graph.users[index]) != 1:
            return [], None
        if len(nodes) == 1:
            steps.insert(0, _Step(index, None))
        elif node.target in ("add", "sub") and len(graph.shape(nodes[1])) == 1 and graph.is_given(nodes[1]):
            steps.insert(0, _Step(index, nodes[1]))
        else:
            return [], None
        index = first.index
    alone = len(graph.users[index]) == 1 and index not in graph.outputs
    return (steps, index) if alone else ([], None)
