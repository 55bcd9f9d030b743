"""The tensors of a task with products in it: those in memory, and the sizes of what lies between them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property

from tilewright.playbook.errors import NotSupported
from tilewright.playbook.families import TracedTask
from tilewright.playbook.gemms.convolution_program import Settings, pool_settings
from tilewright.playbook.gemms.graph import CONVOLUTION, MADE, RESHAPES, TURNS, Graph, taken
from tilewright.playbook.gemms.layouts import DTYPES, Tensor
from tilewright.playbook.gemms.program import Extent
from tilewright.playbook.lowering import Rule
from tilewright.playbook.operations import POINTWISE_RULES
from tilewright.playbook.places.sizes import SizeBook
from tilewright.playbook.pooling.program import POOLS
from tilewright.records import DType

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
            raise NotSupported("the playbook cannot tell a size on the way from the inputs' shapes") from problem
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
            raise NotSupported(f"the playbook does not store {self.graph.dtype(index)} between two stages")
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
