"""Graphs with a node replaced by others, at every probe in step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import zip_longest

from tilewright.playbook.gemms.graph import PRODUCT, Graph, renumbered
from tilewright.playbook.tracing import Items, Node, Trace, TracedArgument, TracedNode, TracedTensor

Shape = tuple[int, ...]
Given = TracedArgument | Callable[[int], TracedArgument]  # an argument; by the probe's number where they differ in it


@dataclass
class Builder:
    """The new graphs of all probes, made in step."""

    traces: list[list[TracedNode]]
    numbers: dict[int, int] = field(default_factory=dict)  # from old nodes to new ones

    def old(self, index: int) -> Node:
        """What stands for a node of the old graph."""
        return Node(self.numbers[index])

    def add(self, target: str, *given: Given, overload: str = "", shape: Callable[[int], Shape] | None = None) -> Node:
        """A node, of its first operand's dtype. Its shape follows from its operands, where it is not given."""
        for probe, nodes in enumerate(self.traces):
            arguments = tuple(one(probe) if callable(one) else one for one in given)
            operands = [nodes[one.index].result for one in arguments if isinstance(one, Node)]
            made = shape(probe) if shape else _made(target, [one.shape for one in operands], arguments)
            result = TracedTensor(made, operands[0].dtype if operands else "float32")
            nodes.append(TracedNode(target, arguments, {}, (result,), overload))
        return Node(len(self.traces[0]) - 1)


@dataclass(frozen=True)
class Rewrite:
    place: int  # the node that is replaced
    note: str  # what is gone, in words; "" where it is the same work
    make: Callable[[Builder], Node]


def rewritten(graph: Graph, *rewrites: Rewrite) -> Graph:
    builder = Builder([[] for _ in graph.traces])
    makers = {one.place: one.make for one in rewrites}
    for index in range(len(graph.nodes)):
        if index in makers:
            builder.numbers[index] = makers[index](builder).index
            continue
        for nodes, trace in zip(builder.traces, graph.traces, strict=True):
            nodes.append(renumbered(trace.nodes[index], builder.numbers))
        builder.numbers[index] = len(builder.traces[0]) - 1
    outputs = tuple(builder.numbers[one] for one in graph.outputs)
    return Graph(tuple(Trace(tuple(nodes), outputs) for nodes in builder.traces))


def shape_at(graph: Graph, index: int, probe: int) -> Shape:
    return graph.traces[probe].nodes[index].result.shape


def _made(target: str, shapes: list[Shape], arguments: tuple[TracedArgument, ...]) -> Shape:
    """The shape that an operation makes of these."""
    own = shapes[0] if shapes else ()
    lists = [one.values for one in arguments if isinstance(one, Items)]
    listed = tuple(one for one in (lists[0] if lists else ()) if isinstance(one, int))
    numbers = [one for one in arguments[1:] if isinstance(one, int)]
    if target == "view":
        return listed
    if target == "permute":
        return tuple(own[one] for one in listed)
    if target in ("sum", "mean", "amax"):
        return tuple(one for place, one in enumerate(own) if place not in listed)
    if target == "constant_pad_nd":
        pads = zip_longest(reversed(own), listed[::2], listed[1::2], fillvalue=0)
        return tuple(map(sum, pads))[::-1]
    if target == "slice":
        dim, first, end, step = numbers
        return *own[:dim], -(-(end - first) // step), *own[dim + 1 :]
    if target == "unsqueeze":
        return *own, 1
    if target == "transpose":
        return own[::-1]
    if target == PRODUCT:
        return *own[:-1], *shapes[1][1:]
    return tuple(max(sizes) for sizes in zip_longest(*(one[::-1] for one in shapes), fillvalue=1))[::-1]
