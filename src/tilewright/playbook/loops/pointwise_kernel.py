"""Pointwise launches: results divided into rows and columns so that vectors of columns are vectors in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewright.playbook.loops.emit import ElementScope, Scope, VectorScope
from tilewright.playbook.loops.grouping import Group, Member, levels_of
from tilewright.playbook.loops.index import Index
from tilewright.playbook.loops.ir import Expr, rewrite
from tilewright.playbook.loops.sizes import Size
from tilewright.playbook.loops.templates import THREADS
from tilewright.playbook.loops.tile_kernel import best_turned, write_turned
from tilewright.playbook.loops.vectors import Vectors, access_cost, widths

if TYPE_CHECKING:
    from tilewright.playbook.loops.codegen import KernelFile

_TALLEST = 65535  # blocks that a grid may have in its second dimension


@dataclass(frozen=True)
class Division:
    """The members of a group, seen in so many columns, and what holds of vectors of these."""

    columns: Size
    members: tuple[Member, ...]
    vectors: Vectors
    cost: float
    has_tail: bool  # the last vector may be incomplete


def write_pointwise(file: KernelFile, group: Group, name: str) -> None:
    division = _best_division(file, group)
    turned = best_turned(file, group) if group.kind == "rows" else None
    if turned is not None and turned.cost < division.cost:
        write_turned(file, group, name, turned)
        return
    rows = group.rows.over(division.columns)
    file.index_sizes[group.rows] = None
    writer, outer = file.writer(), Scope(1)
    vector = VectorScope(2, outer, division.has_tail)
    element = ElementScope(vector, division.vectors)
    by_node = {one.node: one for one in division.members}
    levels = levels_of(group)
    for one in sorted(group.members, key=levels.__getitem__):
        seen = by_node[one.node]
        file.place_value(group, seen, writer, element)
    width = file.width(name, division.vectors, division.columns, needs_whole=not division.has_tail)
    plan, columns = file.plan, file.plan.size(division.columns)
    lanes, bands, slabs = (plan.name(f"{word}_{name}") for word in ("lanes", "bands", "slabs"))
    count = f"ceil_div({columns}, {width} * {file.vectors_at_once})"
    lets = f"{lanes} = min(next_pow2(max({count}, 1)), {THREADS})"
    lets += f", {bands} = ceil_div({plan.size(rows)}, {THREADS} / {lanes})"
    lets += f", {slabs} = max(ceil_div({bands}, {_TALLEST}), 1)"
    plan.tail.append(f"let     {lets}")
    holes = {
        "width": width,
        "rows": rows,
        "columns": division.columns,
        "division": f"A thread takes WIDTH of {columns} columns" + (", the last fewer." if division.has_tail else "."),
        "before": outer.text,
        "loads": vector.text,
        "body": element.text,
        "stores": "\n".join(vector.stores),
    }
    left = f"    const index_t left = {writer.size(division.columns)} - column;"
    holes["left"] = left if division.has_tail else ""
    grid = f"dim3(ceil_div({count}, {lanes}), ceil_div({bands}, {slabs}), {slabs})"
    file.launch("pointwise", name, group, writer, grid, f"dim3({lanes}, {THREADS} / {lanes})", **holes)


def _best_division(file: KernelFile, group: Group) -> Division:
    """The division and the width of vectors that cost least; among equals the longest rows, then the widest."""
    found = [
        _divided(file, group, columns, width)
        for columns in _column_sizes(file, group)
        for width in widths(file.program, group.members)
    ]
    return min(found, key=lambda one: one.cost)


def _column_sizes(file: KernelFile, group: Group) -> Iterator[Size]:
    """All of the results in one row; then the last dimensions of any member, ever fewer."""
    sizes: dict[Size, None] = {group.rows: None}
    for one in group.members:
        for many in range(1, len(one.node.loops)):
            sizes[file.program.count(one.node.loops[many:])] = None
    return iter([one for one in sizes if one.divides(group.rows)])


def _divided(file: KernelFile, group: Group, columns: Size, width: int) -> Division:
    indices = file.program.indices
    row = indices.var("row", group.rows)
    place = indices.of(indices.var("row", group.rows.over(columns))) * columns
    place = place + indices.of(indices.var("column", columns))
    variables = {row: place}

    def moved(value: Expr) -> Expr:
        return rewrite(value, variables)

    def index(one: Index) -> Index:
        return one.rewritten(variables, moved)

    members = tuple(
        Member(one.node, moved(one.body), tuple(index(place) for place in one.target), None) for one in group.members
    )
    vectors = Vectors(file.program, width, file.unaligned)
    cost, is_packed = access_cost(file.program, members, vectors, group.written)
    whole = columns.own % width == 0
    has_tail = columns is group.rows and is_packed and width > 1 and not (columns.literal and whole)
    if not has_tail and not whole:
        cost = float("inf")
    lanes = columns.own / width
    idle = 1.0 if lanes >= THREADS else (1 << max(int(lanes) - 1, 0).bit_length()) / max(lanes, 1)
    return Division(columns, members, vectors, cost * idle, has_tail)
