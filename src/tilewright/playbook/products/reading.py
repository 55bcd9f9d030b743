"""From a traced task to its stages: products with what follows each sum, and what is left as rows.

A product takes with it the longest run of pointwise work that follows it alone: that is done on the sums before they
are stored. Whatever else there is becomes work on rows of tensors that earlier stages have stored.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from tilewright.playbook.errors import NotSupported
from tilewright.playbook.families import TracedTask
from tilewright.playbook.lowering import ONE, Lowering, Rule
from tilewright.playbook.operations import POINTWISE_RULES
from tilewright.playbook.products.graph import PRODUCT, RESHAPES, Graph, normalised, taken
from tilewright.playbook.products.layouts import DTYPES, Axes, Group, Tensor, View, operand, view_of
from tilewright.playbook.products.program import Contraction, Extent, Kept, Triangle
from tilewright.playbook.row_program import (
    Load,
    Pointwise,
    ProgramInput,
    ProgramOutput,
    RowProgram,
    Value,
)
from tilewright.playbook.tracing import Node
from tilewright.records import DType, NumberInput, ScalarType, Task

SUM = "sum_of_products"  # the input of a finish that stands for the sum
_TRIANGLES = {"triu": Triangle.UPPER, "tril": Triangle.LOWER}
_MOVES = RESHAPES | {"expand", "permute"}
_FINISH: dict[str, Rule] = {name: rule for name, rule in POINTWISE_RULES.items() if name not in ("getitem",)}


@dataclass(frozen=True)
class RowsStage:
    """What is left of the graph after its products: from tensors in memory to the results."""

    graph: Graph
    inputs: tuple[Tensor, ...]  # those that are not the task's own
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Chain:
    """The whole task: stages in order, each of which may read what earlier ones have stored."""

    task: Task
    stages: tuple[Contraction | RowsStage, ...]
    scratch: tuple[Tensor, ...]  # what is stored on the way
    out_lines: tuple[str, ...]
    needs: tuple[str, ...]

    @property
    def contraction(self) -> Contraction | None:
        """The only stage, where that is a product."""
        first = self.stages[0]
        return first if len(self.stages) == 1 and isinstance(first, Contraction) else None


def read(traced: TracedTask) -> Chain:
    """The stages of a task with products in it. Raises `NotSupported` where they cannot be told apart."""
    return _Reader(traced).chain()


@dataclass
class _Reader:
    traced: TracedTask
    graph: Graph = field(init=False)
    tensors: dict[int, Tensor] = field(default_factory=dict)  # in memory, by node
    scratch: list[Tensor] = field(default_factory=list)
    stages: list[Contraction | RowsStage] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.task = self.traced.task
        self.graph = normalised(self.traced.traces)
        for one in self.task.tensors:
            if one.in_place:
                raise NotSupported(
                    f"the playbook changes no tensor in place beside a matrix product, and {one.name} is"
                )
        for index, node in enumerate(self.graph.nodes):
            if node.target == "input":
                self.tensors[index] = self._given(str(node.arguments[0]))

    def chain(self) -> Chain:
        wanted = set[int]().union(*(self.graph.ancestors(one) for one in self.graph.outputs))
        for index in sorted(wanted):
            if self.graph.nodes[index].target == PRODUCT and index not in self.tensors:
                self.stages.append(self._product(index))
        left = tuple(one for one in self.graph.outputs if one not in self.tensors)
        if left:
            self.stages.append(self._rows(left))
        return Chain(self.task, tuple(self.stages), tuple(self.scratch), out_lines(self.task), shape_needs(self.traced))

    # -- sizes --

    def _given(self, name: str) -> Tensor:
        one = next(one for one in self.task.tensors if one.name == name)
        dimensions = {dimension.name: dimension for dimension in self.task.dimensions}
        extents = tuple(
            Extent("1", 1)
            if self.task.sizes[named] == 1 and not dimensions[named].varies
            else Extent(f"{name}.shape[{place}]", self.task.sizes[named])
            for place, named in enumerate(one.dimensions)
        )
        return Tensor(name, one.dtype, extents)

    def _extent(self, sizes: tuple[int, ...]) -> Extent:
        """The size that takes these values at the probes."""
        if set(sizes) == {1}:
            return Extent("1", 1)
        known: dict[tuple[int, ...], Extent] = {}
        for index, node in enumerate(self.graph.nodes):
            if node.target == "input":
                for one, extent in zip(self.graph.sizes(index), self.tensors[index].extents, strict=True):
                    known.setdefault(one, extent)
        for count in (1, 2, 3):
            for chosen in itertools.combinations(known, count):
                if tuple(math.prod(column) for column in zip(*chosen, strict=True)) == sizes:
                    extents = [known[one] for one in chosen]
                    return Extent(" * ".join(e.expression for e in extents), math.prod(e.size for e in extents))
        if len(set(sizes)) == 1:
            return Extent(str(sizes[0]), sizes[0])
        raise NotSupported("the playbook cannot tell a size on the way from the inputs' shapes")

    # -- products --

    def _product(self, index: int) -> Contraction:
        node = self.graph.nodes[index]
        views = [self._operand_view(one) for one in node.arguments]
        a, b = views
        rank = len(a.groups)
        if rank == 3:
            axes_a, axes_b = Axes(*a.groups), Axes(b.groups[0], b.groups[2], b.groups[1])
        elif rank == 2:
            rows_b, k_b = (b.groups[1], b.groups[0]) if len(b.groups) == 2 else ((), b.groups[0])
            axes_a, axes_b = Axes((), *a.groups), Axes((), rows_b, k_b)
        else:
            axes_a, axes_b = Axes((), (), a.groups[0]), Axes((), (), b.groups[0])
        tensor_a, tensor_b = self.tensors[a.base], self.tensors[b.base]
        batch = tensor_a.extent(axes_a.batch)
        if batch.is_one:
            batch = tensor_b.extent(axes_b.batch)
        m, n, k = tensor_a.extent(axes_a.rows), tensor_b.extent(axes_b.rows), tensor_a.extent(axes_a.k)
        if k.is_one:
            k = tensor_b.extent(axes_b.k)
        place, kept = self._kept(self._seen_as(index))
        name, finish, stored = self._finish(place, n)
        self._store(stored, name, finish)
        return Contraction(
            batch,
            m,
            n,
            k,
            operand(tensor_a, axes_a, tensor_a.name),
            operand(tensor_b, axes_b, tensor_b.name),
            finish,
            SUM,
            self.task.precision,
            kept,
        )

    def _operand_view(self, given: object) -> View:
        assert isinstance(given, Node)
        view = view_of(self.graph, given.index, self.tensors)
        if view is None:
            raise NotSupported(
                "the playbook multiplies matrices as they lie in memory, and an operand of a product is computed first"
            )
        return view

    def _seen_as(self, index: int) -> int:
        """The product as it is used: behind reshapes that are all that is done with it."""
        while True:
            users = self.graph.users[index]
            if len(users) != 1 or index in self.graph.outputs or not self._keeps_order(users[0]):
                return index
            index = users[0]

    def _keeps_order(self, index: int) -> bool:
        """Whether a node is its operand with other dimensions, in the same order in memory."""
        node = self.graph.nodes[index]
        if node.target in RESHAPES:
            return True
        if node.target != "permute":
            return False
        (before,) = taken(node)
        view = view_of(self.graph, index, {before: Tensor("", DType.F32, ())})
        assert view is not None
        shape = self.graph.shape(before)
        moved = [one for group in view.groups for one in group if shape[one] != 1]
        return moved == sorted(moved)

    def _kept(self, index: int) -> tuple[int, Kept | None]:
        """A triangle that is taken of the product before anything else."""
        users = self.graph.users[index]
        if len(users) != 1 or index in self.graph.outputs:
            return index, None
        node = self.graph.nodes[users[0]]
        if node.target not in _TRIANGLES or len(self.graph.shape(index)) < 2:
            return index, None
        diagonal = node.arguments[1] if len(node.arguments) > 1 else node.keywords.get("diagonal", 0)
        assert isinstance(diagonal, int)
        return users[0], Kept(_TRIANGLES[node.target], diagonal)

    # -- what follows the sums --

    def _finish(self, start: int, n: Extent) -> tuple[str, RowProgram, int]:
        """The work on the sums that goes farthest: the name of what is stored, the program, and the node stored."""
        for cut in self._cuts(start):
            name = self._name_of(cut)
            try:
                return name, self._finish_program(start, cut, name, n), cut
            except NotSupported:
                if cut == start:
                    raise
        raise AssertionError("the product itself can always be stored")

    def _cuts(self, start: int) -> list[int]:
        """Nodes at which all that is done with the product comes together again, the farthest first."""
        shape, inside = self.graph.sizes(start), {start}
        for index in range(start + 1, len(self.graph.nodes)):
            node = self.graph.nodes[index]
            takes = [one for one in taken(node) if self._comes_from(one, start)]
            if takes and all(one in inside for one in takes) and node.target in _FINISH and node.target not in _MOVES:
                others = [one for one in taken(node) if one not in takes]
                if self.graph.sizes(index) == shape and all(self._is_at_hand(one) for one in others):
                    inside.add(index)
        found = []
        for cut in sorted(inside, reverse=True):
            before = self.graph.ancestors(cut, [start]) & inside
            alone = all(
                one == cut or (set(self.graph.users[one]) <= before and one not in self.graph.outputs) for one in before
            )
            if alone:
                found.append(cut)
        return found

    def _comes_from(self, index: int, start: int) -> bool:
        return start in self.graph.ancestors(index, self.tensors)

    def _is_at_hand(self, index: int) -> bool:
        """Whether a node can be had from tensors in memory without a product or a reduction."""
        ancestors = self.graph.ancestors(index, self.tensors)
        return all(one in self.tensors or self.graph.nodes[one].target in _FINISH for one in ancestors)

    def _name_of(self, cut: int) -> str:
        if cut in self.graph.outputs:
            return self.task.outputs[self.graph.outputs.index(cut)].name
        taken_names = {one.name for one in (*self.task.inputs, *self.task.outputs)} | {s.name for s in self.scratch}
        wanted = (f"hidden{number or ''}" for number in itertools.count())
        return next(one for one in wanted if one not in taken_names)

    def _store(self, index: int, name: str, finish: RowProgram) -> None:
        extents = tuple(self._extent(one) for one in self.graph.sizes(index))
        tensor = Tensor(name, finish.outputs[0].dtype, extents)
        self.tensors[index] = tensor
        if name not in {one.name for one in self.task.outputs}:
            self.scratch.append(tensor)

    def _finish_program(self, start: int, cut: int, name: str, n: Extent) -> RowProgram:
        before = self.graph.ancestors(cut, {start, *self.tensors})
        inputs = {one: self.tensors[one].name for one in self.tensors if one in before}
        graph = self.graph.extracted((cut,), {**inputs, start: SUM})
        low = Lowering(self.task, graph.traces, self.traced.probes)
        (item,) = low.run(_FINISH)
        columns = self._columns(start, n)
        axes = low.axes.resolve(low.input_axes[SUM])
        rows, cols = axes[: len(axes) - columns], axes[len(axes) - columns :]
        live = sorted(_live(low, item.value))
        numbers = {old: new for new, old in enumerate(live)}
        values = tuple(_renumbered(low.values[old], numbers) for old in live)
        loaded = {value.input for value in values if isinstance(value, Load)}
        tensors = {self.tensors[one].name: self.tensors[one] for one in inputs}
        given = [
            _finish_input(tensors[one], low.axes.resolve(low.input_axes[one]), rows, cols)
            for one in tensors
            if one in loaded
        ]
        dtype = DTYPES.get(self.graph.dtype(cut))
        if dtype is None or SUM not in loaded:
            raise NotSupported(f"the playbook does not store products as {self.graph.dtype(cut)}")
        sizes = [self._extent(one) for one in self.graph.sizes(start)]
        return RowProgram(
            name=self.task.name,
            inputs=(ProgramInput(SUM, DType.F32, True, None), *given),
            outputs=(ProgramOutput(name, dtype, numbers[item.value], True),),
            values=values,
            kinds=tuple(low.kinds[old] for old in live),
            out_lines=out_lines(self.task),
            shape_needs=shape_needs(self.traced),
            rows=_product(sizes[: len(sizes) - columns]).expression,
            cols=_product(sizes[len(sizes) - columns :]).expression,
            task_rows=_product(sizes[: len(sizes) - columns]).size,
            task_cols=_product(sizes[len(sizes) - columns :]).size,
        )

    def _columns(self, index: int, n: Extent) -> int:
        """How many of the last dimensions are n."""
        if n.is_one:
            return 0
        sizes = [self._extent(one) for one in self.graph.sizes(index)]
        for count in range(1, len(sizes) + 1):
            if _product(sizes[len(sizes) - count :]).size == n.size:
                return count
        raise NotSupported("the playbook cannot tell the columns of a product in the shape it is seen in")

    # -- what is left --

    def _rows(self, outputs: tuple[int, ...]) -> RowsStage:
        stored = {name.name for name in self.scratch} | {one.name for one in self.task.outputs}
        before = set[int]().union(*(self.graph.ancestors(one, self.tensors) for one in outputs))
        inputs = {one: self.tensors[one].name for one in sorted(self.tensors) if one in before}
        graph = self.graph.extracted(outputs, inputs)
        between = tuple(self.tensors[one] for one in inputs if self.tensors[one].name in stored)
        return RowsStage(graph, between, tuple(self._name_of(one) for one in outputs))


def _product(extents: list[Extent]) -> Extent:
    wide = [one for one in extents if not one.is_one]
    if not wide:
        return Extent("1", 1)
    return Extent(" * ".join(one.expression for one in wide), math.prod(one.size for one in wide))


def _finish_input(tensor: Tensor, axes: Group, rows: Group, cols: Group) -> ProgramInput:
    """How a tensor goes with the sums: one element for each, for each column, for each row, or a single one."""
    own = tuple(axis for axis in axes if axis != ONE)
    row_axes, col_axes = (tuple(axis for axis in one if axis != ONE) for one in (rows, cols))
    if own == ():
        return ProgramInput(tensor.name, tensor.dtype, False, ())
    if own == col_axes:
        return ProgramInput(tensor.name, tensor.dtype, True, ())
    if own == row_axes:
        return ProgramInput(tensor.name, tensor.dtype, False, None)
    if own == row_axes + col_axes:
        return ProgramInput(tensor.name, tensor.dtype, True, None)
    raise NotSupported(f"the playbook does not join {tensor.name} to a product: it has some of its rows and not others")


def _live(low: Lowering, value: int) -> set[int]:
    found: set[int] = set()
    todo = [value]
    while todo:
        index = todo.pop()
        if index not in found:
            found.add(index)
            held = low.values[index]
            todo += held.arguments if isinstance(held, Pointwise) else ()
    return found


def _renumbered(value: Value, numbers: Mapping[int, int]) -> Value:
    return (
        Pointwise(value.op, tuple(numbers[one] for one in value.arguments)) if isinstance(value, Pointwise) else value
    )


# -- plan text of the whole task --


def out_lines(task: Task) -> tuple[str, ...]:
    """Every result, its sizes read off the inputs."""
    places = size_places(task)

    def size(one: str | int) -> str:
        if isinstance(one, int):
            return str(one)
        if one not in places:
            raise NotSupported(f"the playbook cannot tell the size {one} from the inputs' shapes")
        return places[one]

    return tuple(f"{one.name}: {one.dtype}[{', '.join(size(each) for each in one.shape)}]" for one in task.outputs)


def shape_needs(traced: TracedTask) -> tuple[str, ...]:
    """What the plan asks of the inputs: dtypes, ranks, sizes that agree, and what the graph was seen with."""
    task, probes = traced.task, traced.probes
    given = [one for one in task.tensors if not one.optional]
    places = size_places(task)
    needs = [" and ".join(f"{one.name}.dtype == {one.dtype}" for one in given)]
    for one in given:
        needs.append(f"{one.name}.ndim == {len(one.dimensions)}")
        for place, name in enumerate(one.dimensions):
            own = f"{one.name}.shape[{place}]"
            if places[name] != own:
                needs.append(f"{own} == {places[name]}")
    needs += [f"not has({one.name})" for one in task.tensors if one.optional]
    needs += [
        f"{places[d.name]} == {d.size}" for d in task.dimensions if d.name in places and (probes.fixed or not d.varies)
    ]
    needs += [_number_need(one) for one in task.numbers if one.name not in probes.probes[0].numbers]
    return tuple(needs)


def size_places(task: Task) -> dict[str, str]:
    """Where each dimension's size is read off."""
    found: dict[str, str] = {}
    for tensor in task.tensors:
        for place, name in enumerate(tensor.dimensions):
            if not tensor.optional:
                found.setdefault(name, f"{tensor.name}.shape[{place}]")
    return found


def _number_need(one: NumberInput) -> str:
    value = str(one.value).lower() if one.type is ScalarType.BOOL else repr(one.value)
    return f"{one.name} == {value}" if not value.startswith("-") else f"{one.name} + {value[1:]} == 0"
