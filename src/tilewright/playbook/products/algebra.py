"""Products that need not be made: what is changed in a graph, and a sentence for each change.

A sum over the columns of a product is a product with summed columns, and a product with a diagonal matrix is a scaling
of rows or columns. Both give the same numbers to within f32's roundings.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tilewright.playbook.convolutions.algebra import mean_of_convolution
from tilewright.playbook.convolutions.pooled import pooled_convolution
from tilewright.playbook.convolutions.reading import pool_settings
from tilewright.playbook.errors import NotSupported
from tilewright.playbook.pooling.program import MEANS, POOLS
from tilewright.playbook.products.graph import PRODUCT, RESHAPES, TURNS, Graph, taken
from tilewright.playbook.products.norms import running_norm, split_norm
from tilewright.playbook.products.rewriting import Builder, Rewrite, rewritten, shape_at
from tilewright.playbook.tracing import Items, Node, Scalar, TracedArgument

SUMS = "the sum over a product's columns is made as a product with the summed weights: one column is left of all"
WINDOWS = "the means of a product's neighbouring columns are made as a product with the means of the weights"
DIAGONAL = "a product with a diagonal matrix is made as a scaling: no product is left"
POOLS_AS_ONE = "two poolings one after the other are made as one with larger windows"
_MOST_CELLS = 64  # of a window that one pooling goes through well
_NUMBERS = ("mul", "div", "add", "sub")


def simplified(graph: Graph) -> tuple[Graph, tuple[str, ...]]:
    """The graph with less work in it, and what was done in words."""
    notes: list[str] = []
    while True:
        found = next((one for index in range(len(graph.nodes)) if (one := _found(graph, index)) is not None), None)
        if found is None:
            alive = graph.extracted(graph.outputs, {}) if "" in notes else graph  # what is gone is no user of anything
            return alive, tuple(dict.fromkeys(filter(None, notes)))
        graph = rewritten(graph, found)
        notes.append(found.note)


def _found(graph: Graph, index: int) -> Rewrite | None:
    node = graph.nodes[index]
    if node.target == PRODUCT:
        return _diagonal(graph, index)
    if node.target in ("sum", "mean"):
        return _column_sum(graph, index) or _column_windows(graph, index) or mean_of_convolution(graph, index)
    if node.target == "getitem":
        return split_norm(graph, index) or running_norm(graph, index)
    if node.target in POOLS:
        return _one_pool(graph, index) or (pooled_convolution(graph, index) if node.target in MEANS else None)
    return None


# -- poolings of poolings --


def _one_pool(graph: Graph, index: int) -> Rewrite | None:
    """Two poolings of a kind, whose windows leave nothing out between them, are one with larger windows."""
    node = graph.nodes[index]
    (between,) = taken(node)
    first = taken(graph.nodes[between])[0] if graph.nodes[between].target == "getitem" else between
    before = graph.nodes[first]
    used = [one for one in graph.users[first] if graph.users[one] or one in graph.outputs]  # not the places
    alone = len(used) == len(graph.users[between]) == 1 and between not in graph.outputs
    if before.target != node.target or not alone:
        return None
    try:
        (inner, inner_sides), (outer, outer_sides) = pool_settings(before), pool_settings(node)
    except NotSupported:
        return None
    if any((*inner.paddings, *outer.paddings)) or max(*inner.dilations, *outer.dilations) > 1:
        return None
    if any(len(one.arguments) > 5 or one.keywords for one in (before, node)):
        return None
    steps = list(zip(inner.strides, inner_sides, strict=True))
    if any(stride > side if node.target not in MEANS else stride != side for stride, side in steps):
        return None
    sides = tuple((wide - 1) * stride + side for wide, (stride, side) in zip(outer_sides, steps, strict=True))
    strides = tuple(a * b for a, b in zip(inner.strides, outer.strides, strict=True))
    if math.prod(sides) > _MOST_CELLS:
        return None

    def make(builder: Builder) -> int:
        source = builder.numbers[taken(before)[0]]
        arguments = (Node(source), Items(sides), Items(strides))
        return builder.add(node.target, lambda _: arguments, partial(shape_at, graph, index), graph.dtype(index))

    return Rewrite(index, POOLS_AS_ONE, make)


# -- diagonal matrices --


def _diagonal(graph: Graph, index: int) -> Rewrite | None:
    a, b = taken(graph.nodes[index])
    for place, one, other in ((0, a, b), (1, b, a)):
        inner = graph.nodes[one]
        if inner.target != "diag_embed" or len(inner.arguments) > 1 or inner.keywords or len(graph.shape(other)) != 2:
            continue
        (vector,) = taken(inner)

        def make(builder: Builder, place: int = place, vector: int = vector, other: int = other) -> int:
            scale, dtype = builder.numbers[vector], graph.dtype(index)
            if place == 0:
                rows = scale
                scale = builder.add(
                    "unsqueeze",
                    lambda _: (Node(rows), -1),
                    lambda probe: (shape_at(graph, index, probe)[0], 1),
                    graph.dtype(vector),
                )
            scaled, matrix = scale, builder.numbers[other]
            return builder.add(
                "mul",
                lambda _: (Node(matrix), Node(scaled)),
                lambda probe: shape_at(graph, index, probe),
                dtype,
                "Tensor",
            )

        return Rewrite(index, DIAGONAL, make)
    return None


# -- sums over columns --


@dataclass(frozen=True)
class _Step:
    """One operation between a product and the sum over its columns: with a number, or with one number per column."""

    node: int
    other: int | None  # the node with the columns' numbers; None: a number of the graph's own


def _column_sum(graph: Graph, index: int) -> Rewrite | None:
    """sum(x @ W + bias) over the columns is x @ sum(W) + sum(bias)."""
    node = graph.nodes[index]
    dims = node.arguments[1] if len(node.arguments) > 1 else None
    (inner,) = taken(node)
    shape = graph.shape(inner)
    if not isinstance(dims, Items) or [int(str(one)) % len(shape) for one in dims.values] != [len(shape) - 1]:
        return None
    steps, product = _steps_to_product(graph, inner)
    if product is None or len(shape) != 2:
        return None
    a, b = taken(graph.nodes[product])
    weights = graph.nodes[b]
    turned = weights.target in TURNS and graph.nodes[taken(weights)[0]].target == "input"
    if len(graph.shape(b)) != 2 or not (turned or weights.target == "input") or graph.dtype(b) != "float32":
        return None
    keep = len(node.arguments) > 2 and bool(node.arguments[2])

    def make(builder: Builder) -> int:
        writer = _SumWriter(graph, builder, product, keep)
        total = writer.product(a, taken(weights)[0] if turned else b, turned)
        for step in steps:
            total = writer.step(total, step)
        if node.target == "mean":
            total = writer.scaled("div", total)
        return total

    return Rewrite(index, SUMS, make)


def _column_windows(graph: Graph, index: int) -> Rewrite | None:
    """The mean of every so many neighbouring columns of x @ W + bias is x @ mean(W) + mean(bias)."""
    node = graph.nodes[index]
    (inner,) = taken(node)
    shape, dims = graph.shape(inner), node.given(1, "dim")
    last = isinstance(dims, Items) and [int(str(one)) % len(shape) for one in dims.values] == [len(shape) - 1]
    if node.target != "mean" or not last or graph.nodes[inner].target not in RESHAPES:
        return None
    while graph.nodes[inner].target in RESHAPES:
        if len(graph.users[inner]) != 1 or inner in graph.outputs:
            return None
        (inner,) = taken(graph.nodes[inner])
    steps, product = _steps_to_product(graph, inner)
    if product is None or len(graph.shape(product)) != 2 or graph.shape(product)[1] != shape[-2] * shape[-1]:
        return None
    a, b = taken(graph.nodes[product])
    weights = graph.nodes[b]
    turned = weights.target in TURNS and graph.nodes[taken(weights)[0]].target == "input"
    if not turned or graph.dtype(b) != "float32":
        return None
    writer = _WindowWriter(graph, index, product, shape[-1])
    return Rewrite(index, WINDOWS, lambda builder: writer.write(builder, a, taken(weights)[0], steps))


@dataclass(frozen=True)
class _WindowWriter:
    graph: Graph
    mean: int
    old_product: int
    wide: int  # columns of a window

    def write(self, builder: Builder, a: int, weights: int, steps: list[_Step]) -> int:
        means = self._means(builder, weights)
        inner = partial(self._inner, weights)
        turned = builder.add(
            "transpose", lambda _: (Node(means), 0, 1), lambda probe: (inner(probe), self._columns(probe)), "float32"
        )
        given = builder.numbers[a]
        total = builder.add(PRODUCT, lambda _: (Node(given), Node(turned)), self._shape, "float32")
        for step in steps:
            total = self._step(builder, total, step)
        result = partial(shape_at, self.graph, self.mean)
        return builder.add("view", lambda probe: (Node(total), Items(result(probe))), result, "float32")

    def _step(self, builder: Builder, total: int, step: _Step) -> int:
        """The same operation on the means, for which a number stays what it is."""
        other = None if step.other is None else self._means(builder, step.other)

        def arguments(probe: int) -> tuple[TracedArgument, ...]:
            number = self.graph.traces[probe].nodes[step.node].arguments[1]
            return Node(total), number if other is None else Node(other)

        return builder.add(self.graph.nodes[step.node].target, arguments, self._shape, "float32", "Tensor")

    def _means(self, builder: Builder, given: int) -> int:
        """Of every so many neighbours along the first dimension."""
        old = builder.numbers[given]

        def parted(probe: int) -> tuple[int, ...]:
            return self._columns(probe), self.wide, *shape_at(self.graph, given, probe)[1:]

        seen = builder.add("view", lambda probe: (Node(old), Items(parted(probe))), parted, "float32")
        return builder.add(
            "mean", lambda _: (Node(seen), Items((1,))), lambda probe: (parted(probe)[0], *parted(probe)[2:]), "float32"
        )

    def _inner(self, weights: int, probe: int) -> int:
        return shape_at(self.graph, weights, probe)[1]

    def _columns(self, probe: int) -> int:
        return shape_at(self.graph, self.old_product, probe)[1] // self.wide

    def _shape(self, probe: int) -> tuple[int, ...]:
        return shape_at(self.graph, self.old_product, probe)[0], self._columns(probe)


def _steps_to_product(graph: Graph, index: int) -> tuple[list[_Step], int | None]:
    """The operations from a product to a node, each used by the next alone; None where there is no such way."""
    steps: list[_Step] = []
    while graph.nodes[index].target != PRODUCT:
        node = graph.nodes[index]
        nodes = taken(node)
        first = node.arguments[0] if node.arguments else None
        if node.target not in _NUMBERS or not isinstance(first, Node) or len(node.arguments) != 2 or node.keywords:
            return [], None
        if index in graph.outputs or len(graph.users[index]) != 1:
            return [], None
        if len(nodes) == 1:
            steps.insert(0, _Step(index, None))
        elif node.target in ("add", "sub") and len(graph.shape(nodes[1])) == 1 and _is_given(graph, nodes[1]):
            steps.insert(0, _Step(index, nodes[1]))
        else:
            return [], None
        index = first.index
    alone = len(graph.users[index]) == 1 and index not in graph.outputs
    return (steps, index) if alone else ([], None)


def _is_given(graph: Graph, index: int) -> bool:
    return all(graph.nodes[one].target in {"input", *RESHAPES} for one in graph.ancestors(index))


@dataclass(frozen=True)
class _SumWriter:
    graph: Graph
    builder: Builder
    old_product: int
    keep: bool  # whether the summed dimension stays, with one element

    def _rows(self, probe: int) -> int:
        return shape_at(self.graph, self.old_product, probe)[0]

    def _columns(self, probe: int) -> int:
        return shape_at(self.graph, self.old_product, probe)[1]

    def product(self, a: int, weights: int, turned: bool) -> int:
        """x times the summed weights: a vector with one element per row."""
        new_weights, new_a = self.builder.numbers[weights], self.builder.numbers[a]
        summed = self.builder.add(
            "sum",
            lambda _: (Node(new_weights), Items((0 if turned else 1,))),
            lambda probe: (shape_at(self.graph, a, probe)[1],),
            "float32",
            "dim_IntList",
        )
        made = self.builder.add(
            PRODUCT, lambda _: (Node(new_a), Node(summed)), lambda probe: (self._rows(probe),), "float32"
        )
        return self._vector("unsqueeze", lambda _: (Node(made), 1)) if self.keep else made

    def step(self, total: int, step: _Step) -> int:
        """The same operation on the sum: factors stay as they are, terms are summed over the columns too."""
        node = self.graph.nodes[step.node]
        if step.other is not None:
            columns = self.builder.numbers[step.other]
            term = self.builder.add(
                "sum", lambda _: (Node(columns), Items((0,))), lambda _: (), "float32", "dim_IntList"
            )
            return self._vector(node.target, lambda _: (Node(total), Node(term)))
        if node.target in ("mul", "div"):
            return self._vector(node.target, lambda probe: (Node(total), self._number(step.node, probe)))

        count = self.builder.add("scalar_tensor", lambda probe: (self._columns(probe),), lambda _: (), "float32")
        number = partial(self._number, step.node)
        term = self.builder.add("mul", lambda probe: (Node(count), number(probe)), lambda _: (), "float32", "Tensor")
        return self._vector(node.target, lambda _: (Node(total), Node(term)))

    def scaled(self, op: str, total: int) -> int:
        """By the number of columns."""
        return self._vector(op, lambda probe: (Node(total), self._columns(probe)))

    def _number(self, index: int, probe: int) -> Scalar:
        number = self.graph.traces[probe].nodes[index].arguments[1]
        assert not isinstance(number, (Node, Items))
        return number

    def _vector(self, target: str, arguments: Callable[[int], tuple[TracedArgument, ...]]) -> int:
        """A node with one element per row."""
        return self.builder.add(
            target, arguments, lambda probe: (self._rows(probe), *((1,) if self.keep else ())), "float32", "Tensor"
        )
