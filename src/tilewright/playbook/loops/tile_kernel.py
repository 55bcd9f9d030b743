"""Launches whose results and operands lie side by side along different dimensions: turned in shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewright.playbook.loops.emit import ElementScope, Scope, VectorScope
from tilewright.playbook.loops.grouping import Group, Member, levels_of
from tilewright.playbook.loops.index import Atom, Index
from tilewright.playbook.loops.ir import Expr, rewrite
from tilewright.playbook.loops.sizes import Size
from tilewright.playbook.loops.templates import THREADS
from tilewright.playbook.loops.vectors import Vectors, access_cost

if TYPE_CHECKING:
    from tilewright.playbook.loops.codegen import KernelFile

_BANK = 4  # bytes
_SIDE, _MOST_SHARED = 64, 48 << 10  # elements, and bytes that a block has without asking
_SHORTEST = 16  # of a dimension along which squares are read
_TURN = 6.0  # bytes that memory moves while an element passes through shared memory


@dataclass(frozen=True)
class Turned:
    """A group seen along two dimensions: its results' last one, and one along which some operands lie side by side."""

    columns: Size
    downs: Size
    rest: Size
    members: tuple[Member, ...]
    squares: dict[Expr, Expr]  # loads, and the same with the two dimensions in each other's place
    vectors: Vectors
    cost: float


def best_turned(file: KernelFile, group: Group) -> Turned | None:
    """The dimension that costs least; None where no operand lies along another one than results do."""
    loops = max((one.node.loops for one in group.members), key=len)
    found = [one for down in loops[:-1] if (one := _turned(file, group, loops, down)) is not None]
    return min(found, key=lambda one: one.cost, default=None)


def _turned(file: KernelFile, group: Group, loops: tuple[Atom, ...], down: Atom) -> Turned | None:
    columns = loops[-1].size
    if min(columns.own, down.size.own) < _SHORTEST or file.program.count(loops) is not group.rows:
        return None
    rest = [one for one in loops[:-1] if one is not down]
    straight, swapped = (_places(file, loops, down, rest, names) for names in (("column", "down"), ("down", "column")))
    row = file.program.indices.var("row", group.rows)

    def seen(value: Expr, place: Index) -> Expr:
        return rewrite(value, {row: place})

    def index(one: Index) -> Index:
        return one.rewritten({row: straight}, lambda value: seen(value, straight))

    members = tuple(
        Member(one.node, seen(one.body, straight), tuple(index(at) for at in one.target), None) for one in group.members
    )
    buffers = [one.node.buffer for one in group.members]
    buffers += [file.program.buffers[load.buffer] for one in group.members for load in one.loads]
    widest = max(one.dtype.itemsize for one in buffers)
    width = max(_BANK // widest, 1)
    if columns.own % width or down.size.own % width:
        width = 1
    vectors = Vectors(file.program, width, file.unaligned)
    squares: dict[Expr, Expr] = {}
    for one in group.members:
        for load in one.loads:
            if load.buffer not in group.written and (turned := _square(load, straight, swapped, row, vectors)):
                squares[turned[0]] = turned[1]
    room = sum(_SIDE * (_SIDE + _BANK) * file.program.buffers[load.buffer].dtype.itemsize for load in squares)
    if not squares or room > _MOST_SHARED:
        return None
    kept = [Member(one.node, one.body, one.target, None) for one in members]
    for one in kept:
        one.loads = tuple(load for load in one.loads if load not in squares)
    cost, _ = access_cost(file.program, kept, vectors, group.written)
    cost += sum(file.program.buffers[load.buffer].dtype.itemsize + _TURN for load in squares)
    return Turned(columns, down.size, file.program.count(rest), members, squares, vectors, cost)


def _places(file: KernelFile, loops: tuple[Atom, ...], down: Atom, rest: list[Atom], names: tuple[str, str]) -> Index:
    """A result's place by the two dimensions, under these names, and all others counted together."""
    indices, program = file.program.indices, file.program
    parts = {loops[-1]: indices.of(indices.var(names[0], loops[-1].size))}
    parts[down] = indices.of(indices.var(names[1], down.size))
    flat = indices.of(indices.var("rest", program.count(rest)))
    parts |= dict(zip(rest, indices.unravel(flat, [one.size for one in rest]), strict=True))
    return indices.ravel([parts[one] for one in loops], indices.strides([one.size for one in loops]))


def _square(load: Expr, straight: Index, swapped: Index, row: Atom, vectors: Vectors) -> tuple[Expr, Expr] | None:
    """The load along results and along its own dimension, if it lies side by side along the latter alone."""
    along, across = rewrite(load, {row: straight}), rewrite(load, {row: swapped})
    if along.op != "load" or vectors.is_same(along) or vectors.load_step(along) or vectors.is_same(across):
        return None
    return (along, across) if vectors.load_step(across) == 1 else None


def write_turned(file: KernelFile, group: Group, name: str, turned: Turned) -> None:
    file.index_sizes[group.rows] = None
    writer = file.writer()
    fills, squares = [], []
    for number, (along, across) in enumerate(turned.squares.items()):
        dtype = file.program.buffers[along.buffer].dtype
        square = f"square{number}"
        pad = max(_BANK // dtype.itemsize, 1)
        squares.append(f"  __shared__ {dtype.cpp} {square}[TILE][TILE + {pad}];")
        before = Scope(3)
        vector = VectorScope(3, before)
        text = writer.vector(across, vector, 1)
        fills += [*before.lines, *vector.lines, f"      const auto {square}_read = {text};", "#pragma unroll"]
        fills.append(f"      for (int i = 0; i < WIDTH; ++i) {square}[along + i][across + turn] = {square}_read.at[i];")
        writer.squares[along] = f"{square}[across + turn][along + i]"
    before = Scope(3)
    vector = VectorScope(3, before)
    element = ElementScope(vector, turned.vectors)
    seen = {one.node: one for one in turned.members}
    levels = levels_of(group)
    for one in sorted(group.members, key=levels.__getitem__):
        file.place_value(group, seen[one.node], writer, element)
    width = file.width(name, turned.vectors, turned.columns, turned.downs)
    sides = [f"ceil_div({file.plan.size(one)}, {_SIDE})" for one in (turned.columns, turned.downs)]
    holes = {"width": width, "columns": turned.columns, "downs": turned.downs, "fill": "\n".join(fills)}
    holes |= {"squares": "\n".join(squares), "before": before.text, "loads": vector.text, "body": element.text}
    grid = f"{sides[0]} * {sides[1]} * {file.plan.size(turned.rest)}"
    file.launch("pointwise_tiles", name, group, writer, grid, str(THREADS), stores="\n".join(vector.stores), **holes)
