"""Graphs with a node replaced by others, at every probe in step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tilewright.playbook.products.graph import Graph, renumbered
from tilewright.playbook.tracing import Trace, TracedArgument, TracedNode, TracedTensor


@dataclass
class Builder:
    """The new graphs of all probes, made in step."""

    traces: list[list[TracedNode]]
    numbers: dict[int, int] = field(default_factory=dict)  # from old nodes to new ones

    def add(
        self,
        target: str,
        arguments: Callable[[int], tuple[TracedArgument, ...]],
        shape: Callable[[int], tuple[int, ...]],
        dtype: str,
        overload: str = "",
    ) -> int:
        """A node; what differs between the probes is asked for by the probe's number."""
        for probe, nodes in enumerate(self.traces):
            nodes.append(TracedNode(target, arguments(probe), {}, (TracedTensor(shape(probe), dtype),), overload))
        return len(self.traces[0]) - 1


@dataclass(frozen=True)
class Rewrite:
    place: int  # the node that is replaced
    note: str  # what is gone, in words; "" where it is the same work
    make: Callable[[Builder], int]


def rewritten(graph: Graph, rewrite: Rewrite) -> Graph:
    builder = Builder([[] for _ in graph.traces])
    for index in range(len(graph.nodes)):
        if index == rewrite.place:
            builder.numbers[index] = rewrite.make(builder)
            continue
        for nodes, trace in zip(builder.traces, graph.traces, strict=True):
            nodes.append(renumbered(trace.nodes[index], builder.numbers))
        builder.numbers[index] = len(builder.traces[0]) - 1
    outputs = tuple(builder.numbers[one] for one in graph.outputs)
    return Graph(tuple(Trace(tuple(nodes), outputs) for nodes in builder.traces))


def shape_at(graph: Graph, index: int, probe: int) -> tuple[int, ...]:
    result = graph.traces[probe].nodes[index].results[0]
    assert result is not None
    return result.shape
