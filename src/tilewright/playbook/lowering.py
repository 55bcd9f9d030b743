"""From ATen's graph to a row program: the machinery. What each operation means is in `operations` and `reductions`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from tilewright.playbook.axes import ONE, Axes, AxisTable, Shapes
from tilewright.playbook.errors import NotSupported
from tilewright.playbook.row_program import (
    Constant,
    Count,
    Load,
    NumberKind,
    Pointwise,
    Reduce,
    Reduction,
    Value,
)
from tilewright.playbook.tracing import Items, Node, ProbeSet, Scalar, Trace, TracedArgument, TracedNode, explain
from tilewright.records import Task

KIND_OF_DTYPE = {
    **dict.fromkeys(("float32", "float16", "bfloat16"), NumberKind.FLOAT),
    **dict.fromkeys(("int64", "int32", "int16", "int8", "uint8"), NumberKind.INT),
    "bool": NumberKind.BOOL,
}
NARROW = {"int32": "to_i32", "int16": "to_i16", "int8": "to_i8", "uint8": "to_u8"}

_COMPARES = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))
_LOGICAL = frozenset(("and", "or", "xor", "not", "isnan", "isinf"))
_ORDER = (NumberKind.BOOL, NumberKind.INT, NumberKind.FLOAT)


@dataclass(frozen=True)
class Item:
    """A tensor of the graph: its value, its dimensions, its sizes in the first trace."""

    value: int
    axes: Axes
    sizes: tuple[int, ...]


Lowered = Item | tuple[Item, ...]
Rule = Callable[["Lowering", TracedNode], Lowered]


class Lowering:
    """One walk over a graph. `values`, `kinds`, `seen` and `reduced` are what it leaves."""

    def __init__(self, task: Task, traces: tuple[Trace, ...], probes: ProbeSet) -> None:
        self.axes = AxisTable()
        self.values: list[Value] = []
        self.kinds: list[NumberKind] = []
        self.items: dict[int, Lowered] = {}  # by node
        self.seen: list[Item] = []  # every tensor that came up
        self.reduced: dict[int, Axes] = {}  # of every reduction
        self.input_axes: dict[str, Axes] = {}
        self._numbers: dict[tuple[Value, NumberKind], int] = {}
        self._traces = traces
        self._probes = probes
        self._sizes = _size_expressions(task)
        self._place = 0

    def run(self, rules: dict[str, Rule]) -> tuple[Item, ...]:
        """Lower every node the outputs need; the outputs' items."""
        first = self._traces[0]
        wanted = needed(first)
        unknown = dict.fromkeys(first.nodes[index].target for index in sorted(wanted))
        names = [one for one in unknown if one not in rules and one.removesuffix("_") not in rules]
        if names:
            raise NotSupported(f"rows are not made of {', '.join(names[:4])}")
        for index, node in enumerate(first.nodes):
            if index not in wanted:
                continue
            self._place = index
            name = node.target if node.target in rules else node.target.removesuffix("_")
            lowered = rules[name](self, node)
            self.items[index] = lowered
            changed = node.arguments[0] if node.arguments else None
            if name != node.target and isinstance(changed, Node):
                self.items[changed.index] = (
                    lowered  # an operation in place: what it changed is seen changed from here on
                )
            self.seen += lowered if isinstance(lowered, tuple) else (lowered,)
        return tuple(self._item_of(index) for index in first.outputs)

    # -- values --

    def add(self, value: Value, kind: NumberKind) -> int:
        """The number of a value; equal values are one."""
        key = (value, kind)
        if key not in self._numbers:
            self._numbers[key] = len(self.values)
            self.values.append(value)
            self.kinds.append(kind)
        return self._numbers[key]

    def constant(self, value: int | float | bool, kind: NumberKind = NumberKind.FLOAT) -> int:
        if kind is NumberKind.FLOAT:
            return self.add(Constant(float(value)), kind)
        return self.add(Constant(int(value) if kind is NumberKind.INT else bool(value)), kind)

    def convert(self, value: int, kind: NumberKind) -> int:
        if self.kinds[value] is kind:
            return value
        held = self.values[value]
        if isinstance(held, Constant):
            return self.constant(held.value, kind)
        return self.add(Pointwise(f"to_{kind.value}", (value,)), kind)

    def point(self, op: str, *arguments: int) -> int:
        """A pointwise operation on values, brought to one kind first."""
        kind = max((self.kinds[one] for one in arguments), key=_ORDER.index)
        if op in _COMPARES:
            kind = max(kind, NumberKind.INT, key=_ORDER.index)
            return self.add(Pointwise(op, tuple(self.convert(one, kind) for one in arguments)), NumberKind.BOOL)
        if op in _LOGICAL:
            wanted = NumberKind.FLOAT if op.startswith("is") else NumberKind.BOOL
            return self.add(Pointwise(op, tuple(self.convert(one, wanted) for one in arguments)), NumberKind.BOOL)
        if op == "where":
            kind = max((self.kinds[one] for one in arguments[1:]), key=_ORDER.index)
            condition = self.convert(arguments[0], NumberKind.BOOL)
            return self.add(Pointwise(op, (condition, *(self.convert(one, kind) for one in arguments[1:]))), kind)
        if op == "mul" and self.constant(1.0) in arguments:
            rest = [one for one in arguments if one != self.constant(1.0)]
            return self.convert(rest[0] if rest else arguments[0], kind)
        if op == "mul" and len(arguments) == 2:
            for one, other in (arguments, arguments[::-1]):
                if self.values[one] == Pointwise("tanh", (self._softplus_of(other),)):
                    return self.point("mish", other)
        divergence = self._divergence(*arguments) if op == "sub" and len(arguments) == 2 else None
        if divergence is not None:
            return self.add(Pointwise("divergence", divergence), NumberKind.FLOAT)
        return self.add(Pointwise(op, tuple(self.convert(one, kind) for one in arguments)), kind)

    def _softplus_of(self, value: int) -> int:
        """The number that the plain softplus of a value has; -1 where it never came up."""
        return self._point_made("softplus", value, self.constant(1.0), self.constant(20.0))

    def _point_made(self, op: str, *arguments: int, kind: NumberKind = NumberKind.FLOAT) -> int:
        """The number that a pointwise operation has; -1 where it never came up."""
        return self._numbers.get((Pointwise(op, arguments), kind), -1)

    def _divergence(self, first: int, second: int) -> tuple[int, int] | None:
        """t and p of xlogy(t, t) - t log p, which a KL divergence adds up; None for any other difference."""
        product = self.values[second]
        if not isinstance(product, Pointwise) or product.op != "mul":
            return None
        for t, other in (product.arguments, product.arguments[::-1]):
            logarithm = self.values[other]
            if isinstance(logarithm, Pointwise) and logarithm.op == "log" and self._is_own_product(first, t):
                return t, logarithm.arguments[0]
        return None

    def _is_own_product(self, value: int, t: int) -> bool:
        """Whether this is t log t as PyTorch writes xlogy: 0 where t is 0, and NaN where it is NaN."""
        chosen = self.values[value]
        if not isinstance(chosen, Pointwise) or chosen.op != "where":
            return False
        is_zero = self._point_made("eq", t, self.constant(0.0), kind=NumberKind.BOOL)
        product = self._point_made("mul", t, self._point_made("log", t))
        nan = self.values[chosen.arguments[1]]
        return (
            chosen.arguments[0] == self._point_made("isnan", t, kind=NumberKind.BOOL)
            and isinstance(nan, Constant)
            and nan.value != nan.value
            and chosen.arguments[2] == self._point_made("where", is_zero, self.constant(0.0), product)
        )

    def float_point(self, op: str, *arguments: int) -> int:
        return self.point(op, *(self.convert(one, NumberKind.FLOAT) for one in arguments))

    # -- tensors --

    def shapes(self, index: int | None = None) -> Shapes:
        """The shape of a node's result at every probe; without an index, of the node that is being lowered."""
        place = self._place if index is None else index
        return tuple(trace.nodes[place].result.shape for trace in self._traces)

    def given_shapes(self, node: TracedNode) -> Shapes:
        """The same of the first tensor that the node was given."""
        given = node.arguments[0]
        assert isinstance(given, Node)
        return self.shapes(given.index)

    def given_dtype(self, node: TracedNode) -> str:
        """Of the first tensor that the node was given, in PyTorch's words."""
        given = node.arguments[0]
        result = self._traces[0].nodes[given.index].results[0] if isinstance(given, Node) else None
        return "" if result is None else result.dtype

    def is_only(self, moved: Collection[str]) -> bool:
        """Whether the node that is being lowered is given to nodes of these kinds alone, and so is what they make:
        all of its own dtype, for what is joined with wider numbers becomes as wide."""
        nodes = self._traces[0].nodes
        found, dtype = {self._place}, nodes[self._place].result.dtype
        for index, node in enumerate(nodes):
            if _taken(node) & found:
                if node.target not in moved or any(one is not None and one.dtype != dtype for one in node.results):
                    return False
                found.add(index)
        return True

    def load(self, name: str, kind: NumberKind, sizes: tuple[int, ...]) -> Item:
        self.input_axes[name] = self.axes.new(self.shapes())
        return Item(self.add(Load(name), kind), self.input_axes[name], sizes)

    def together(self, value: int, items: list[Item], node: TracedNode) -> Item:
        """A pointwise result over the dimensions of all operands, in the kind the graph says it has."""
        axes = self.axes.broadcast([item.axes for item in items])
        result = node.result
        value = self.convert(value, kind_of(result.dtype))
        if result.dtype in NARROW and isinstance(self.values[value], Pointwise):
            value = self.add(Pointwise(NARROW[result.dtype], (value,)), NumberKind.INT)
        return Item(value, axes, result.shape)

    def reduce(self, op: Reduction, item: Item, dims: tuple[int, ...], keep: bool, value: int | None = None) -> Item:
        """A reduction of the item, or of `value` over its dimensions; over size 1 it is the value itself."""
        rank = len(item.sizes)
        gone = {dim % rank for dim in dims} if dims and rank else set(range(rank))
        over = tuple(item.axes[dim] for dim in sorted(gone) if item.axes[dim] != ONE)
        argument = item.value if value is None else value
        made = argument
        if over:
            kind = NumberKind.INT if op.finds_place else self.kinds[argument]
            made = self.add(Reduce(op, argument), kind)
            self.reduced[made] = over
        elif op.finds_place:
            made = self.constant(0, NumberKind.INT)
        dims_left = range(rank) if keep else [dim for dim in range(rank) if dim not in gone]
        axes = tuple(ONE if dim in gone else item.axes[dim] for dim in dims_left)
        sizes = tuple(1 if dim in gone else item.sizes[dim] for dim in dims_left)
        made_item = Item(made, axes, sizes)
        self.seen.append(made_item)
        return made_item

    def count(self, item: Item, dims: tuple[int, ...]) -> int:
        """How many elements a reduction over these dimensions takes together."""
        rank = len(item.sizes)
        gone = {dim % rank for dim in dims} if dims and rank else set(range(rank))
        if all(item.axes[dim] == ONE for dim in gone):
            return self.constant(1.0)
        over = tuple(item.axes[dim] for dim in sorted(gone) if item.axes[dim] != ONE)
        return self.convert(self.add(Count(over), NumberKind.INT), NumberKind.FLOAT)

    # -- what a node was given --

    def given(self, node: TracedNode, position: int, keyword: str = "") -> TracedArgument:
        """An argument as it stands in the first trace; None where it is absent."""
        return node.given(position, keyword)

    def item(self, node: TracedNode, position: int, keyword: str = "") -> Item:
        """An argument as a tensor; a number becomes one without dimensions."""
        given = self.given(node, position, keyword)
        if isinstance(given, Node):
            return self._item_of(given.index)
        return Item(self._number(node, position, keyword), (), ())

    def number(self, node: TracedNode, position: int, keyword: str, default: float) -> int:
        """An argument that is a plain number, as a value."""
        if self.given(node, position, keyword) is None:
            return self.constant(default)
        return self.item(node, position, keyword).value

    def dims(self, node: TracedNode, position: int, keyword: str = "dim") -> tuple[int, ...]:
        given = self.given(node, position, keyword)
        if given is None:
            return ()
        listed = given.values if isinstance(given, Items) else (given,)
        return tuple(int(one) for one in listed if isinstance(one, int))

    def flag(self, node: TracedNode, position: int, keyword: str, default: bool = False) -> bool:
        given = self.given(node, position, keyword)
        return default if given is None else bool(given)

    def fixed_number(self, node: TracedNode, position: int, keyword: str = "") -> float | None:
        """An argument that is one and the same plain number at every probe; None for any other."""
        given = [self.given(trace.nodes[self._place], position, keyword) for trace in self._traces]
        numbers = {float(one) for one in given if isinstance(one, (int, float))}
        plain = len(numbers) == 1 and all(isinstance(one, (int, float)) for one in given)
        return numbers.pop() if plain else None

    def _item_of(self, index: int) -> Item:
        found = self.items[index]
        if isinstance(found, tuple):
            raise NotSupported(f"the playbook does not support results of {self._traces[0].nodes[index].target}")
        return found

    def _number(self, node: TracedNode, position: int, keyword: str) -> int:
        def of(trace: Trace) -> Scalar:
            given = self.given(trace.nodes[self._place], position, keyword)
            assert not isinstance(given, (Node, Items))
            return given

        values = tuple(of(trace) for trace in self._traces)
        numbers = tuple(value for value in values if isinstance(value, (int, float)))
        if len(numbers) != len(values):
            raise NotSupported(f"the playbook does not understand {values[0]!r} given to {node.target}")
        first = numbers[0]
        if all(one == first or one != one for one in numbers):
            if isinstance(first, bool):
                return self.constant(first, NumberKind.BOOL)
            return self.constant(first, NumberKind.INT if isinstance(first, int) else NumberKind.FLOAT)
        found = explain(tuple(float(one) for one in numbers), self._probes, self._sizes, node.target)
        whole = all(isinstance(one, int) for one in numbers)
        return self.add(found, NumberKind.INT if whole else NumberKind.FLOAT)


def kind_of(dtype: str) -> NumberKind:
    if dtype not in KIND_OF_DTYPE:
        raise NotSupported(
            f"the playbook does not compute in {dtype}, only in f32 with f32, f16 and bf16 tensors, and in whole "
            "numbers"
        )
    return KIND_OF_DTYPE[dtype]


def same_graph(traces: tuple[Trace, ...]) -> bool:
    """Whether the traces differ in numbers and sizes alone."""
    return len({(tuple(_outline(node) for node in trace.nodes), trace.outputs) for trace in traces}) == 1


def _outline(node: TracedNode) -> tuple[object, ...]:
    arguments = (*node.arguments, *node.keywords.values())
    referred = tuple(one.index if isinstance(one, Node) else type(one).__name__ for one in arguments)
    ranks = tuple(None if one is None else (len(one.shape), one.dtype) for one in node.results)
    return (node.target, node.overload, referred, tuple(node.keywords), ranks)


def needed(trace: Trace) -> set[int]:
    """The inputs, and what the outputs depend on. An operation in place counts as needed by what it changes."""
    wanted = set(trace.outputs) | {index for index, node in enumerate(trace.nodes) if node.target == "input"}
    for index in range(len(trace.nodes) - 1, -1, -1):
        node = trace.nodes[index]
        changes = node.target.endswith("_") and isinstance(node.arguments[0], Node)
        if index in wanted or changes:
            wanted |= {index, *_taken(node)}
    return wanted


def _taken(node: TracedNode) -> set[int]:
    """The nodes that a node is given."""
    found = set[int]()
    for one in (*node.arguments, *node.keywords.values()):
        listed = one.values if isinstance(one, Items) else (one,)
        found |= {item.index for item in listed if isinstance(item, Node)}
    return found


def _size_expressions(task: Task) -> dict[str, str]:
    """A plan expression for every dimension that varies, by the first tensor that has it."""
    found: dict[str, str] = {}
    varying = {one.name for one in task.dimensions if one.varies}
    for tensor in task.tensors:
        for place, name in enumerate(tensor.dimensions):
            if name in varying and not tensor.optional:
                found.setdefault(name, f"{tensor.name}.shape[{place}]")
    return found
