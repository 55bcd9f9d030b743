"""What is left of a graph beside its products, as a task: what other stages have stored are inputs of it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tilewright.playbook.families import TracedTask
from tilewright.playbook.gemms.graph import Graph
from tilewright.playbook.gemms.layouts import Tensor
from tilewright.playbook.gemms.program import Extent
from tilewright.playbook.places.sizes import dimension_texts
from tilewright.playbook.tracing import ProbeSet
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
