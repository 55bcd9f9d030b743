"""From a traced task to its stages: products with what follows each sum, and what is left as rows.

A product takes with it the longest run of pointwise work that follows it alone: that is done on the sums before they
are stored. Whatever else there is becomes work on rows of tensors that earlier stages have stored.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tilewright.playbook.errors import NotSupported
from tilewright.playbook.families import TracedTask
from tilewright.playbook.lowering import Lowering, Rule
from tilewright.playbook.operations import POINTWISE_RULES
from tilewright.playbook.products.algebra import simplified
from tilewright.playbook.products.graph import PRODUCT, RESHAPES, TURNS, Graph, normalised, taken
from tilewright.playbook.products.layouts import DTYPES, Axes, Group, Tensor, View, operand, view_of
from tilewright.playbook.products.pooling import with_whole_windows
from tilewright.playbook.products.program import Contraction, Extent, Kept, Triangle
from tilewright.playbook.products.rest import rest_program
from tilewright.playbook.products.task_text import out_lines, shape_needs
from tilewright.playbook.reductions import REDUCTION_RULES
from tilewright.playbook.row_program import (
    Load,
    Pointwise,
    ProgramInput,
    ProgramOutput,
    RowProgram,
    Value,
)
from tilewright.playbook.tracing import Node
from tilewright.records import DType, Task

SUM = "sum_of_products"  # the input of a finish that stands for the sum
_MOST_PARTS = 65  # of a dimension that a view has split
_TRIANGLES = {"triu": Triangle.UPPER, "tril": Triangle.LOWER}
_MOVES = RESHAPES | TURNS | {"expand"}
_FINISH: dict[str, Rule] = {name: rule for name, rule in POINTWISE_RULES.items() if name not in ("getitem",)}


@dataclass(frozen=True)
class RowsStage:
    """Work on rows of tensors in memory, the task's own or such as earlier stages have stored."""

    program: RowProgram


@dataclass(frozen=True)
class Chain:
    """The whole task: stages in order, each of which may read what earlier ones have stored."""

    task: Task
    stages: tuple[Contraction | RowsStage, ...]
    scratch: tuple[Tensor, ...]  # what is stored on the way
    notes: tuple[str, ...]  # what algebra made disappear

    @property
    def contraction(self) -> Contraction | None:
        """The only stage, where that is a product."""
        first = self.stages[0]
        return first if len(self.stages) == 1 and isinstance(first, Contraction) else None


def read(traced: TracedTask) -> Chain:
    """The stages of a task with products in it. Raises `NotSupported` where they cannot be told apart."""
    return _Reader(with_whole_windows(traced)).chain()


@dataclass
class _Reader:
    traced: TracedTask
    graph: Graph = field(init=False)
    tensors: dict[int, Tensor] = field(default_factory=dict)  # in memory, by node
    scratch: list[Tensor] = field(default_factory=list)
    stages: list[Contraction | RowsStage] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.task = self.traced.task
        self.graph, self.notes = simplified(normalised(self.traced.traces))
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
        left = tuple(dict.fromkeys(one for one in self.graph.outputs if one not in self.tensors))
        if left:
            self._rows(left)
        return Chain(self.task, tuple(self.stages), tuple(self.scratch), self.notes)

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
        for part in range(2, _MOST_PARTS):
            for whole, extent in known.items():
                if whole == tuple(one * part for one in sizes):
                    return Extent(f"{extent.expression} / {part}", extent.size // part)
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
        self._keep(stored, self._tensor_of(stored, name))
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
        """An operand as it lies in memory; one that is computed is stored first."""
        assert isinstance(given, Node)
        view = view_of(self.graph, given.index, self.tensors)
        if view is not None:
            return view
        computed = given.index
        while self.graph.nodes[computed].target in _MOVES:
            (computed,) = taken(self.graph.nodes[computed])
        self._rows((computed,))
        view = view_of(self.graph, given.index, self.tensors)
        if view is None:
            raise NotSupported("the playbook cannot follow how an operand of a product lies in memory")
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
        if node.target not in TURNS:
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
                if self.graph.sizes(index) == shape and all(self._have(one) for one in others):
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

    def _have(self, index: int) -> bool:
        """Whether a node can be had for a finish; what needs no product is made first where it must be stored."""
        if self._is_at_hand(index):
            return True
        if any(self.graph.nodes[one].target == PRODUCT for one in self.graph.ancestors(index, self.tensors)):
            return False
        try:
            self._rows((index,))
        except NotSupported:
            return False
        return True

    def _is_at_hand(self, index: int) -> bool:
        """Whether a node can be had from tensors in memory without a product or a reduction."""
        ancestors = self.graph.ancestors(index, self.tensors)
        return all(one in self.tensors or self.graph.nodes[one].target in _FINISH for one in ancestors)

    def _name_of(self, cut: int, more: Collection[str] = ()) -> str:
        if cut in self.graph.outputs:
            return self.task.outputs[self.graph.outputs.index(cut)].name
        known = (*self.task.inputs, *self.task.outputs, *self.scratch)
        taken_names = {*(one.name for one in known), *more}
        wanted = (f"hidden{number or ''}" for number in itertools.count())
        return next(one for one in wanted if one not in taken_names)

    def _tensor_of(self, index: int, name: str) -> Tensor:
        dtype = DTYPES.get(self.graph.dtype(index))
        own = next((one.dtype for one in self.task.outputs if one.name == name), dtype)
        if own is None:
            raise NotSupported(f"the playbook does not store {self.graph.dtype(index)} between two stages")
        return Tensor(name, own, tuple(self._extent(one) for one in self.graph.sizes(index)))

    def _keep(self, index: int, tensor: Tensor) -> None:
        self.tensors[index] = tensor
        if tensor.name not in {one.name for one in self.task.outputs}:
            self.scratch.append(tensor)

    def _finish_program(self, start: int, cut: int, name: str, n: Extent) -> RowProgram:
        before = self.graph.ancestors(cut, {start, *self.tensors})
        inputs = {one: self.tensors[one].name for one in self.tensors if one in before}
        graph = self.graph.extracted((cut,), {**inputs, start: SUM})
        low = Lowering(self.task, graph.traces, self.traced.probes)
        (item,) = low.run(_FINISH)
        columns = self._columns(start, n)
        axes = low.input_axes[SUM]
        rows, cols = low.axes.atoms(axes[: len(axes) - columns]), low.axes.atoms(axes[len(axes) - columns :])
        live = sorted(_live(low, item.value))
        numbers = {old: new for new, old in enumerate(live)}
        values = tuple(_renumbered(low.values[old], numbers) for old in live)
        loaded = {value.input for value in values if isinstance(value, Load)}
        tensors = {self.tensors[one].name: self.tensors[one] for one in inputs}
        given = [
            _finish_input(tensors[one], low.axes.atoms(low.input_axes[one]), rows, cols)
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

    def _rows(self, outputs: tuple[int, ...]) -> None:
        """Stages that store these nodes from tensors in memory: one, or more where one cannot hold all of them."""
        try:
            self._append_rows(outputs)
            return
        except NotSupported as problem:
            refusal = problem
        for cut in self._borders(outputs):
            before = len(self.stages)
            try:
                self._append_rows((cut,))
                self._rows(outputs)
                return
            except NotSupported:
                for stage in self.stages[before:]:
                    self._forget(stage)
                del self.stages[before:]
        raise refusal

    def _append_rows(self, outputs: tuple[int, ...]) -> None:
        before = set[int]().union(*(self.graph.ancestors(one, self.tensors) for one in outputs))
        given = {one: self.tensors[one] for one in sorted(self.tensors) if one in before}
        named: dict[int, Tensor] = {}
        for one in outputs:
            named[one] = self._tensor_of(one, self._name_of(one, {tensor.name for tensor in named.values()}))
        graph = self.graph.extracted(outputs, {index: tensor.name for index, tensor in given.items()})
        program = rest_program(self.traced, graph, tuple(given.values()), tuple(named.values()))
        for index, tensor in named.items():
            self._keep(index, tensor)
        self.stages.append(RowsStage(program))

    def _borders(self, outputs: tuple[int, ...]) -> list[int]:
        """Nodes on the way at which other rows may begin: what is reduced, and what has become less by that."""
        before = set[int]().union(*(self.graph.ancestors(one, self.tensors) for one in outputs))
        found = []
        for index in sorted(before - self.tensors.keys() - set(outputs)):
            node = self.graph.nodes[index]
            above = taken(node)
            if node.target == "getitem":
                above = taken(self.graph.nodes[above[0]])
            sizes = [math.prod(self.graph.shape(one)) for one in above]
            less = bool(sizes) and max(sizes) > math.prod(self.graph.shape(index))
            reduced = any(self.graph.nodes[one].target in REDUCTION_RULES for one in self.graph.users[index])
            stored = len(node.results) == 1 and index not in self.graph.outputs and node.target not in _MOVES
            if (less or reduced) and stored:
                found.append(index)
        return found

    def _forget(self, stage: Contraction | RowsStage) -> None:
        names = {one.name for one in (stage.program.outputs if isinstance(stage, RowsStage) else ())}
        self.scratch = [one for one in self.scratch if one.name not in names]
        self.tensors = {index: one for index, one in self.tensors.items() if one.name not in names}


def _product(extents: list[Extent]) -> Extent:
    wide = [one for one in extents if not one.is_one]
    if not wide:
        return Extent("1", 1)
    return Extent(" * ".join(one.expression for one in wide), math.prod(one.size for one in wide))


def _finish_input(tensor: Tensor, axes: Group, rows: Group, cols: Group) -> ProgramInput:
    """How a tensor goes with the sums: one element for each, for each column, for each row, or a single one."""
    if axes == ():
        return ProgramInput(tensor.name, tensor.dtype, False, ())
    if axes == cols:
        return ProgramInput(tensor.name, tensor.dtype, True, ())
    if axes == rows:
        return ProgramInput(tensor.name, tensor.dtype, False, None)
    if axes == rows + cols:
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
