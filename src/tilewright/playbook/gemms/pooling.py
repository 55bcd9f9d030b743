"""Pooling of neighbouring columns without overlap, as a reduction of parts of a dimension.

Where a window is as wide as its step, the windows are parts of the dimension. A length that is no whole number of
windows leaves elements over; files made from this take whole numbers only, and what was traced is seen as if it had
been one.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.playbook.errors import NotSupported
from tilewright.playbook.families import TracedTask
from tilewright.playbook.gemms.graph import CONVOLUTION, Builder, Graph, Rewrite, rewritten, shape_at, taken
from tilewright.playbook.tracing import Items, Node, ProbeSet, Trace, TracedNode, TracedTensor
from tilewright.records import Task

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
        raise NotSupported(f"the playbook cannot tell how many windows of {window} there are at other sizes")
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
