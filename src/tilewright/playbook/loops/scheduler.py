"""The one scheduler: nodes become groups, and every group becomes one launch.

It always succeeds: a node alone is a group. `prepare` puts the bodies of pointwise nodes into their readers, cuts long
rows and lets results be written where they go; `grouping` then joins nodes that agree on a row space.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from tilewright.playbook.loops.index import Atom
from tilewright.playbook.loops.ir import Expr, Node, Program, rewrite, size_of
from tilewright.records import DType

OPERATIONS_PER_BYTE = 12.0  # what a GPU can compute while it moves a byte
CACHED = 0.05  # a byte read again from a cache, against one from memory
LAUNCH = 10e6  # bytes that memory moves in the time of a launch
_FEW_ROWS, _PART = 256, 2048  # rows that fill a GPU, and columns that are worth a block
_TILE, _FILLING, _LEAST_PART = 64, 256, 512  # sides of a small product's tiles, tiles that fill a GPU, k of a part
_LARGEST_BODY = 300  # operations in an inlined body: beyond that compile times and registers suffer
_DEEPEST_BODY = 120  # expressions within expressions: beyond that the writers of C++ run out of stack
_ROUNDED = {"round_bf16": DType.BF16, "round_f16": DType.F16}
_EMPTY = {"sum": 0.0, "prod": 1.0, "max": float("-inf"), "min": float("inf")}


def prepare(program: Program) -> None:
    _live(program)
    _inline(program)
    _split(program)
    _name_outputs(program)
    _live(program)
    _narrow(program)


def _narrow(program: Program) -> None:
    """What is rounded to a 16-bit float anyway lies in memory as one."""
    initial = {one.initial for one in program.nodes}
    for node in program.nodes:
        buffer = node.buffer
        dtype = _ROUNDED.get(node.body.op) if node.kind == "pointwise" else None
        if dtype is None or buffer.role != "scratch" or buffer.dtype is not DType.F32 or buffer.name in initial:
            continue
        node.buffer = program.buffers[buffer.name] = replace(buffer, dtype=dtype)


def _live(program: Program) -> None:
    """Without nodes that nothing needs."""
    wanted, kept = dict.fromkeys(program.outputs), []
    for node in reversed(program.nodes):
        if any(one.name in wanted for one in node.writes):
            wanted |= node.reads
            kept.append(node)
    program.nodes = kept[::-1]


@dataclass
class _Readers:
    """Who reads each buffer, kept up to date while bodies change."""

    of: dict[str, dict[Node, None]] = field(default_factory=dict)

    def add(self, node: Node) -> None:
        for name in node.reads:
            self.of.setdefault(name, {})[node] = None

    def remove(self, node: Node) -> None:
        for name in node.reads:
            self.of[name].pop(node, None)


def _inline(program: Program) -> None:
    """Passes until nothing changes: whether a node pays depends on what its readers have become."""
    readers, order = _Readers(), {node: place for place, node in enumerate(program.nodes)}
    for node in program.nodes:
        readers.add(node)
    left = dict.fromkeys(program.nodes)
    changed = True
    while changed:
        changed = False
        for node in list(left):
            if _inlined(program, node, readers, order):
                readers.remove(node)
                del left[node]
                changed = True
    program.nodes = list(left)


def _inlined(program: Program, node: Node, readers: _Readers, order: dict[Node, int]) -> bool:
    name = node.buffer.name
    found = sorted(readers.of.get(name, {}), key=order.__getitem__)
    if node.kind != "pointwise" or node.buffer.role != "scratch" or any(one.initial == name for one in found):
        return False
    if size_of(node.body) > _LARGEST_BODY or node.body.depth > _DEEPEST_BODY:
        return False

    def body(load: Expr) -> Expr | None:
        if load.buffer != name:
            return None
        return rewrite(node.body, dict(zip(node.loops, load.places, strict=True)), mask=load.mask)

    longer = [(one, *one.rewritten(body)) for one in found]
    if any(size_of(made) > _LARGEST_BODY or made.depth > _DEEPEST_BODY for _, made, _ in longer):
        return False
    before = LAUNCH + sum(_cost(program, one, one.body) for one in (node, *found))
    if sum(_cost(program, one, made) for one, made, _ in longer) > before:
        return False
    for one, made, target in longer:
        readers.remove(one)
        one.become(made, target)
        readers.add(one)
    return True


def _cost(program: Program, node: Node, body: Expr) -> float:
    """The time of a node alone, in bytes that memory moves in it: arithmetic hides behind traffic, or the reverse."""
    moved, cached = float(node.buffer.bytes), 0.0
    for load in body.loads:
        buffer = program.buffers[load.buffer]
        wanted = node.iterations * buffer.dtype.itemsize
        moved += min(wanted, buffer.bytes)
        cached += max(wanted - buffer.bytes, 0)
    operations = size_of(body) + (node.kind == "reduction")
    return max(moved + cached * CACHED, node.iterations * operations / OPERATIONS_PER_BYTE)


def _split(program: Program) -> None:
    """Few long rows would leave most of the GPU idle: parts of a row are reduced first, then their results."""
    sizes, indices, exprs = program.sizes, program.indices, program.exprs
    for place, node in reversed(list(enumerate(program.nodes))):
        if node.kind == "reduction" and factors_of(node):
            _split_product(program, node, place)
            continue
        rows, columns = program.count(node.loops), program.count(node.inner)
        if node.kind != "reduction" or node.op not in _EMPTY or node.body.kind not in ("float", "double"):
            continue
        if rows.own >= _FEW_ROWS or columns.own < 8 * _PART:
            continue
        length = -(-columns.own // min(-(-columns.own // _PART), _FEW_ROWS))
        parts = columns.ceil_div(length)
        name = node.buffer.name
        part, inner = indices.var(f"{name}p", parts), indices.var(f"{name}i", sizes.size(length))
        flat = indices.of(part) * length + indices.of(inner)
        places = dict(zip(node.inner, indices.unravel(flat, [one.size for one in node.inner]), strict=True))
        test = exprs.within(flat, None, columns)
        body = exprs.guarded(test, rewrite(node.body, places), exprs.constant(_EMPTY[node.op], node.body.kind))
        dtype = DType.F64 if node.body.kind == "double" else DType.F32
        partial = program.buffer(f"{name}_parts", (*node.buffer.shape, parts), dtype)
        target = (*(indices.of(one) for one in node.loops), indices.of(part))
        first = Node("reduction", partial, (*node.loops, part), body, target, (inner,), node.op)
        node.inner = (part,)
        node.become(exprs.load(partial, target), node.target)
        program.nodes.insert(place, first)


def _split_product(program: Program, node: Node, place: int) -> None:
    """Few results of a long k: parts of k are multiplied first, each by other blocks, and then summed in order."""
    sizes, indices, exprs = program.sizes, program.indices, program.exprs
    factors = factors_of(node)
    assert factors is not None
    tiles = 1
    for own, other in (factors, factors[::-1]):
        sides = [one.size.own for one in node.loops if one in own.variables and one not in other.variables]
        tiles *= -(-math.prod(sides) // _TILE)
    tiles *= math.prod(one.size.own for one in node.loops if all(one in factor.variables for factor in factors))
    columns = program.count(node.inner)
    wanted = min(-(-_FILLING // tiles), columns.own // _LEAST_PART)
    if wanted < 2:
        return
    length = -(-columns.own // wanted)
    length += -length % _TILE
    parts, name = columns.ceil_div(length), node.buffer.name
    part, inner = indices.var(f"{name}p", parts), indices.var(f"{name}i", sizes.size(length))
    flat = indices.of(part) * length + indices.of(inner)
    places = dict(zip(node.inner, indices.unravel(flat, [one.size for one in node.inner]), strict=True))
    test = exprs.within(flat, None, columns)
    zero = exprs.constant(0.0, "float")
    first, second = (exprs.guarded(test, rewrite(one, places), zero) for one in factors)
    partial = program.buffer(f"{name}_parts", (parts, *(one.size for one in node.loops)), DType.F32)
    target = (indices.of(part), *(indices.of(one) for one in node.loops))
    body = exprs.expr("mul", (first, second))
    program.nodes.insert(place, Node("reduction", partial, (part, *node.loops), body, target, (inner,), "sum"))
    node.inner = (part,)
    node.become(exprs.load(partial, target), node.target)


def _name_outputs(program: Program) -> None:
    """A node whose buffer an output merely copies writes the output itself."""
    makers = {buffer.name: node for node in program.nodes for buffer in node.writes}
    renamed: dict[str, str] = {}
    for out in [one for one in program.nodes if one.buffer.role in ("output", "changed") and one.kind == "pointwise"]:
        if out.body.op != "load" or out.body.args:
            continue
        source = program.buffers[out.body.buffer]
        maker = makers.get(source.name)
        same = source.dtype is out.buffer.dtype and source.role == "scratch" and source.shape == out.buffer.shape
        if maker is None or not same or source.name in renamed:
            continue
        if out.body.places != tuple(program.indices.of(one) for one in out.loops):
            continue
        program.nodes.remove(out)
        renamed[source.name] = out.buffer.name
        if maker.buffer is source:
            maker.buffer = out.buffer
        else:
            maker.index_buffer = out.buffer
    if not renamed:
        return

    def moved(load: Expr) -> Expr | None:
        name = renamed.get(load.buffer)
        return load.world.expr("load", load.args, load.kind, (name, load.places)) if name else None

    for node in program.nodes:
        if any(name in renamed for name in node.reads):
            node.become(*node.rewritten(moved), renamed.get(node.initial, node.initial))


def factors_of(node: Node) -> tuple[Expr, Expr] | None:
    """The two operands of a matrix product: a sum of a * b, where each lacks loops that the other has."""
    if node.op != "sum" or node.body.op != "mul" or node.body.kind != "float":
        return None
    first, second = node.body.args
    loops = frozenset(one for one in node.loops if not one.size.is_always(1))
    own, other = (first.variables - second.variables) & loops, (second.variables - first.variables) & loops
    depth = _count(node.inner)
    large = all(_count(part) >= 4 for part in (own, other)) and depth >= 4
    return (first, second) if large and (first.variables | second.variables) >= loops else None


def _count(variables: frozenset[Atom] | tuple[Atom, ...]) -> int:
    total = 1
    for one in variables:
        total *= one.size.own
    return total
