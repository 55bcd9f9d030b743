"""Norms whose results are pooled or reduced: statistics are stored, and applied where the elements are read again.

A norm that is a result, or that only pointwise work follows, stays whole: its rows are read once and written once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tilewright.playbook.pooling.program import POOLS
from tilewright.playbook.products.graph import CONVOLUTION, Graph, taken
from tilewright.playbook.products.rewriting import Builder, Rewrite, shape_at
from tilewright.playbook.products.tensors import FINISH_RULES
from tilewright.playbook.reductions import REDUCTION_RULES
from tilewright.playbook.tracing import Items, Node, TracedArgument, TracedNode

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

    def write(self, builder: Builder) -> int:
        writer = _Writer(self.graph, self.index, builder)
        x = builder.numbers[taken(self.node)[0]]
        if self.node.target == GROUPS:
            x = writer.add("view", x, self._grouped, None)
        made = writer.with_statistic("sub", x, 1, self)
        made = writer.with_statistic("mul", made, 2, self)
        if self.node.target == GROUPS:
            made = writer.add("view", made, self._whole, None)
        return self._scaled(writer, made)

    def write_running(self, builder: Builder) -> int:
        writer = _Writer(self.graph, self.index, builder)
        x, mean, variance = (
            builder.numbers[one.index] for place in (0, 3, 4) if isinstance(one := self.node.arguments[place], Node)
        )
        traces = self.graph.traces  # eps may be an argument, and so another number in each
        mean, variance = (writer.add("view", one, self._by_channel, None) for one in (mean, variance))
        above = builder.add(
            "add",
            lambda probe: (Node(variance), traces[probe].nodes[self.index].arguments[6]),
            self._by_channel,
            "float32",
            "Scalar",
        )
        scale = builder.add("rsqrt", lambda _: (Node(above),), self._by_channel, "float32")
        made = writer.add("sub", x, self._whole, mean)
        return self._scaled(writer, writer.add("mul", made, self._whole, scale))

    def _scaled(self, writer: _Writer, made: int) -> int:
        """Times the weight and plus the bias, where it has them."""
        builder = writer.builder
        first = 2 if self.node.target == LAYER else 1
        for op, place in (("mul", first), ("add", first + 1)):
            given = self.node.arguments[place]
            if isinstance(given, Node):
                other = builder.numbers[given.index]
                if self.node.target != LAYER:
                    other = writer.add("view", other, self._by_channel, None)
                made = writer.add(op, made, self._whole, other)
        return made

    def _whole(self, probe: int) -> tuple[int, ...]:
        return shape_at(self.graph, self.index, probe)

    def _by_channel(self, probe: int) -> tuple[int, ...]:
        _, channels, *rest = self._whole(probe)
        return channels, *(1 for _ in rest)

    def _grouped(self, probe: int) -> tuple[int, ...]:
        groups = self.node.arguments[6]
        assert isinstance(groups, int)
        batch, channels, *rest = self._whole(probe)
        return batch, groups, channels // groups, *rest

    def elements(self, probe: int) -> tuple[int, ...]:
        """As the statistics go with them."""
        return self._grouped(probe) if self.node.target == GROUPS else self._whole(probe)

    def seen(self, probe: int, statistic: tuple[int, ...]) -> tuple[int, ...]:
        """A statistic with a dimension for each of the elements'."""
        if self.node.target == LAYER:
            return statistic
        if self.node.target == BATCH:
            return self._by_channel(probe)
        return *statistic, *(1 for _ in self._grouped(probe)[2:])


@dataclass(frozen=True)
class _Writer:
    graph: Graph
    norm: int
    builder: Builder

    def add(self, op: str, given: int, shape: Callable[[int], tuple[int, ...]], other: int | None) -> int:
        """A view, or an operation of two nodes."""

        def arguments(probe: int) -> tuple[TracedArgument, ...]:
            return Node(given), Items(shape(probe)) if other is None else Node(other)

        return self.builder.add(op, arguments, shape, "float32", "" if other is None else "Tensor")

    def with_statistic(self, op: str, given: int, number: int, norm: _Norm) -> int:
        """An operation of the elements and a statistic: the norm's result of that number."""

        def own(probe: int) -> tuple[int, ...]:
            result = self.graph.traces[probe].nodes[self.norm].results[number]
            assert result is not None
            return result.shape

        source = self.builder.numbers[self.norm]
        found = self.builder.add("getitem", lambda _: (Node(source), number), own, "float32")
        seen = self.add("view", found, lambda probe: norm.seen(probe, own(probe)), None)
        return self.add(op, given, norm.elements, seen)
