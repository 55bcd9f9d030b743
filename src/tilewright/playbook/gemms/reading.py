"""From a traced task to its stages: products and convolutions with what follows each sum, and what is left as rows.

A product takes with it the longest run of pointwise work that follows it alone: that is done on the sums before they
are stored. Whatever else there is becomes work on rows of tensors that earlier stages have stored.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, field, replace

from tilewright.playbook.catalogue import Schedule, best_schedule, schedules, simple_schedule
from tilewright.playbook.errors import NoMatch, NotSupported
from tilewright.playbook.families import TracedTask
from tilewright.playbook.gemms.algebra import NORMS, simplified
from tilewright.playbook.gemms.convolution_means import MeansStage
from tilewright.playbook.gemms.convolution_program import Convolution, Settings, numbers, part
from tilewright.playbook.gemms.graph import CONVOLUTION, MADE, PRODUCT, RESHAPES, SUMMED, TURNS, normalised, taken
from tilewright.playbook.gemms.program import (
    DTYPES,
    Axes,
    Gemm,
    Kept,
    Rounded,
    Tensor,
    Triangle,
    View,
    operand,
    view_of,
)
from tilewright.playbook.gemms.rest import MoveStage, PoolStage, between, placed_stage, with_whole_windows
from tilewright.playbook.gemms.tensors import FINISH_RULES, SUM, TensorTable, columns_of, epilogue_program
from tilewright.playbook.places.program import Written
from tilewright.playbook.pooling.kernel import POOLS, PoolProgram
from tilewright.playbook.reductions import REDUCTION_RULES
from tilewright.playbook.row_program import ProgramOutput, RowProgram
from tilewright.playbook.rows import row_program
from tilewright.playbook.tracing import Node, TracedNode
from tilewright.records import DType, Task

_TRIANGLES = {"triu": Triangle.UPPER, "tril": Triangle.LOWER}
_MANY_ROWS = 1 << 18
_REDUCED = REDUCTION_RULES.keys() | POOLS
_MOVES = RESHAPES | TURNS | {"expand"}


@dataclass(frozen=True)
class RowsStage:
    """Work on rows of tensors in memory, the task's own or such as earlier stages have stored."""

    program: RowProgram

    @property
    def simple(self) -> Schedule:
        return simple_schedule(self.program)

    @property
    def best(self) -> Schedule:
        """What the emulator can run too; columns are not cut into pieces where there are rows enough for a GPU."""
        whole = [one for one in schedules(self.program) if one.id == "column-tiles-again"]
        if self.program.sweeps == 1 and self.program.task_rows >= _MANY_ROWS and whole:
            return whole[0]
        return best_schedule(self.program)

    @property
    def elements(self) -> int:
        """At the task's own sizes."""
        return self.program.task_rows * self.program.task_cols


RestStage = RowsStage | PoolStage | MoveStage | MeansStage
Stage = Gemm | Convolution | RestStage


@dataclass(frozen=True)
class Chain:
    """The whole task: stages in order, each of which may read what earlier ones have stored."""

    task: Task
    stages: tuple[Stage, ...]
    scratch: tuple[Tensor, ...]  # what is stored on the way
    notes: tuple[str, ...]  # what algebra made disappear

    @property
    def sums(self) -> tuple[Gemm | Convolution, ...]:
        """The products and convolutions."""
        return tuple(one for one in self.stages if isinstance(one, (Gemm, Convolution)))

    @property
    def rest(self) -> tuple[RestStage, ...]:
        return tuple(one for one in self.stages if not isinstance(one, (Gemm, Convolution)))


def read(traced: TracedTask) -> Chain:
    """The stages of a task with products in it. Raises `NotSupported` where they cannot be told apart."""
    traced = with_whole_windows(traced)
    for one in traced.task.tensors:
        if one.in_place:
            raise NoMatch
    graph, notes = simplified(normalised(traced.traces))
    reader = _Reader(traced, graph)
    return Chain(traced.task, reader.read(), tuple(reader.scratch), notes)


@dataclass
class _Reader(TensorTable):
    stages: list[Stage] = field(default_factory=list)

    def read(self) -> tuple[Stage, ...]:
        wanted = set[int]().union(*(self.graph.ancestors(one) for one in self.graph.outputs))
        for index in sorted(wanted):
            if self.graph.nodes[index].target in MADE and index not in self.tensors:
                self.stages.append(self._made_by(index))
        left = tuple(dict.fromkeys(one for one in self.graph.outputs if one not in self.tensors))
        if left:
            self._rows(left)
        return tuple(self.stages)

    def _made_by(self, index: int) -> Stage:
        target = self.graph.nodes[index].target
        if target == PRODUCT:
            return self._product(index)
        return self._convolution(index) if target == CONVOLUTION else self._tap_means(index)

    # -- products --

    def _product(self, index: int) -> Gemm:
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
        place, kept = self._kept(self._seen_as(index), index)
        epilogue = self._epilogue(place, columns_of(self, place, n), by_channel=False)
        return Gemm(
            batch,
            m,
            n,
            k,
            operand(tensor_a, axes_a, tensor_a.name),
            operand(tensor_b, axes_b, tensor_b.name),
            epilogue,
            SUM,
            self.task.precision,
            kept,
            rounded=self._rounded(index),
        )

    def _rounded(self, index: int) -> Rounded:
        """What PyTorch rounds first: not the products of copies in f32."""
        if DTYPES.get(self.graph.dtype(index)) is DType.F32:
            return Rounded.LATER
        return Rounded.ADDED if self.graph.nodes[index].overload == SUMMED else Rounded.SUM

    # -- convolutions --

    def _convolution(self, index: int) -> Convolution:
        nodes = tuple(trace.nodes[index] for trace in self.graph.traces)
        x, weight = (self._whole_tensor(one) for one in nodes[0].arguments[:2])
        taken_sizes = self.graph.sizes(taken(nodes[0])[1])
        settings = Settings.of(nodes, len(taken_sizes) - 2)
        if any(len(set(one)) > 1 for one in taken_sizes[2:]):
            raise NoMatch
        windows = settings.windows(x.extents[2:], tuple(one[0] for one in taken_sizes[2:]))
        own, inner = part(weight.extents[0], taken_sizes[0], settings.groups), weight.extents[1]
        channels, filters = (own, inner) if settings.transposed else (inner, own)
        epilogue = self._epilogue(index, len(windows), by_channel=True)
        return Convolution(
            x.extents[0],
            settings.groups,
            channels,
            filters,
            windows,
            x.name,
            weight.name,
            x.dtype,
            settings.transposed,
            epilogue,
            SUM,
            self.task.precision,
        )

    def _tap_means(self, index: int) -> MeansStage:
        nodes = tuple(trace.nodes[index] for trace in self.graph.traces)
        x = self._whole_tensor(nodes[0].arguments[0])
        dims, taps = (numbers(one) for one in nodes[0].arguments[1:3])
        settings = Settings.of(nodes, len(taps))
        windows = settings.windows(tuple(x.extents[one] for one in dims), taps)
        outer, inner = (x.extent(tuple(one)) for one in (range(dims[0]), range(dims[-1] + 1, len(x.extents))))
        sizes = self.graph.sizes(index)
        made = Tensor(self.name_of(index), DType.F32, tuple(self.extent(one) for one in sizes))
        self.keep(index, made)
        return MeansStage(x, made, outer, inner, windows, settings.transposed, self.task.name)

    def _whole_tensor(self, given: object) -> Tensor:
        """A tensor in memory, in its own order; one that is computed is stored first."""
        assert isinstance(given, Node)
        base = given.index
        while base not in self.tensors and self._keeps_order(base):
            (base,) = taken(self.graph.nodes[base])
        if base not in self.tensors:
            base = given.index
            self._rows((base,))
        found = self.tensors[base]
        if base == given.index:
            return found
        return replace(found, extents=tuple(self.extent(one) for one in self.graph.sizes(given.index)))

    def _operand_view(self, given: object) -> View:
        """An operand as it lies in memory; one that is computed is stored first."""
        assert isinstance(given, Node)
        view = view_of(self.graph, given.index, self.tensors)
        if view is not None:
            return view
        computed = given.index
        while self.graph.nodes[computed].target in _MOVES:
            (computed,) = taken(self.graph.nodes[computed])
        self._rows((given.index if computed in self.tensors else computed,))
        view = view_of(self.graph, given.index, self.tensors)
        if view is None:
            raise NoMatch
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

    def _kept(self, index: int, product: int) -> tuple[int, Kept | None]:
        """A triangle that is taken of the product before anything else."""
        users = self.graph.users[index]
        if len(users) != 1 or index in self.graph.outputs:
            return index, None
        node = self.graph.nodes[users[0]]
        if node.target not in _TRIANGLES or len(self.graph.shape(index)) < 2:
            return index, None
        if not self._is_matrices(index, product):
            return index, None
        diagonals = {_diagonal(trace.nodes[users[0]]) for trace in self.graph.traces}
        if len(diagonals) > 1:
            raise NoMatch
        diagonal = diagonals.pop()
        return users[0], Kept(_TRIANGLES[node.target], diagonal)

    def _is_matrices(self, index: int, product: int) -> bool:
        """Whether what the product is seen as has its rows and columns: `(x @ w)` of a batch may be one tall matrix."""
        return self.graph.sizes(index)[-2:] == self.graph.sizes(product)[-2:]

    # -- what follows the sums --

    def _epilogue(self, start: int, columns: int, by_channel: bool) -> RowProgram:
        """The work on the sums that goes farthest; what it makes is stored."""
        for cut in self._cuts(start):
            if by_channel and self.graph.nodes[cut].target in RESHAPES and cut not in self.graph.outputs:
                continue  # in its own shape it tells more of the sizes of what follows
            name = self.name_of(cut)
            try:
                epilogue = epilogue_program(self, start, cut, name, columns, by_channel)
            except NotSupported:
                if cut == start:
                    raise
                continue
            self.keep(cut, self.tensor_of(cut, name))
            return epilogue
        raise AssertionError("the product itself can always be stored")

    def _cuts(self, start: int) -> list[int]:
        """Nodes at which all that is done with the product comes together again, the farthest first."""
        inside = {start}
        for index in range(start + 1, len(self.graph.nodes)):
            node = self.graph.nodes[index]
            takes = [one for one in taken(node) if self._comes_from(one, start)]
            if not takes or any(one not in inside for one in takes):
                continue
            others = [one for one in taken(node) if one not in takes]
            if self._goes_on(index, takes) and all(self._have(one) for one in others):
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

    def _goes_on(self, index: int, takes: list[int]) -> bool:
        """Whether a node is as large as the sums that it takes: work on each of them, or another shape of them all."""
        node = self.graph.nodes[index]
        if node.target in RESHAPES:
            return True
        wide = self.graph.sizes(index)
        plain = node.target in FINISH_RULES and node.target not in _MOVES
        return plain and all(self.graph.sizes(one) == wide for one in takes)

    def _comes_from(self, index: int, start: int) -> bool:
        return start in self.graph.ancestors(index, self.tensors)

    def _have(self, index: int) -> bool:
        """Whether a node can be had for an epilogue; what needs no product is made first where it must be stored."""
        if self.is_at_hand(index):
            return True
        if any(self.graph.nodes[one].target in MADE for one in self.graph.ancestors(index, self.tensors)):
            return False
        try:
            self._rows((index,))
        except NotSupported:
            return False
        return True

    # -- what is left --

    def _rows(self, outputs: tuple[int, ...]) -> None:
        """Stages that store these nodes from tensors in memory: one, or more where one cannot hold all of them."""
        with suppress(NotSupported):
            self._append_rows(outputs)
            return
        for cut in self._borders(outputs):
            before = len(self.stages)
            try:
                self._append_rows(self._together(cut))
                self._rows(outputs)
                return
            except NotSupported:
                for stage in self.stages[before:]:
                    self._forget(stage)
                del self.stages[before:]
        raise NoMatch

    def _append_rows(self, outputs: tuple[int, ...]) -> None:
        before = set[int]().union(*(self.graph.ancestors(one, self.tensors) for one in outputs))
        given = {one: self.tensors[one] for one in sorted(self.tensors) if one in before}
        named: dict[int, Tensor] = {}
        for one in outputs:
            named[one] = self.tensor_of(one, self.name_of(one, {tensor.name for tensor in named.values()}))
        graph = self.graph.extracted(outputs, {index: tensor.name for index, tensor in given.items()})
        stage = _rest_stage(between(self.traced, graph, tuple(given.values()), tuple(named.values())))
        for index, tensor in named.items():
            self.keep(index, tensor)
        self.stages.append(stage)

    def _together(self, cut: int) -> tuple[int, ...]:
        """A node, and what is stored with it: both statistics of a norm."""
        node = self.graph.nodes[cut]
        source = taken(node)[0] if node.target == "getitem" else None
        if source is None or self.graph.nodes[source].target not in NORMS:
            return (cut,)
        return tuple(one for one in self.graph.users[source] if self.graph.users[one])

    def _borders(self, outputs: tuple[int, ...]) -> list[int]:
        """Nodes on the way at which other rows may begin: what is reduced, and what has become less by that."""
        before = set[int]().union(*(self.graph.ancestors(one, self.tensors) for one in outputs))
        by_size = any(isinstance(one, Convolution) for one in self.stages)  # what is less first: it is read again
        found: list[tuple[bool, int]] = []
        for index in sorted(before - self.tensors.keys() - set(outputs)):
            node = self.graph.nodes[index]
            above = taken(node)
            if node.target == "getitem":
                above = taken(self.graph.nodes[above[0]])
            sizes = [math.prod(self.graph.shape(one)) for one in above]
            less = bool(sizes) and max(sizes) > math.prod(self.graph.shape(index))
            reduced = any(self.graph.nodes[one].target in _REDUCED for one in self.graph.users[index])
            stored = len(node.results) == 1 and index not in self.graph.outputs and node.target not in _MOVES
            if (less or reduced) and stored:
                found.append((by_size and not less, index))
        return [index for _, index in sorted(found)]

    def _forget(self, stage: Stage) -> None:
        names = {one.name for one in _written(stage)}
        self.scratch = [one for one in self.scratch if one.name not in names]
        self.tensors = {index: one for index, one in self.tensors.items() if one.name not in names}


def _written(stage: Stage) -> tuple[ProgramOutput | Written, ...]:
    if isinstance(stage, (Gemm, Convolution)):
        return ()  # what was multiplied stays
    if isinstance(stage, MeansStage):
        return stage.outputs
    program = stage.program
    return program.placed.outputs if isinstance(program, PoolProgram) else program.outputs


def _rest_stage(traced: TracedTask) -> RowsStage | PoolStage | MoveStage:
    """A part of a graph as rows where it can be arranged so, and else as what reads places of its own."""
    try:
        return RowsStage(row_program(traced))
    except NotSupported:
        return placed_stage(traced)


def _diagonal(node: TracedNode) -> int:
    given = node.arguments[1] if len(node.arguments) > 1 else node.keywords.get("diagonal", 0)
    assert isinstance(given, int)
    return given
