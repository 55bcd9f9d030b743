"""The graph of GEMMs and what is around them: reading it, and writing parts of it anew."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import zip_longest

from tilewright.playbook.errors import NoMatch
from tilewright.playbook.tracing import Items, Node, Trace, TracedArgument, TracedNode, TracedTensor
from tilewright.records.gpu import reached

PRODUCT = "product"
CONVOLUTION = "convolution"  # of two tensors and its settings; a bias is an addition of its own
TAP_MEANS = "tap_means"  # of a convolution's input: see `convolutions.means`
MADE = frozenset((PRODUCT, CONVOLUTION, TAP_MEANS))  # what has a stage of its own
PRODUCTS = frozenset(("mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot", "vdot"))
WITH_SUM = frozenset(("addmm", "baddbmm", "addmv"))
SUMMED = "summed"  # the overload of a product to which the same call adds something, before anything is rounded
FACTORS = {"alpha": 4, "beta": 3}  # by their places among the arguments
SAME = frozenset(("clone", "alias", "detach", "lift_fresh", "lift", "contiguous"))
TURNS = frozenset(("permute", "transpose", "t"))
RESHAPES = frozenset(("view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "_reshape", "flatten", "unflatten"))


@dataclass(frozen=True)
class Graph:
    """One graph, at every probe."""

    traces: tuple[Trace, ...]

    @property
    def nodes(self) -> tuple[TracedNode, ...]:
        return self.traces[0].nodes

    @property
    def outputs(self) -> tuple[int, ...]:
        return self.traces[0].outputs

    def sizes(self, index: int) -> tuple[tuple[int, ...], ...]:
        """The shape of a node's first result: for each dimension its size at every probe."""
        return tuple(zip(*(_result(trace.nodes[index]).shape for trace in self.traces), strict=True))

    def shape(self, index: int) -> tuple[int, ...]:
        return _result(self.nodes[index]).shape

    def dtype(self, index: int) -> str:
        return _result(self.nodes[index]).dtype

    def argument(self, index: int, place: int, probe: int) -> TracedArgument:
        """What a node takes in one of its places, at a probe."""
        return self.traces[probe].nodes[index].arguments[place]

    @cached_property
    def users(self) -> tuple[tuple[int, ...], ...]:
        found: list[list[int]] = [[] for _ in self.nodes]
        for index, node in enumerate(self.nodes):
            for one in dict.fromkeys(taken(node)):
                found[one].append(index)
        return tuple(tuple(one) for one in found)

    def ancestors(self, index: int, stop: Iterable[int] = ()) -> set[int]:
        """What a node is made from, itself included; nothing behind a node of `stop`."""
        ends = set(stop)
        return reached([index], lambda one: () if one in ends else taken(self.nodes[one]))

    def is_given(self, index: int) -> bool:
        """Whether a node is an input, however it is seen."""
        return all(self.nodes[one].target in {"input", *RESHAPES} for one in self.ancestors(index))

    def extracted(self, outputs: tuple[int, ...], inputs: Mapping[int, str]) -> Graph:
        """The part that makes the outputs from nodes that are given, by names that they have as inputs."""
        wanted = set[int]().union(*(self.ancestors(one, inputs) for one in outputs))
        numbers = {old: new for new, old in enumerate(sorted(wanted))}
        traces = []
        for trace in self.traces:
            nodes = []
            for old in sorted(wanted):
                node = trace.nodes[old]
                if old in inputs:
                    nodes.append(TracedNode("input", (inputs[old],), {}, (_result(node),)))
                else:
                    nodes.append(renumbered(node, numbers))
            traces.append(Trace(tuple(nodes), tuple(numbers[one] for one in outputs)))
        return Graph(tuple(traces))


def normalised(traces: tuple[Trace, ...]) -> Graph:
    """Sums, products and copies in one form: `addmm` is a product and an addition, and copies are what they copy."""
    factors = {index: _steady_factors(tuple(trace.nodes[index] for trace in traces)) for index in _sums(traces[0])}
    return Graph(tuple(_normalised(trace, factors) for trace in traces))


Factors = Mapping[int, Mapping[str, object]]  # of sums with products: what `alpha` and `beta` are where they stay so


def _sums(trace: Trace) -> list[int]:
    return [index for index, node in enumerate(trace.nodes) if node.target in WITH_SUM]


def _steady_factors(nodes: tuple[TracedNode, ...]) -> dict[str, object]:
    """A factor of 1 or 0 is no work, but only where it is that at every probe: one that is an argument may change."""
    found: dict[str, object] = {}
    for keyword in FACTORS:
        given = {_factor(node, keyword) for node in nodes}
        if len(given) == 1:
            found[keyword] = given.pop()
    return found


def _factor(node: TracedNode, keyword: str) -> TracedArgument:
    place = FACTORS[keyword]
    return node.arguments[place] if place < len(node.arguments) else node.keywords.get(keyword, 1)


def _normalised(trace: Trace, factors: Factors) -> Trace:
    made: list[TracedNode] = []
    numbers: dict[int, int] = {}

    def add(node: TracedNode) -> int:
        made.append(node)
        return len(made) - 1

    for index, node in enumerate(trace.nodes):
        if node.target in SAME and isinstance(node.arguments[0], Node):
            numbers[index] = numbers[node.arguments[0].index]
        elif node.target == CONVOLUTION:
            numbers[index] = _add_convolution(renumbered(node, numbers), add, made)
        elif node.target in PRODUCTS:
            numbers[index] = _add_product(renumbered(node, numbers), add, factors.get(index, {}))
        else:
            numbers[index] = add(renumbered(node, numbers))
    return Trace(tuple(made), tuple(numbers[one] for one in trace.outputs))


def _add_product(node: TracedNode, add: Callable[[TracedNode], int], steady: Mapping[str, object]) -> int:
    """A product as `product`; what is added to it, and what both are scaled by, as operations of their own."""
    given = node.arguments
    with_sum = node.target in WITH_SUM
    operands, overload = (given[1:3], SUMMED) if with_sum else (given[:2], "")
    made = add(TracedNode(PRODUCT, operands, {}, node.results, overload))
    if not with_sum:
        return made
    for keyword in FACTORS:
        if steady.get(keyword) == 1:
            continue
        if keyword == "beta" and steady.get(keyword) == 0:
            return made  # PyTorch does not look at what is added then
        scaled = Node(made) if keyword == "alpha" else given[0]
        result = add(TracedNode("mul", (scaled, _factor(node, keyword)), {}, node.results, "Tensor"))
        if keyword == "alpha":
            made = result
        else:
            given = (Node(result), *given[1:])
    return add(TracedNode("add", (Node(made), given[0]), {}, node.results, "Tensor"))


def _add_convolution(node: TracedNode, add: Callable[[TracedNode], int], made: list[TracedNode]) -> int:
    """A convolution without its bias; the bias as an addition of its own."""
    bias = node.arguments[2]
    result = add(replace(node, arguments=(*node.arguments[:2], None, *node.arguments[3:])))
    if not isinstance(bias, Node):
        return result
    given = _result(made[bias.index])
    shape = (*given.shape, *(1 for _ in _result(node).shape[2:]))
    seen = add(TracedNode("view", (bias, Items(shape)), {}, (TracedTensor(shape, given.dtype),)))
    return add(TracedNode("add", (Node(result), Node(seen)), {}, node.results, "Tensor"))


def taken(node: TracedNode) -> tuple[int, ...]:
    """The nodes that a node takes."""
    found: list[int] = []
    for one in (*node.arguments, *node.keywords.values()):
        items = one.values if isinstance(one, Items) else (one,)
        found += [item.index for item in items if isinstance(item, Node)]
    return tuple(found)


def renumbered(node: TracedNode, numbers: Mapping[int, int]) -> TracedNode:
    def of(one: TracedArgument) -> TracedArgument:
        if isinstance(one, Node):
            return Node(numbers[one.index])
        if isinstance(one, Items):
            return Items(tuple(Node(numbers[item.index]) if isinstance(item, Node) else item for item in one.values))
        return one

    arguments = tuple(of(one) for one in node.arguments)
    return replace(node, arguments=arguments, keywords={key: of(one) for key, one in node.keywords.items()})


def _result(node: TracedNode) -> TracedTensor:
    found = node.results[0]
    if found is None:
        raise NoMatch
    return found


# -- graphs with a node replaced by others, at every probe in step --


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
