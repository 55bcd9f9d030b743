"""What is left of a graph beside its products, as a row program: what other stages have stored are inputs of it."""

from __future__ import annotations

from dataclasses import replace

from tilewright.playbook.analysis import row_program
from tilewright.playbook.families import TracedTask
from tilewright.playbook.places.sizes import dimension_texts
from tilewright.playbook.products.graph import Graph
from tilewright.playbook.products.layouts import Tensor
from tilewright.playbook.products.program import Extent
from tilewright.playbook.row_program import RowProgram
from tilewright.records import Dimension, Task, TaskOutput, TensorInput


def rest_program(traced: TracedTask, graph: Graph, given: tuple[Tensor, ...], made: tuple[Tensor, ...]) -> RowProgram:
    """The part of a graph that makes some tensors from others."""
    task = _between(traced.task, given, made)
    return row_program(TracedTask(task, graph.traces, traced.probes))


def _between(task: Task, given: tuple[Tensor, ...], made: tuple[Tensor, ...]) -> Task:
    """The task that begins with tensors in memory, in the order in which the graph has them, and ends with others."""
    sizes = _Sizes(task)
    own = {one.name: one for one in task.tensors}
    inputs = [
        own.get(one.name) or TensorInput(one.name, one.dtype, tuple(sizes.name(size) for size in one.extents))
        for one in given
    ]
    outputs = [TaskOutput(one.name, one.dtype, tuple(sizes.known(size) for size in one.extents)) for one in made]
    return replace(
        task,
        inputs=(*inputs, *task.numbers),
        outputs=tuple(outputs),
        dimensions=(*task.dimensions, *sizes.more),
        leading=(),
        derivative=None,
    )


class _Sizes:
    """Names for sizes: those of the task's dimensions, or new ones that stand for what they are."""

    def __init__(self, task: Task) -> None:
        self._names = {expression: name for name, expression in dimension_texts(task).items()}
        self._taken = {one.name for one in task.dimensions}
        self.more: list[Dimension] = []

    def known(self, extent: Extent) -> str | int:
        """Of a result, whose plan line the whole file has."""
        return self._names.get(extent.expression, extent.size)

    def name(self, extent: Extent) -> str:
        if extent.expression not in self._names:
            made = f"size_{len(self.more)}"
            while made in self._taken:
                made += "_"
            self._names[extent.expression] = made
            # It never varies by itself: no number is to be explained by it.
            self.more.append(Dimension(made, extent.size, varies=False))
        return self._names[extent.expression]
