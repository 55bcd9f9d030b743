"""What is the same, and what lies side by side in memory, for WIDTH neighbouring columns that a thread takes at once.

A vector of columns begins at a multiple of its width. A fact about it holds if certain sizes are multiples of that:
`Vectors` answers with facts that hold at the task's own sizes and collects those sizes. The plan tests them in every
call, and where one fails the width is 1, of which every such fact is true.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.playbook.loops.grouping import Member
from tilewright.playbook.loops.index import Atom, Index
from tilewright.playbook.loops.ir import Buffer, Expr, Program, size_of
from tilewright.playbook.loops.sizes import Size

_SECTOR = 32  # bytes: the least that memory moves
_REQUEST = 4.0  # bytes that memory moves in the time that a warp's request takes
_DIVISION = 2.0  # likewise of a quotient or a remainder
_MOST_OPERATIONS = 1200  # of a vector's elements, which are unrolled
_VECTOR = 16  # bytes of a load

_BEFORE = {"ge": 0, "lt": 0, "gt": 1, "le": 1}  # comparisons, and whether the first place they tell apart is one later


class Vectors:
    def __init__(self, program: Program, width: int, unaligned: frozenset[str] = frozenset()) -> None:
        self.program, self.width = program, width
        self.unaligned = unaligned  # buffers whose first element may lie anywhere
        self.sizes: dict[Size, None] = {}  # multiples of the width, wherever the facts are to hold
        self._same: dict[Expr, bool] = {}

    # -- facts --

    def is_same(self, value: Expr) -> bool:
        """Whether a value is the same in all columns of a vector."""
        if not any(one.name == "column" for one in value.variables):
            return True
        if value not in self._same:
            self._same[value] = self._is_same(value)
        return self._same[value]

    def _is_same(self, value: Expr) -> bool:
        if value.op in _BEFORE and all(one.kind == "int" for one in value.args):
            first, second = (self._index_of(one) for one in value.args)
            if first is not None and second is not None:
                return self._is_on_one_side(first - second - _BEFORE[value.op])
        if value.op == "position":
            return self.step(value.index) == 0
        if value.op == "load" and any(self.step(one) != 0 for one in value.places):
            return False
        return all(self.is_same(one) for one in value.args)

    def _index_of(self, value: Expr) -> Index | None:
        if value.op == "position":
            return value.index
        if value.op == "constant" and isinstance(value.data, int):
            return self.program.indices.number(value.data)
        return None

    def _is_on_one_side(self, difference: Index) -> bool:
        """Whether all columns of a vector are below zero, or none."""
        step = self.step(difference)
        if step == 0:
            return True
        return step in (1, -1) and self._starts_whole(difference, step)

    def step(self, index: Index) -> int | None:
        """By how much an index grows from column to column of a vector; None where that is not the same everywhere."""
        total = 0
        for atom, factor in index.terms:
            step = self._step_of(atom)
            if step is None or (step and factor.literal is None):
                return None
            total += step * (factor.literal or 0)
        return total

    def _step_of(self, atom: Atom) -> int | None:
        if not any(one.name == "column" for one in atom.variables):
            return 0
        if atom.kind == "var":
            return 1
        if atom.kind == "lookup":
            return 0 if self.is_same(atom.looked_up) else None
        step = self.step(atom.inner)
        if step == 0:
            return 0
        if step not in (1, -1) or not self.holds(atom.size) or not self._starts_whole(atom.inner, step):
            return None
        return 0 if atom.kind == "div" else step

    def starts_whole(self, buffer: Buffer, places: Sequence[Index], step: int) -> bool:
        """Whether the elements that a vector reads or writes begin at a multiple of the width."""
        if self.width > 1 and buffer.name in self.unaligned:
            return False
        return self._starts_whole(self.program.indices.ravel(places, buffer.strides), step)

    def _starts_whole(self, index: Index, step: int) -> bool:
        """Whether the lowest of a vector's places is a multiple of the width."""
        sizes: list[Size] = [index.constant if step > 0 else index.constant + 1]
        for atom, factor in index.terms:
            if atom.kind == "var" and atom.name == "column" and (factor.is_always(1) or factor.is_always(-1)):
                continue
            own = atom.kind == "mod" and self._step_of(atom) == step and factor.is_always(1)
            if not own:  # a remainder that goes along begins as its columns do
                sizes.append(factor)
        if not all(self._divides(one) for one in sizes):
            return False
        for one in sizes:
            self._note(one)
        return True

    def _divides(self, size: Size) -> bool:
        return size.own % self.width == 0

    def holds(self, size: Size) -> bool:
        if not self._divides(size):
            return False
        self._note(size)
        return True

    def _note(self, size: Size) -> None:
        if size.literal is None or size.literal % self.width:
            self.sizes[size * -1 if size.own < 0 else size] = None

    # -- loads and stores --

    def packed_step(self, buffer: Buffer, places: Sequence[Index]) -> int:
        """1 or -1 where a vector of columns is a vector in memory, forwards or backwards; 0 where it is not."""
        step = self.step(self.program.indices.ravel(places, buffer.strides))
        return step if step in (1, -1) and self.starts_whole(buffer, places, step) else 0

    def load_step(self, load: Expr) -> int:
        """As `packed_step`, of a load that is made for all columns or for none."""
        if load.mask is not None and not self.is_same(load.mask):
            return 0
        return self.packed_step(self.program.buffers[load.buffer], load.places)


Stores = Sequence[tuple[Buffer, tuple[Index, ...]]]


def _stores_of(members: Sequence[Member]) -> Stores:
    return [(one.node.buffer, one.target) for one in members if one.node.kind != "reduction"]


def widths(program: Program, members: Sequence[Member], stores: Stores | None = None) -> list[int]:
    """Elements that a thread may take at once, the most first: vectors of 16 bytes of the narrowest tensor, and of no
    more than 32 of the widest."""
    sizes = {program.buffers[load.buffer].dtype.itemsize for one in members for load in one.loads if _moves(load)}
    sizes |= {buffer.dtype.itemsize for buffer, _ in (_stores_of(members) if stores is None else stores)}
    width = max(min(_VECTOR // min(sizes), 2 * _VECTOR // max(sizes)), 1) if sizes else 4
    operations = sum(size_of(one.body) for one in members)
    while width > 1 and width * operations > _MOST_OPERATIONS:
        width //= 2
    return [width >> step for step in range(width.bit_length())]


def _moves(value: Expr) -> bool:
    return any(one.name in ("column", "row") for one in value.variables)


def access_cost(
    program: Program,
    members: Sequence[Member],
    vectors: Vectors,
    written: Mapping[str, object],
    stores: Stores | None = None,
) -> tuple[float, bool]:
    """What an element costs in memory traffic, and whether all of it is made of vectors.

    In bytes: those that sectors have, and what requests and divisions take beside them.
    """
    cost, is_packed, seen = 0.0, True, set[Expr]()
    for one in members:
        weight = one.columns.own if one.columns is not None else 1
        for load in one.loads:
            if load in seen or load.buffer in written or not any(var.name == "column" for var in load.variables):
                continue
            seen.add(load)
            buffer = program.buffers[load.buffer]
            once = vectors.is_same(load)
            packed = not once and vectors.load_step(load) != 0
            is_packed = is_packed and (once or packed)
            cost += weight * _access(buffer, load.places, vectors, once, packed)
        if stores is None and one.node.kind != "reduction":
            if one.node.kind == "scatter":  # atomics: those of neighbouring threads are as far apart as their vectors
                is_packed = False
                cost += weight * (min(vectors.width * one.node.buffer.dtype.itemsize, _SECTOR) + _REQUEST)
                continue
            packed = vectors.packed_step(one.node.buffer, one.target) != 0
            is_packed = is_packed and packed
            cost += weight * _access(one.node.buffer, one.target, vectors, False, packed)
    for buffer, target in stores or ():
        cost += _access(buffer, target, vectors, False, vectors.packed_step(buffer, target) != 0)
    return cost, is_packed


def _access(buffer: Buffer, places: Sequence[Index], vectors: Vectors, once: bool, packed: bool) -> float:
    size = buffer.dtype.itemsize
    flat = vectors.program.indices.ravel(places, buffer.strides)
    divisions = _DIVISION * sum(atom.kind in ("div", "mod") for atom, _ in flat.terms)
    if once or packed:
        return (1.0 if packed else 1.0 / vectors.width) * size + (_REQUEST + divisions) / vectors.width
    step = vectors.step(flat)
    return min(abs(step) * size if step else _SECTOR, _SECTOR) + _REQUEST + divisions
