"""Tensors that stages of a file store and read, and the epilogue of a sum."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property

from tilewright.playbook.errors import NoMatch, NotSupported
from tilewright.playbook.families import TracedTask
from tilewright.playbook.gemms.convolution_program import Settings, pool_settings
from tilewright.playbook.gemms.graph import CONVOLUTION, MADE, RESHAPES, TURNS, Graph, taken
from tilewright.playbook.gemms.program import DTYPES, Extent, Group, Tensor, together
from tilewright.playbook.lowering import Lowering, Rule
from tilewright.playbook.operations import POINTWISE_RULES
from tilewright.playbook.places.program import out_lines, shape_needs
from tilewright.playbook.places.sizes import SizeBook
from tilewright.playbook.pooling.kernel import POOLS
from tilewright.playbook.row_program import (
    Load,
    ProgramInput,
    ProgramOutput,
    RowPart,
    RowProgram,
    arguments_of,
    renumbered,
)
from tilewright.records import DType
from tilewright.records.gpu import reached

FINISH_RULES: dict[str, Rule] = {name: rule for name, rule in POINTWISE_RULES.items() if name != "getitem"}
_EXPONENTIALS = frozenset({"_softmax", "_safe_softmax", "exp", "exp2", "expm1"})
_MOST_PARTS = 65  # of a dimension that a view has split


@dataclass
class TensorTable:
    """What is known while a graph is read: which of its nodes lie in memory, and under which name."""

    traced: TracedTask
    graph: Graph
    tensors: dict[int, Tensor] = field(default_factory=dict)  # in memory, by node
    scratch: list[Tensor] = field(default_factory=list)  # those that are neither inputs nor results
    made_sizes: dict[tuple[int, ...], Extent] = field(default_factory=dict)  # of windows, by their values at the probes

    def __post_init__(self) -> None:
        self.task = self.traced.task
        for index, node in enumerate(self.graph.nodes):
            if node.target == "input":
                self.tensors[index] = self.given(str(node.arguments[0]))
        for index in range(len(self.graph.nodes)):
            self._made(index)

    def _made(self, index: int) -> None:
        """The sizes that windows make of others."""
        nodes = tuple(trace.nodes[index] for trace in self.graph.traces)
        given = taken(nodes[0])
        try:
            if nodes[0].target == CONVOLUTION:
                taps = self.graph.shape(given[1])[2:]
                settings = Settings.of(nodes, len(taps))
            elif nodes[0].target in POOLS:
                settings, taps = pool_settings(nodes[0])
            else:
                return
            lengths = tuple(self.extent(one) for one in self.graph.sizes(given[0])[-len(taps) :])
        except NotSupported:
            return  # whoever asks for the size hears of it
        for one, window in zip(self.graph.sizes(index)[-len(taps) :], settings.windows(lengths, taps), strict=True):
            self.made_sizes.setdefault(one, window.results)

    def given(self, name: str) -> Tensor:
        one = next(one for one in self.task.tensors if one.name == name)
        dimensions = {dimension.name: dimension for dimension in self.task.dimensions}
        extents = tuple(
            Extent("1", 1)
            if self.task.sizes[named] == 1 and not dimensions[named].varies
            else Extent(f"{name}.shape[{place}]", self.task.sizes[named])
            for place, named in enumerate(one.dimensions)
        )
        return Tensor(name, one.dtype, extents)

    def extent(self, sizes: tuple[int, ...]) -> Extent:
        """The size that takes these values at the probes."""
        if set(sizes) == {1}:
            return Extent("1", 1)
        known: dict[tuple[int, ...], Extent] = {}
        for index, node in enumerate(self.graph.nodes):
            if node.target == "input":
                for one, extent in zip(self.graph.sizes(index), self.tensors[index].extents, strict=True):
                    known.setdefault(one, extent)
        for made, extent in self.made_sizes.items():
            known.setdefault(made, extent)
        for count in (1, 2, 3):
            for chosen in itertools.combinations(known, count):
                if tuple(math.prod(column) for column in zip(*chosen, strict=True)) == sizes:
                    extents = [known[one] for one in chosen]
                    return Extent(" * ".join(e.expression for e in extents), math.prod(e.size for e in extents))
        for part in range(2, _MOST_PARTS):
            for whole, extent in known.items():
                if whole == tuple(one * part for one in sizes):
                    return Extent(f"{extent.expression} / {part}", extent.size // part)
        if len(set(sizes)) == 1:
            return Extent(str(sizes[0]), sizes[0])
        try:
            found = self.book.of(sizes, "what lies between two stages")
        except NotSupported as problem:
            raise NoMatch from problem
        return Extent(f"({found.text})", found.own)

    @cached_property
    def book(self) -> SizeBook:
        return SizeBook(self.traced)

    def name_of(self, cut: int, more: Collection[str] = ()) -> str:
        if cut in self.graph.outputs:
            return self.task.outputs[self.graph.outputs.index(cut)].name
        known = (*self.task.inputs, *self.task.outputs, *self.scratch)
        taken_names = {*(one.name for one in known), *more}
        wanted = (f"hidden{number or ''}" for number in itertools.count())
        return next(one for one in wanted if one not in taken_names)

    def tensor_of(self, index: int, name: str) -> Tensor:
        dtype = DTYPES.get(self.graph.dtype(index))
        own = next((one.dtype for one in self.task.outputs if one.name == name), dtype)
        if own is None:
            raise NoMatch
        if own in (DType.F16, DType.BF16) and index not in self.graph.outputs and self._is_exponent(index):
            own = DType.F32
        return Tensor(name, own, tuple(self.extent(one) for one in self.graph.sizes(index)))

    def _is_exponent(self, index: int) -> bool:
        """Whether exponentials are taken of a node before the next product, which does not take the node itself: in 16
        bits, a score of 30 is off by up to 6 % of its weight."""
        seen_as = [index, *(one for one in self.graph.users[index] if self.graph.nodes[one].target in TURNS | RESHAPES)]
        if any(self.graph.nodes[one].target in MADE for place in seen_as for one in self.graph.users[place]):
            return False
        reached, found = set[int](), [index]
        while found:
            users = {one for one in self.graph.users[found.pop()] if self.graph.nodes[one].target not in MADE}
            if any(self.graph.nodes[one].target in _EXPONENTIALS for one in users):
                return True
            found += users - reached
            reached |= users
        return False

    def keep(self, index: int, tensor: Tensor) -> None:
        self.tensors[index] = tensor
        if tensor.name not in {one.name for one in self.task.outputs}:
            self.scratch.append(tensor)

    def is_at_hand(self, index: int) -> bool:
        """Whether a node can be had from tensors in memory without a product or a reduction."""
        ancestors = self.graph.ancestors(index, self.tensors)
        return all(one in self.tensors or self.graph.nodes[one].target in FINISH_RULES for one in ancestors)


# -- what is done with the sums of a product before they are stored, as a pointwise program --


SUM = "sum_of_products"  # the input of an epilogue that stands for the sum


def epilogue_program(table: TensorTable, start: int, cut: int, name: str, columns: int, by_channel: bool) -> RowProgram:
    """From the sums at one node to what is stored at another, under a name. `columns`: how many of the last dimensions
    are that; `by_channel`: whether a tensor may have an element for each of the last rows' dimension."""
    before = table.graph.ancestors(cut, {start, *table.tensors})
    inputs = {one: table.tensors[one].name for one in table.tensors if one in before}
    graph = table.graph.extracted((cut,), {**inputs, start: SUM})
    low = Lowering(table.task, graph.traces, table.traced.probes)
    (item,) = low.run(FINISH_RULES)
    axes = low.input_axes[SUM]
    rows, cols = low.axes.atoms(axes[: len(axes) - columns]), low.axes.atoms(axes[len(axes) - columns :])
    live = sorted(reached([item.value], lambda index: arguments_of(low.values[index])))
    numbers = {old: new for new, old in enumerate(live)}
    values = tuple(renumbered(low.values[old], numbers.__getitem__) for old in live)
    loaded = {value.input for value in values if isinstance(value, Load)}
    tensors = {table.tensors[one].name: table.tensors[one] for one in inputs}
    channels = low.axes.atoms(axes[len(axes) - columns - 1 : len(axes) - columns]) if by_channel else ()
    sizes = [table.extent(one) for one in table.graph.sizes(start)]
    lie = _Rows(rows, cols, channels, sizes[-columns - 1].expression if by_channel else "")
    given = [lie.input(tensors[one], low.axes.atoms(low.input_axes[one])) for one in tensors if one in loaded]
    if SUM not in loaded:
        raise NoMatch
    down, along = together(sizes[: len(sizes) - columns]), together(sizes[len(sizes) - columns :])
    return RowProgram(
        name=table.task.name,
        inputs=(ProgramInput(SUM, DType.F32, True, None), *given),
        outputs=(ProgramOutput(name, table.tensor_of(cut, name).dtype, numbers[item.value], True),),
        values=values,
        kinds=tuple(low.kinds[old] for old in live),
        out_lines=out_lines(table.traced),
        shape_needs=shape_needs(table.traced),
        rows=down.expression,
        cols=along.expression,
        task_rows=down.size,
        task_cols=along.size,
    )


def columns_of(table: TensorTable, index: int, n: Extent) -> int:
    """How many of the last dimensions are n."""
    if n.is_one:
        return 0
    sizes = [table.extent(one) for one in table.graph.sizes(index)]
    for count in range(1, len(sizes) + 1):
        if together(sizes[len(sizes) - count :]).size == n.size:
            return count
    raise NoMatch


@dataclass(frozen=True)
class _Rows:
    """The dimensions of the sums: those of rows and of columns, and the last of the rows' that may stand alone."""

    rows: Group
    cols: Group
    channels: Group
    channel_count: str

    def input(self, tensor: Tensor, axes: Group) -> ProgramInput:
        """How a tensor goes with the sums: one element for each, for each column, row or channel, or a single one."""
        lies: dict[Group, tuple[bool, tuple[RowPart, ...] | None]] = {(): (False, ())}
        if not self.channel_count:
            lies.setdefault(self.cols, (True, ()))
        lies.setdefault(self.rows, (False, None))
        if self.channel_count:
            lies.setdefault(self.channels, (False, (RowPart("", self.channel_count),)))
        lies.setdefault(self.rows + self.cols, (True, None))
        if axes not in lies:
            raise NoMatch
        varies, parts = lies[axes]
        return ProgramInput(tensor.name, tensor.dtype, varies, parts)
