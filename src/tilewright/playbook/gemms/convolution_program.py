"""What a convolution is: windows, sizes and epilogue, and how its settings are read."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.playbook.errors import NoMatch
from tilewright.playbook.families import TracedTask
from tilewright.playbook.gemms.graph import CONVOLUTION, Graph, taken
from tilewright.playbook.gemms.program import Extent, Sums
from tilewright.playbook.row_program import ProgramOutput, RowProgram
from tilewright.playbook.tracing import Items, TracedArgument, TracedNode
from tilewright.records import DType, Precision


@dataclass(frozen=True)
class Window:
    """One dimension along which the window moves."""

    length: Extent  # of x
    results: Extent  # of y
    taps: int
    stride: int
    padding: int
    dilation: int

    def constants(self, axis: str, taps: str = "TAPS", padding: str = "PADDING") -> str:
        """What a kernel calls them."""
        named = {taps: self.taps, "STRIDE": self.stride, padding: self.padding, "DILATION": self.dilation}
        return f"constexpr int {', '.join(f'{name}_{axis.upper()} = {number}' for name, number in named.items())};"


@dataclass(frozen=True)
class Convolution(Sums):
    """One convolution with what is done to its sums.

    The rows of `epilogue` are batch * groups * filters, its columns the positions of the result: an input of it is
    whole (an element for every result), has an element for every row or for every channel of the result (one `RowPart`
    with the channels as modulus, not varying), or is a single number. A bias is such an input.

    Work over all channels of a position may follow in the same kernel: `across` has a row for every position, channels
    as its columns, and an input with the name of what `epilogue` would store. Its result is stored in place of that.
    """

    batch: Extent
    groups: int
    channels: Extent  # of x, in each group
    filters: Extent  # of y, in each group
    windows: tuple[Window, ...]
    x: str  # an input of the task, or a scratch tensor of the plan
    weight: str
    element: DType  # of both
    transposed: bool
    epilogue: RowProgram
    sum_name: str
    precision: Precision
    across: RowProgram | None = None

    @property
    def output(self) -> ProgramOutput:
        return (self.across or self.epilogue).outputs[0]

    @property
    def is_depthwise(self) -> bool:
        """Whether every result is made from one channel."""
        return self.channels.is_one

    def plain_padding(self, window: Window) -> int:
        """Zeros before the first element that a window sees: transposed, with stride 1, taps go backwards."""
        return (window.taps - 1) * window.dilation - window.padding if self.transposed else window.padding

    @property
    def taps(self) -> int:
        """Of the window in all its dimensions."""
        return math.prod(one.taps for one in self.windows)

    @property
    def is_exact(self) -> bool:
        """f32 operands that may not be rounded to TF32."""
        return self.element is DType.F32 and not self.precision.rounds_convolutions

    @property
    def multiplications(self) -> int:
        """At the task's own sizes."""
        ends = math.prod((one.length if self.transposed else one.results).size for one in self.windows)
        return self.batch.size * self.groups * self.channels.size * self.filters.size * self.taps * ends


# A convolution of a traced graph as a record: its settings, and the sizes of what it makes as plan expressions.


_STRIDE, _PADDING, _DILATION, _TRANSPOSED, _MORE, _GROUPS = range(3, 9)  # the places among the arguments

_POOL = ((2, "stride"), (3, "padding"))


@dataclass(frozen=True)
class Settings:
    """What a node says of its windows besides their taps."""

    strides: tuple[int, ...]
    paddings: tuple[int, ...]
    dilations: tuple[int, ...]
    more: tuple[int, ...]  # results behind the last, of a transposed one
    transposed: bool
    groups: int

    @classmethod
    def of(cls, nodes: tuple[TracedNode, ...], rank: int) -> Settings:
        """Those of a convolution over so many dimensions, which are the same at every probe."""
        if len({node.arguments[_STRIDE:] for node in nodes}) > 1:
            raise NoMatch
        node = nodes[0]
        groups = node.arguments[_GROUPS]
        assert isinstance(groups, int)
        return cls(
            _numbers(node.arguments[_STRIDE], rank),
            _numbers(node.arguments[_PADDING], rank),
            _numbers(node.arguments[_DILATION], rank),
            _numbers(node.arguments[_MORE], rank),
            bool(node.arguments[_TRANSPOSED]),
            groups,
        )

    def only(self, places: tuple[int, ...]) -> Settings:
        """The same over some of the dimensions."""
        strides, paddings, dilations, more = (
            tuple(one[place] for place in places) for one in (self.strides, self.paddings, self.dilations, self.more)
        )
        return Settings(strides, paddings, dilations, more, self.transposed, self.groups)

    @property
    def arguments(self) -> tuple[TracedArgument, ...]:
        """As a node has them."""
        strides, paddings, dilations, more = (
            Items(one) for one in (self.strides, self.paddings, self.dilations, self.more)
        )
        return strides, paddings, dilations, self.transposed, more, self.groups

    def windows(self, lengths: tuple[Extent, ...], taps: tuple[int, ...]) -> tuple[Window, ...]:
        """With the lengths of the input."""
        found = []
        for place, (length, wide) in enumerate(zip(lengths, taps, strict=True)):
            stride, padding, dilation = self.strides[place], self.paddings[place], self.dilations[place]
            reach = dilation * (wide - 1)
            if self.transposed:
                results = _scaled(length, stride, reach - 2 * padding + self.more[place] + 1 - stride)
            else:
                results = stepped(length, 2 * padding - reach, stride)
            found.append(Window(length, results, wide, stride, padding, dilation))
        return tuple(found)


def pool_settings(node: TracedNode) -> tuple[Settings, tuple[int, ...]]:
    """The same of a pooling, and the sizes of its windows."""
    assert isinstance(node.arguments[1], Items)
    rank, mean = len(node.arguments[1].values), node.target.startswith("avg")
    if node.given(4 if mean else 5, "ceil_mode"):
        raise NoMatch
    taps = _numbers(node.arguments[1], rank)
    strides, paddings = (_numbers(node.given(place, word) or Items(()), rank) for place, word in _POOL)
    dilations = () if mean else _numbers(node.given(4, "dilation") or Items(()), rank)
    ones, zeros = (1,) * rank, (0,) * rank
    return Settings(strides or taps, paddings or zeros, dilations or ones, zeros, False, 1), taps


def stepped(length: Extent, more: int, stride: int) -> Extent:
    """How often a window moves: (length + more - 1) / stride + 1, where `more` is what it may go beyond its first."""
    size = (length.size + more - 1) // stride + 1
    if length.expression.isdigit():
        return Extent(str(size), size)
    if stride == 1:
        return Extent(f"({length.expression}{_signed(more)})" if more else length.expression, size)
    inner = more - 1 + stride
    return Extent(f"(({length.expression}{_signed(inner)}) / {stride})", size)


def _scaled(length: Extent, stride: int, more: int) -> Extent:
    """length * stride + more."""
    size = length.size * stride + more
    if length.expression.isdigit():
        return Extent(str(size), size)
    if stride == 1:
        return Extent(f"({length.expression}{_signed(more)})" if more else length.expression, size)
    return Extent(f"({length.expression} * {stride}{_signed(more)})", size)


def _signed(number: int) -> str:
    return f" {'+' if number >= 0 else '-'} {abs(number)}" if number else ""


def part(extent: Extent, sizes: tuple[int, ...], groups: int) -> Extent:
    """One of as many equal parts of a size that takes these values at the probes."""
    if groups == 1:
        return extent
    if set(sizes) == {groups}:
        return Extent("1", 1)
    return Extent(f"{extent.expression} / {groups}", extent.size // groups)


def numbers(given: TracedArgument) -> tuple[int, ...]:
    """A list of whole numbers."""
    assert isinstance(given, Items)
    return tuple(one for one in given.values if isinstance(one, int))


def _numbers(given: TracedArgument, rank: int) -> tuple[int, ...]:
    found = numbers(given)
    return found if len(found) == rank else found * rank


def held_dimensions(traced: TracedTask) -> frozenset[str]:
    """The dimensions for whose own sizes kernels are written, of those that vary: taps of windows, and filters of which
    there are as many as groups."""
    found: set[str] = set()
    names = {one.name: one.dimensions for one in traced.task.tensors}
    graph = Graph(traced.traces)
    for place, node in enumerate(graph.nodes):
        if node.target != CONVOLUTION:
            continue
        weight = taken(node)[1]
        follows = len({trace.nodes[place].arguments[_GROUPS] for trace in traced.traces}) > 1
        for one in graph.ancestors(weight):
            rank = len(graph.nodes[one].result.shape) if graph.nodes[one].target == "input" else 0
            if rank == len(graph.shape(weight)):
                dimensions = names[str(graph.nodes[one].arguments[0])]
                found.update(dimensions if follows else dimensions[2:])
    return frozenset(one.name for one in traced.task.dimensions if one.varies and one.name in found)
