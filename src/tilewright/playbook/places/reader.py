"""Elements of results followed back to the inputs: which places each reads, and what is computed from them.

The graph is read from its end: the value of an operation at an index is a value of its operands at theirs. Views only
change the index, so they cost nothing; what is joined becomes a choice between reads, each made where it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tilewright.playbook.errors import NotSupported
from tilewright.playbook.families import TracedTask
from tilewright.playbook.lowering import Item, Lowering, kind_of
from tilewright.playbook.operations import POINTWISE_RULES
from tilewright.playbook.places.indices import Condition, Index, constant, flat_place
from tilewright.playbook.places.sizes import Size, SizeBook
from tilewright.playbook.row_program import LaunchNumber, Load, NumberKind
from tilewright.playbook.tracing import Items, Node, TracedNode
from tilewright.records import DType

Places = tuple[Index, ...]


@dataclass(frozen=True)
class Read:
    """An element of an input: its place, counted from the first, and the conditions under which it is there."""

    tensor: str
    dtype: DType
    place: Index
    conditions: tuple[Condition, ...]


@dataclass(frozen=True)
class Position:
    """A place itself, as a number to compute with."""

    place: Index


@dataclass(frozen=True)
class Whole:
    """The result of an operation that a family computes as a whole, such as a scan, at a place of it."""

    node: int
    places: Places
    conditions: tuple[Condition, ...]
    result: int = 0  # of an operation with several


Leaf = Read | Position | Whole
PlaceRule = Callable[["PlaceReader", int, TracedNode, Places], int]


class PlaceReader(Lowering):
    """Values by node and place. `leaves` are what they are made of, by the names that loads have."""

    def __init__(self, traced: TracedTask, rules: dict[str, PlaceRule], whole: frozenset[str] = frozenset()) -> None:
        for one in traced.task.tensors:
            if one.in_place and not one.optional:
                raise NotSupported(
                    f"the playbook moves elements to new tensors only, and {one.name} is changed in place"
                )
        super().__init__(traced.task, traced.traces, traced.probes)
        self.traced = traced
        self.nodes = traced.traces[0].nodes
        self.book = SizeBook(traced)
        self.leaves: dict[str, Leaf] = {}
        self._rules = rules
        self._whole = whole
        self._at: Places = ()
        self._node = 0
        self._conditions: tuple[Condition, ...] = ()
        self._found: dict[tuple[int, Places, tuple[Condition, ...]], int] = {}
        self._tensors = {one.name: one for one in traced.task.tensors}

    # -- values --

    def value_at(self, index: int, places: Places) -> int:
        """The number of the value that a node has at the place."""
        key = (index, places, self._conditions)
        if key not in self._found:
            before = self._place, self._node, self._at
            self._place, self._node, self._at = index, index, places
            self._found[key] = self._made(index, self.nodes[index], places)
            self._place, self._node, self._at = before
        return self._found[key]

    def _made(self, index: int, node: TracedNode, places: Places) -> int:
        if node.target in self._whole:
            if not places:
                raise NotSupported(f"the playbook writes {node.target} along a dimension, and here it is of one number")
            return self.leaf("running", Whole(index, places, self._conditions), kind_of(node.result.dtype))
        if node.target in self._rules:
            return self._rules[node.target](self, index, node, places)
        if node.target not in POINTWISE_RULES:
            raise NotSupported(f"the playbook does not support the operation {node.target.strip('_')} here")
        made = POINTWISE_RULES[node.target](self, node)
        return (made[0] if isinstance(made, tuple) else made).value  # `getitem` takes the first result alone

    def argument(self, node: TracedNode, position: int, places: Places, keyword: str = "") -> int:
        """The value of an operand that is a tensor, at a place of its own."""
        return self.value_at(self.source(node, position, keyword), places)

    def source(self, node: TracedNode, position: int = 0, keyword: str = "") -> int:
        """The number of the node that an operand comes from."""
        given = self.given(node, position, keyword)
        if not isinstance(given, Node):
            raise NotSupported(f"the playbook does not understand what {node.target} is given")
        return given.index

    def item(self, node: TracedNode, position: int, keyword: str = "") -> Item:
        """For operations that work on elements: the operand's element that meets this one."""
        given = self.given(node, position, keyword)
        if not isinstance(given, Node):
            return super().item(node, position, keyword)
        value = self.value_at(given.index, self._broadcast(self.nodes[given.index].result.shape, self._at))
        return Item(value, (), ())

    def _broadcast(self, shape: tuple[int, ...], places: Places) -> Places:
        own = places[len(places) - len(shape) :]
        zero = constant(self.book.number(0))
        return tuple(zero if size == 1 else place for size, place in zip(shape, own, strict=True))

    def summed_kind(self, node: TracedNode) -> NumberKind:
        """Of what is summed: truths are counted."""
        kind = kind_of(node.result.dtype)
        return NumberKind.INT if kind is NumberKind.BOOL else kind

    def leaf(self, wanted: str, leaf: Leaf, kind: NumberKind) -> int:
        for name, known in self.leaves.items():
            if known == leaf:
                return self.add(Load(name), kind)
        number = sum(name.rstrip("0123456789") == f"{wanted}_" or name == wanted for name in self.leaves)
        name = f"{wanted}_{number + 1}" if number else wanted
        self.leaves[name] = leaf
        return self.add(Load(name), kind)

    def position(self, place: Index) -> int:
        """A place as a whole number."""
        if not place.terms:
            return self.size(place.constant)
        return self.leaf("place", Position(place), NumberKind.INT)

    def size(self, size: Size) -> int:
        if size.literal is not None:
            return self.constant(size.literal, NumberKind.INT)
        plain = "_".join(part for part in "".join(c if c.isalnum() else " " for c in size.text).split())
        return self.add(LaunchNumber(f"size_{plain}"[:40], size.text), NumberKind.INT)

    def read(self, name: str, places: Places) -> int:
        """An element of an input."""
        one = self._tensors[name]
        flat = flat_place(places, self.input_sizes(name), self.book.number(1))
        kinds = {True: NumberKind.FLOAT, False: NumberKind.INT}
        kind = NumberKind.BOOL if one.dtype is DType.BOOL else kinds[one.dtype.is_float]
        return self.leaf(f"{name}_at", Read(name, one.dtype, flat, self._conditions), kind)

    def input_sizes(self, name: str) -> tuple[Size, ...]:
        place = next(
            index for index, node in enumerate(self.nodes) if node.target == "input" and node.arguments[0] == name
        )
        return self.shape(place)

    @contextmanager
    def under(self, condition: Condition) -> Iterator[None]:
        """What is read within is there only where the condition holds."""
        before = self._conditions
        if not condition.holds_always and condition not in before:
            self._conditions = (*before, condition)
        yield
        self._conditions = before

    def choice(self, condition: Condition, inside: Callable[[], int], outside: Callable[[], int]) -> int:
        """One value where `low <= index < high`, another elsewhere; the condition has one bound."""
        if condition.holds_always:
            return inside()
        with self.under(condition):
            first = inside()
        opposite = Condition(condition.index, condition.high, condition.low)
        with self.under(opposite):
            second = outside()
        place = self.position(condition.index)
        if condition.high is not None:
            test = self.point("lt", place, self.size(condition.high))
        else:
            assert condition.low is not None
            test = self.point("ge", place, self.size(condition.low))
        return self.point("where", test, first, second)

    # -- sizes --

    def shape(self, index: int, result: int = 0) -> tuple[Size, ...]:
        """The sizes of a node's result, as the plan has them."""
        found = self.nodes[index].results[result]
        assert found is not None
        return tuple(self._seen(index, result, dim) for dim in range(len(found.shape)))

    def _seen(self, index: int, result: int, dim: int) -> Size:
        values = []
        for trace in self.traced.traces:
            one = trace.nodes[index].results[result]
            assert one is not None
            values.append(one.shape[dim])
        return self.book.of(tuple(values), self.nodes[index].target)

    def whole_number(self, index: int, position: int, keyword: str, default: int) -> tuple[int, ...]:
        """A whole number among the arguments, at every probe."""
        return tuple(
            int(one) if isinstance(one := self.given(trace.nodes[index], position, keyword), (int, float)) else default
            for trace in self.traced.traces
        )

    def whole_numbers(self, index: int, position: int, keyword: str) -> tuple[tuple[int, ...], ...]:
        """A list of them: for every probe the list."""
        found = []
        for trace in self.traced.traces:
            given = self.given(trace.nodes[index], position, keyword)
            listed = given.values if isinstance(given, Items) else () if given is None else (given,)
            found.append(tuple(int(one) for one in listed if isinstance(one, (int, float))))
        return tuple(found)

    def dimension(self, node: TracedNode, position: int, keyword: str, rank: int, default: int = 0) -> int:
        given = self.given(node, position, keyword)
        return (int(given) if isinstance(given, int) else default) % max(rank, 1)
