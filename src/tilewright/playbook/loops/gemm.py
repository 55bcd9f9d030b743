"""Products for the tensor cores: operands and results over rows, columns and k, and the tiles that suit a size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tilewright.playbook.loops.grouping import Group, Member
from tilewright.playbook.loops.index import Atom, Index
from tilewright.playbook.loops.ir import Buffer, Expr, Node, Program, rewrite
from tilewright.playbook.loops.narrow import formats_of, stripped
from tilewright.playbook.loops.sizes import Size
from tilewright.playbook.loops.vectors import Vectors, widths
from tilewright.records import DType

if TYPE_CHECKING:
    from tilewright.playbook.loops.codegen import KernelFile

Parts = dict[str, list[Atom]]

STEP_BYTES = 64  # of k in a slot, for every row and column of a tile
STAGES = 4
_SECTOR, _REQUEST = 32, 4.0  # bytes that memory moves at least, and in the time of a warp's request
_SUMS = ("reduction", "attention")  # nodes that make what an epilogue begins with
_WIDEST = 8  # columns of the result that a thread takes at once


@dataclass(frozen=True)
class Operand:
    """One factor, its places named `batch`, `line` and `column`; chunks of columns are what lies together in memory."""

    word: str  # a or b
    value: Expr
    is_turned: bool  # k goes down the lines
    vectors: Vectors
    element: DType

    @property
    def is_plain(self) -> bool:
        """Whether its elements are copied as they are, a chunk at once."""
        if (
            self.value.op != "load"
            or self.value.mask is not None
            or _buffer(self, self.value).dtype is not self.element
        ):
            return False
        return self.vectors.load_step(self.value) == 1


@dataclass(frozen=True)
class Product:
    group: Group
    node: Node
    sizes: dict[str, Size]  # batch, m, n and k
    element: DType  # what the tensor cores multiply; f32 as two TF32 parts
    factors: tuple[Expr, Expr]  # by batch, m, n and k
    a: Operand
    b: Operand
    members: tuple[Member, ...]  # by batch, line and column of the result
    vectors: Vectors  # of the result's columns

    @property
    def depth(self) -> int:
        """How far a step goes along k."""
        return STEP_BYTES // self.element.itemsize

    @property
    def is_copied(self) -> bool:
        return self.a.is_plain and self.b.is_plain

    @property
    def stages(self) -> int:
        """Slots of the ring: what is computed comes through registers, one step ahead."""
        return STAGES if self.is_copied else 2

    def own(self, word: str) -> int:
        return self.sizes[word].own


def read_product(file: KernelFile, group: Group) -> Product:
    """Of both ways to call one factor the first, that whose columns lie side by side in the result."""
    node = next(one for one in group.nodes if one.kind == "reduction")
    assert group.factors is not None
    first, second = (stripped(file.program, one) for one in group.factors)
    found = [_read(file, group, node, pair) for pair in ((first, second), (second, first))]
    return min(found, key=lambda one: _result_cost(file, group, one.members, one.vectors))


def _read(file: KernelFile, group: Group, node: Node, factors: tuple[Expr, Expr]) -> Product:
    program = file.program
    first, second = factors
    parts: Parts = {"batch": [], "m": [], "n": [], "k": list(node.inner)}
    for loop in node.loops:
        of_both = loop.size.is_always(1) or (loop in first.variables and loop in second.variables)
        parts["batch" if of_both else "m" if loop in first.variables else "n"].append(loop)
    sizes = {word: program.count(loops) for word, loops in parts.items()}
    both = formats_of(program, first) & formats_of(program, second)
    element = next((one for one in (DType.BF16, DType.F16) if one in both), DType.F32)

    a = read_operand(file, "a", first, parts, "m", "k", element)
    b = read_operand(file, "b", second, parts, "n", "k", element)
    members = result_members(program, group, node, parts)
    by_name = placed(program, parts, {})
    both_factors = rewrite(first, by_name), rewrite(second, by_name)
    vectors = result_vectors(file, group, members)
    return Product(group, node, sizes, element, both_factors, a, b, members, vectors)


def read_operand(file: KernelFile, word: str, value: Expr, parts: Parts, other: str, k: str, element: DType) -> Operand:
    """Along k, or turned, as it is cheaper to read."""
    ways = []
    for names in ({k: "column", other: "line"}, {k: "line", other: "column"}):
        moved = rewrite(value, placed(file.program, parts, names))
        ways.append(Operand(word, moved, names[k] == "line", _vectors(file, 16 // element.itemsize), element))
    return min(ways, key=_load_cost)


def result_members(program: Program, group: Group, node: Node, parts: Parts) -> tuple[Member, ...]:
    """The group's members as functions of the result's batch, line and column."""
    places = placed(program, parts, {"m": "line", "n": "column"})
    strides = program.indices.strides([one.size for one in node.loops])
    flat = program.indices.ravel([places[one] for one in node.loops], strides)
    return tuple(_moved(program, one, group.rows, flat) for one in group.members)


def _vectors(file: KernelFile, width: int) -> Vectors:
    return Vectors(file.program, width, file.unaligned)


def placed(program: Program, parts: Parts, names: dict[str, str]) -> dict[Atom, Index]:
    """The loops as parts of four numbers: batch, m, n and k, by these names."""
    indices, found = program.indices, dict[Atom, Index]()
    for word, loops in parts.items():
        flat = indices.of(indices.var(names.get(word, word), program.count(loops)))
        found |= dict(zip(loops, indices.unravel(flat, [one.size for one in loops]), strict=True))
    return found


def _moved(program: Program, one: Member, rows: Size, place: Index) -> Member:
    """A member of the group as a function of the result's line and column."""
    variables = {program.indices.var("row", rows): place}

    def moved(value: Expr) -> Expr:
        return rewrite(value, variables)

    target = tuple(index.rewritten(variables, moved) for index in one.target)
    return Member(one.node, moved(one.body), target, None)


def _load_cost(operand: Operand) -> float:
    """What is read for an element; a plain operand costs nothing more."""
    loads = [one for one in operand.value.loads if any(var.name in ("line", "column") for var in one.variables)]
    cost = sum(
        _access(operand.vectors, operand.vectors.load_step(one), _buffer(operand, one), one.places) for one in loads
    )
    return cost + (not operand.is_plain)


def _buffer(operand: Operand, load: Expr) -> Buffer:
    return operand.vectors.program.buffers[load.buffer]


def _access(vectors: Vectors, packed: int, buffer: Buffer, places: Sequence[Index]) -> float:
    """Bytes of memory's sectors for an element, and what requests of single elements take beside them."""
    step = vectors.step(vectors.program.indices.ravel(places, buffer.strides))
    size = buffer.dtype.itemsize
    return size / vectors.width if step == 0 else size if packed else 4 + size if step in (1, -1) else _SECTOR


def result_vectors(file: KernelFile, group: Group, members: Sequence[Member]) -> Vectors:
    """The width of vectors of a result's columns that costs least; among equals the widest."""
    later = [one for one in members if one.node.kind not in _SUMS]
    most = widths(file.program, later or [replace(one, body=file.program.exprs.constant(0)) for one in members])
    found = [_vectors(file, width) for width in most if width <= _WIDEST]
    return min(found, key=lambda one: _result_cost(file, group, members, one))


def _result_cost(file: KernelFile, group: Group, members: Sequence[Member], vectors: Vectors) -> float:
    """What is read and written for an element of the result, beside the operands."""
    made = {buffer.name for one in members for buffer in one.node.writes}
    loads = {load for one in members if one.node.kind not in _SUMS for load in one.loads if load.buffer not in made}
    cost = 0.0
    for load in sorted(loads, key=lambda one: one.serial):
        cost += _access(vectors, vectors.load_step(load), file.program.buffers[load.buffer], load.places)
    for one in members:
        if file.is_stored(group, one.node.buffer):
            packed = vectors.packed_step(one.node.buffer, one.target)
            cost += _access(vectors, packed, one.node.buffer, one.target) + _REQUEST / (vectors.width if packed else 1)
    return cost


# -- tiles --


@dataclass(frozen=True)
class Tile:
    rows: int
    columns: int
    warps_m: int
    warps_n: int
    efficiency: float  # of the tensor cores, with enough of them at work

    @property
    def threads(self) -> int:
        return 32 * self.warps_m * self.warps_n

    @property
    def sums(self) -> int:
        """Registers of a thread that hold sums."""
        return self.rows * self.columns // self.threads


TILES = (
    Tile(128, 128, 2, 4, 0.9),
    Tile(128, 256, 2, 4, 1.0),
    Tile(64, 64, 2, 2, 0.65),
    Tile(128, 64, 4, 2, 0.75),
    Tile(64, 128, 2, 4, 0.75),
    Tile(32, 128, 1, 4, 0.5),
    Tile(128, 32, 4, 1, 0.5),
)
# The parts of f32, and what is computed, take registers too: with more sums one block has a multiprocessor alone.
_MOST_SUMS = {DType.BF16: 128, DType.F16: 128, DType.F32: 32}
_MULTIPROCESSORS = 132
_CLOCK = 1.7e3  # cycles in a microsecond
_RATE = {DType.BF16: 1250.0, DType.F16: 1250.0, DType.F32: 200.0}  # products per cycle of a multiprocessor, by mma.sync
_CACHE, _MEMORY = 5.0e6, 4.0e6  # bytes that L2 and memory move in a microsecond
_LAUNCH = 2.5  # microseconds that one more launch takes
_STEP = 0.35  # microseconds until a tile's first step has arrived
_SPLITS = (1, 2, 4, 8, 16, 32, 64)
_LEAST_PIECE = 256  # of k
_REGISTERS, _OTHER_REGISTERS = 65536, 64  # of a multiprocessor; of a thread beside its sums
_SHARED = 220 << 10  # bytes of a multiprocessor
_LATENCY = 0.8  # microseconds until what was asked of memory can be used


@dataclass(frozen=True)
class Choice:
    """Tiles and numbers of pieces of k, the most promising first."""

    tiles: tuple[int, ...]
    splits: tuple[int, ...]


def choose(product: Product, most: int = 3) -> Choice:
    """By modelled time at the task's own sizes; sums are split where that pays even with one more launch."""
    m, n, k, batch = (product.own(word) for word in ("m", "n", "k", "batch"))
    most_sums = min(_MOST_SUMS[product.element], 128 if product.is_copied else 64)
    times = {
        (tile, splits): _modelled(product, TILES[tile], splits, m, n, k, batch)
        for tile in range(len(TILES))
        for splits in _SPLITS
        if (splits == 1 or k >= splits * _LEAST_PIECE) and TILES[tile].sums <= most_sums
    }
    best = sorted(times, key=lambda one: times[one])
    is_split = best[0][1] > 1
    kept = [one for one in best if (one[1] > 1) == is_split]
    return Choice(_first(most, (one[0] for one in kept)), _first(most, (one[1] for one in kept)))


def _first(most: int, found: Iterable[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(found))[:most]


def _modelled(product: Product, tile: Tile, splits: int, m: int, n: int, k: int, batch: int) -> float:
    """Microseconds: waves of tiles, or what their operands take from the caches, and the sums of pieces."""
    element = product.element
    down, across = -(-m // tile.rows), -(-n // tile.columns)
    tiles = down * across * batch * splits
    waves = -(-tiles // _MULTIPROCESSORS)
    per_tile = tile.rows * tile.columns * (-(-k // splits))
    alone = min(tiles / _MULTIPROCESSORS * tile.threads / 256, 1.0)  # few warps do not fill the tensor cores
    rate = _RATE[element] * tile.efficiency * max(alone, 0.4)
    compute = waves * per_tile / rate / _CLOCK
    moved = tiles * (tile.rows + tile.columns) * (k / splits) * element.itemsize / _CACHE
    memory = batch * (m + n) * k * element.itemsize / _MEMORY
    partial = (_LAUNCH + 2.0 * splits * batch * m * n * 4 / _CACHE) if splits > 1 else 0.0
    return max(compute, moved, memory, _waiting(product, tile, tiles, k / splits)) + _STEP + partial


def _waiting(product: Product, tile: Tile, tiles: int, k: float) -> float:
    """What a block that computes an operand waits for memory at every step, while only other blocks can work."""
    if product.is_copied:
        return 0.0
    registers = (tile.sums + _OTHER_REGISTERS) * tile.threads
    shared = product.stages * STEP_BYTES * (tile.rows + tile.columns)
    resident = max(min(_REGISTERS // registers, _SHARED // shared), 1)
    return -(-tiles // (resident * _MULTIPROCESSORS)) * (k / product.depth) * _LATENCY
