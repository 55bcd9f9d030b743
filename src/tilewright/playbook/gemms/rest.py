"""What is left of a graph beside its GEMMs: tasks of their own, windows that are pooled, elements that move."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial

from tilewright.playbook.catalogue import Schedule
from tilewright.playbook.errors import NoMatch
from tilewright.playbook.families import TracedTask
from tilewright.playbook.gemms.graph import CONVOLUTION, Builder, Graph, Rewrite, rewritten, shape_at, taken
from tilewright.playbook.gemms.program import Extent, Tensor
from tilewright.playbook.moves import draft as draft_moves
from tilewright.playbook.moves import moved, vectors
from tilewright.playbook.places.program import PlacedProgram
from tilewright.playbook.places.sizes import dimension_texts
from tilewright.playbook.pooling.kernel import POOLS, PoolProgram, pool_program
from tilewright.playbook.pooling.schedules import pool_schedules
from tilewright.playbook.tracing import Items, Node, ProbeSet, Trace, TracedNode, TracedTensor
from tilewright.records import Dimension, Task, TaskOutput, TensorInput


def between(traced: TracedTask, graph: Graph, given: tuple[Tensor, ...], made: tuple[Tensor, ...]) -> TracedTask:
    """The part of a graph that makes some tensors from others, as a task: it begins with tensors in memory, in the
    order in which the graph has them, and ends with others."""
    task = traced.task
    sizes = _Sizes(task)
    own = {one.name: one for one in task.tensors}
    inputs = [
        own.get(one.name) or TensorInput(one.name, one.dtype, tuple(sizes.name(size) for size in one.extents))
        for one in given
    ]
    seen = {name for one in inputs for name in one.dimensions}
    outputs = [TaskOutput(one.name, one.dtype, tuple(sizes.known(size, seen) for size in one.extents)) for one in made]
    part = replace(
        task,
        inputs=(*inputs, *task.numbers),
        outputs=tuple(outputs),
        dimensions=(*task.dimensions, *sizes.more),
        leading=(),
        derivative=None,
    )
    return TracedTask(part, graph.traces, _probes(traced.probes, part, graph))


def _probes(probes: ProbeSet, task: Task, graph: Graph) -> ProbeSet:
    """The same calls, with the sizes of what other stages have stored."""
    names = {one.name: one.dimensions for one in task.tensors}
    more: list[dict[str, int]] = [{} for _ in probes.probes]
    for index, node in enumerate(graph.nodes):
        if node.target == "input":
            for name, sizes in zip(names[str(node.arguments[0])], graph.sizes(index), strict=True):
                for found, size in zip(more, sizes, strict=True):
                    found[name] = size
    made = (replace(one, sizes={**found, **one.sizes}) for one, found in zip(probes.probes, more, strict=True))
    return replace(probes, probes=tuple(made))


class _Sizes:
    """Names for sizes: those of the task's dimensions, or new ones that stand for what they are."""

    def __init__(self, task: Task) -> None:
        self._names = {expression: name for name, expression in dimension_texts(task).items()}
        self._taken = {one.name for one in task.dimensions}
        self.more: list[Dimension] = []

    def known(self, extent: Extent, seen: Collection[str]) -> str | int:
        """Of a result, whose plan line the whole file has."""
        name = self._names.get(extent.expression)
        return extent.size if name is None or name not in seen else name

    def name(self, extent: Extent) -> str:
        if extent.expression not in self._names:
            made = f"size_{len(self.more)}"
            while made in self._taken:
                made += "_"
            self._names[extent.expression] = made
            # It never varies by itself: no number is to be explained by it.
            self.more.append(Dimension(made, extent.size, varies=False))
        return self._names[extent.expression]


# -- stages that are neither sums nor rows: windows that are pooled, and elements that change places --


@dataclass(frozen=True)
class PoolStage:
    """Windows of a tensor in memory, with pointwise work before and after."""

    program: PoolProgram

    @property
    def best(self) -> Schedule:
        return pool_schedules(self.program)[0]

    @property
    def simple(self) -> Schedule:
        return pool_schedules(self.program)[0]

    @property
    def elements(self) -> int:
        """That are read at the task's own sizes, about."""
        taps = math.prod(one.stride for one in self.program.windows)
        return _elements(self.program.placed) * taps


@dataclass(frozen=True)
class MoveStage:
    """Results whose elements read a few places each."""

    program: PlacedProgram

    @property
    def simple(self) -> Schedule:
        summary = "first version: one thread per element, which finds its places"
        return Schedule(self.program.as_rows(), "draft-places", summary, partial(draft_moves, (self.program,)))

    @property
    def best(self) -> Schedule:
        if not self.program.variables:
            return self.simple
        summary = "16-byte vectors of the result, each read from where its elements lie"
        return Schedule(self.program.as_rows(), "place-vectors", summary, partial(vectors, (self.program,)))

    @property
    def elements(self) -> int:
        return _elements(self.program)


def placed_stage(traced: TracedTask) -> PoolStage | MoveStage:
    """A part of a graph as one such stage. Raises `NotSupported` where it is none."""
    outputs = tuple(replace(one, shape=shape) for one, shape in zip(traced.task.outputs, _shapes(traced), strict=True))
    traced = replace(traced, task=replace(traced.task, outputs=outputs))
    if traced.targets & POOLS:
        return PoolStage(pool_program(traced))
    programs = moved(traced)
    if len(programs) > 1:
        raise NoMatch
    return MoveStage(programs[0])


def _shapes(traced: TracedTask) -> list[tuple[int, ...]]:
    """Of the results, as numbers: their names may be those of sizes that this part of the graph does not see."""
    return [traced.traces[0].nodes[one].result.shape for one in traced.traces[0].outputs]


def _elements(program: PlacedProgram) -> int:
    return math.prod(one.size.own for one in program.variables)


# -- pooling of neighbouring columns without overlap, as a reduction of parts of a dimension --
# Where a window is as wide as its step, the windows are parts of the dimension. A length that is no whole number of
# windows leaves elements over; files made from this take whole numbers only, and what was traced is seen as if it
# had been one.


_POOLS = {"max_pool2d_with_indices": "amax", "avg_pool2d": "mean", "max_pool1d": "amax", "avg_pool1d": "mean"}


def with_whole_windows(traced: TracedTask) -> TracedTask:
    """The task with its poolings as reductions, and lengths that are whole numbers of windows."""
    if CONVOLUTION in traced.targets:
        return traced  # whose results are no whole numbers of anything
    for index, node in enumerate(traced.traces[0].nodes):
        window = _window(node)
        if window:
            (source,) = taken(node)
            traced = _rounded(traced, tuple(trace.nodes[source].result.shape[-1] for trace in traced.traces), window)
            return with_whole_windows(replace(traced, traces=_without(Graph(traced.traces), index, window).traces))
    return traced


def _window(node: TracedNode) -> int:
    """How wide the windows of a pooling over the last dimension are, where they lie side by side; else 0."""
    if node.target not in _POOLS or node.keywords or len(node.arguments) > 3:
        return 0
    windows = node.arguments[1]
    steps = node.arguments[2] if len(node.arguments) > 2 else windows
    if not isinstance(windows, Items) or windows != steps:
        return 0
    wide = [one for one in windows.values if isinstance(one, int)]
    return wide[-1] if wide and all(one == 1 for one in wide[:-1]) else 0


# -- lengths --


def _rounded(traced: TracedTask, lengths: tuple[int, ...], window: int) -> TracedTask:
    """The task as if a dimension had been traced at whole numbers of windows."""
    sizes = [one.sizes for one in traced.probes.probes]
    names = [name for name in sizes[0] if tuple(one[name] for one in sizes) == lengths]
    if not names:
        return traced
    whole = tuple(one // window * window for one in lengths)
    if len(set(whole)) == 1 < len(set(lengths)):
        raise NoMatch
    probes = tuple(
        replace(one, sizes={name: new if name in names else size for name, size in one.sizes.items()})
        for one, new in zip(traced.probes.probes, whole, strict=True)
    )
    traces = _with_lengths(traced.traces, lengths, whole)
    return TracedTask(_multiples(traced.task, names, window), traces, ProbeSet(probes, traced.probes.fixed))


def _multiples(task: Task, names: list[str], window: int) -> Task:
    """The task for such sizes only; one whose own size is none is left as it is, and its files then decline it."""
    dimensions = tuple(
        replace(one, multiple_of=one.multiple_of * window)
        if one.name in names and one.formula is None and one.size % (one.multiple_of * window) == 0
        else one
        for one in task.dimensions
    )
    return replace(task, dimensions=dimensions)


def _with_lengths(traces: tuple[Trace, ...], old: tuple[int, ...], new: tuple[int, ...]) -> tuple[Trace, ...]:
    """A length of one dimension put in the place of another, wherever the graphs have it."""

    def result(place: int, index: int, number: int, tensor: TracedTensor | None) -> TracedTensor | None:
        if tensor is None:
            return None
        found = (trace.nodes[index].results[number] for trace in traces)
        sizes = zip(*(one.shape for one in found if one is not None), strict=True)
        return TracedTensor(tuple(new[place] if size == old else size[place] for size in sizes), tensor.dtype)

    def node(place: int, index: int, node: TracedNode) -> TracedNode:
        results = (result(place, index, number, one) for number, one in enumerate(node.results))
        return replace(node, results=tuple(results))

    return tuple(
        replace(trace, nodes=tuple(node(place, index, one) for index, one in enumerate(trace.nodes)))
        for place, trace in enumerate(traces)
    )


# -- nodes --


def _without(graph: Graph, index: int, window: int) -> Graph:
    """The graph with a pooling as a view and a reduction; the places that it gives too are looked at by nobody."""
    (source,) = taken(graph.nodes[index])

    def parts(probe: int) -> Items:
        return Items((*shape_at(graph, source, probe)[:-1], shape_at(graph, index, probe)[-1], window))

    def make(builder: Builder) -> Node:
        seen = builder.add("view", builder.old(source), parts)
        return builder.add(_POOLS[graph.nodes[index].target], seen, Items((len(graph.shape(source)),)))

    gotten = (one for one in graph.users[index] if graph.nodes[one].target == "getitem")
    same = (Rewrite(one, "", lambda builder: builder.old(index)) for one in gotten)
    return rewritten(graph, Rewrite(index, "", make), *same)
