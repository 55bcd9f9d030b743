"""Pooling of neighbouring columns without overlap, as a reduction of parts of a dimension.

Where a window is as wide as its step, the windows are parts of the dimension. A length that is no whole number of
windows leaves elements over; files made from this take whole numbers only, and what was traced is seen as if it had
been one.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.playbook.errors import NotSupported
from tilewright.playbook.families import TracedTask
from tilewright.playbook.products.graph import CONVOLUTION, renumbered
from tilewright.playbook.tracing import Items, Node, ProbeSet, Trace, TracedArgument, TracedNode, TracedTensor
from tilewright.records import Task

_POOLS = {"max_pool2d_with_indices": "amax", "avg_pool2d": "mean", "max_pool1d": "amax", "avg_pool1d": "mean"}


def with_whole_windows(traced: TracedTask) -> TracedTask:
    """The task with its poolings as reductions, and lengths that are whole numbers of windows."""
    if CONVOLUTION in traced.targets:
        return traced  # whose results are no whole numbers of anything
    for index, node in enumerate(traced.traces[0].nodes):
        window = _window(node)
        if window:
            lengths = tuple(_shape(trace.nodes[_first(node)])[-1] for trace in traced.traces)
            traced = _rounded(traced, lengths, window)
            return with_whole_windows(
                replace(traced, traces=tuple(_without(trace, index, window) for trace in traced.traces))
            )
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


def _first(node: TracedNode) -> int:
    first = node.arguments[0]
    assert isinstance(first, Node)
    return first.index


def _shape(node: TracedNode) -> tuple[int, ...]:
    result = node.results[0]
    assert result is not None
    return result.shape


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
    changed = _Lengths(traced.traces, lengths, whole)
    return TracedTask(
        _multiples(traced.task, names, window),
        tuple(changed.trace(place) for place in range(len(whole))),
        ProbeSet(probes, traced.probes.fixed),
    )


def _multiples(task: Task, names: list[str], window: int) -> Task:
    """The task for such sizes only; one whose own size is none is left as it is, and its files then decline it."""
    dimensions = tuple(
        replace(one, multiple_of=one.multiple_of * window)
        if one.name in names and one.formula is None and one.size % (one.multiple_of * window) == 0
        else one
        for one in task.dimensions
    )
    return replace(task, dimensions=dimensions)


class _Lengths:
    """A length of one dimension put in the place of another, wherever the graphs have it."""

    def __init__(self, traces: tuple[Trace, ...], old: tuple[int, ...], new: tuple[int, ...]) -> None:
        self._traces, self._old, self._new = traces, old, new

    def trace(self, place: int) -> Trace:
        nodes = tuple(self._node(place, index) for index in range(len(self._traces[0].nodes)))
        return replace(self._traces[place], nodes=nodes)

    def _node(self, place: int, index: int) -> TracedNode:
        node = self._traces[place].nodes[index]
        results = tuple(
            None if one is None else self._tensor(place, index, number, one) for number, one in enumerate(node.results)
        )
        return replace(node, results=results)

    def _tensor(self, place: int, index: int, number: int, tensor: TracedTensor) -> TracedTensor:
        shapes = [trace.nodes[index].results[number] for trace in self._traces]
        sizes = zip(*(one.shape for one in shapes if one is not None), strict=True)
        shape = tuple(self._new[place] if size == self._old else size[place] for size in sizes)
        return TracedTensor(shape, tensor.dtype)


# -- nodes --


def _without(trace: Trace, place: int, window: int) -> Trace:
    """The graph with a pooling as a view and a reduction; the places that it gives too are looked at by nobody."""
    made: list[TracedNode] = []
    numbers: dict[int, int] = {}
    for index, node in enumerate(trace.nodes):
        if index != place:
            if node.target == "getitem" and _first(node) == place:
                numbers[index] = numbers[place]
                continue
            made.append(renumbered(node, numbers))
            numbers[index] = len(made) - 1
            continue
        before, result = made[numbers[_first(node)]], node.results[0]
        assert result is not None
        shape = (*_shape(before)[:-1], result.shape[-1], window)
        parts = TracedTensor(shape, result.dtype)
        made.append(TracedNode("view", (Node(numbers[_first(node)]), Items(shape)), {}, (parts,)))
        dims: TracedArgument = Items((len(shape) - 1,))
        made.append(TracedNode(_POOLS[node.target], (Node(len(made) - 1), dims), {}, (result,)))
        numbers[index] = len(made) - 1
    return Trace(tuple(made), tuple(numbers[one] for one in trace.outputs))
