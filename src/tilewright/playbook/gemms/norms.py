"""Norms whose results are pooled or reduced: statistics are stored, and applied where the elements are read again.

A norm that is a result, or that only pointwise work follows, stays whole: its rows are read once and written once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from tilewright.playbook.gemms.graph import CONVOLUTION, Builder, Graph, Rewrite, shape_at, taken
from tilewright.playbook.gemms.tensors import FINISH_RULES
from tilewright.playbook.pooling.program import POOLS
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
