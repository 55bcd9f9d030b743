"""Which values 16 bits hold exactly: what tensor cores may multiply, and scratch memory keep in half the bytes."""

from __future__ import annotations

from dataclasses import replace
from math import frexp

from tilewright.playbook.loops.index import Atom
from tilewright.playbook.loops.ir import Expr, Node, Program
from tilewright.records import DType

Formats = frozenset[DType]

HALVES: Formats = frozenset((DType.BF16, DType.F16))
_NONE: Formats = frozenset()
_BITS = {DType.BF16: 8, DType.F16: 11}  # of the significand
_ROUNDED = {"round_bf16": frozenset((DType.BF16,)), "round_f16": frozenset((DType.F16,))}
_ROUNDED |= {"round_f8e4m3": HALVES, "round_f8e5m2": HALVES}
_LOADED = {DType.BF16: _ROUNDED["round_bf16"], DType.F16: _ROUNDED["round_f16"]}
_LOADED |= dict.fromkeys((DType.F8E4M3, DType.F8E5M2, DType.I8, DType.U8, DType.BOOL), HALVES)
_KEEPING = ("neg", "abs", "relu", "maximum", "minimum", "to_float", "wrap_i8", "wrap_u8")  # of their operands' formats


def formats_of(program: Program, value: Expr) -> Formats:
    """The 16-bit formats in which a value is what it is, whatever is loaded."""
    if value.op == "load":
        return _LOADED.get(program.buffers[value.buffer].dtype, _NONE)
    if value.op == "constant":
        return _formats_of_number(value.data)
    if value.kind == "bool":
        return HALVES
    if value.op in _ROUNDED:
        return _ROUNDED[value.op] | (formats_of(program, value.args[0]) if value.op[6:8] == "f8" else _NONE)
    low, high = _span(program, value)
    if value.kind == "int" and low >= -256 and high <= 256:
        return HALVES
    parts = value.args[1:] if value.op == "where" else value.args
    if (value.op in _KEEPING or value.op == "where") and parts:
        return HALVES.intersection(*(formats_of(program, one) for one in parts))
    return _NONE


def _span(program: Program, value: Expr) -> tuple[float, float]:
    """The least and the largest that a whole number can be, as far as its last operations tell."""
    endless = (float("-inf"), float("inf"))
    if value.op == "constant" and isinstance(value.data, (int, float)):
        return value.data, value.data
    if value.op == "load":
        dtype = program.buffers[value.buffer].dtype
        return {DType.I8: (-128.0, 127.0), DType.U8: (0.0, 255.0), DType.BOOL: (0.0, 1.0)}.get(dtype, endless)
    if value.op == "bitwise_and":
        for one in value.args:
            if one.op == "constant" and isinstance(one.data, int) and one.data >= 0:
                return 0.0, float(one.data)
    if value.op in ("add", "sub"):
        (low, high), (other_low, other_high) = (_span(program, one) for one in value.args)
        return (low + other_low, high + other_high) if value.op == "add" else (low - other_high, high - other_low)
    if value.op in ("to_int", "wrap_i32"):
        return _span(program, value.args[0])
    return endless


def _formats_of_number(number: object) -> Formats:
    if not isinstance(number, (bool, int, float)):
        return _NONE
    value = float(number)
    if value != value or abs(value) in (0.0, float("inf")):
        return HALVES
    part, exponent = frexp(abs(value))
    fits = {one for one, bits in _BITS.items() if (part * 2**bits).is_integer()}
    return frozenset(fits if -13 <= exponent <= 15 else fits - {DType.F16} if -125 <= exponent <= 127 else ())


def stripped(program: Program, value: Expr) -> Expr:
    """Without a rounding that changes nothing."""
    while value.op in ("round_bf16", "round_f16"):
        (wanted,) = _ROUNDED[value.op]
        if wanted not in formats_of(program, value.args[0]):
            break
        value = value.args[0]
    return value


def hoist_factors(program: Program) -> None:
    """What k does not change is multiplied by the sum of a product, where that leaves operands of 16 bits."""
    made: list[Node] = []
    for node in program.nodes:
        made.append(node)
        if node.kind != "reduction" or node.op != "sum" or node.body.op != "mul" or node.body.kind != "float":
            continue
        if HALVES & _common(program, node.body.args):
            continue
        inner = frozenset(node.inner)
        (first, left), (second, right) = (_without(one, inner) for one in node.body.args)
        if (left or right) and _common(program, (first, second)):
            made.append(_scaled(program, node, first, second, (*left, *right)))
    program.nodes = made


def _common(program: Program, factors: tuple[Expr, ...]) -> Formats:
    return HALVES.intersection(*(formats_of(program, stripped(program, one)) for one in factors))


def _without(value: Expr, inner: frozenset[Atom]) -> tuple[Expr, tuple[Expr, ...]]:
    """A product's operand without its factors that are the same for all of k, and these."""
    if value.op == "mul":
        for one, other in (value.args, value.args[::-1]):
            if not other.variables & inner:
                rest, factors = _without(one, inner)
                return rest, (*factors, other)
    return value, ()


def _scaled(program: Program, node: Node, first: Expr, second: Expr, factors: tuple[Expr, ...]) -> Node:
    """Makes the node the sum of the bare product, and answers with one that multiplies it."""
    exprs, indices, target = program.exprs, program.indices, node.buffer
    places = tuple(indices.of(one) for one in node.loops)
    node.buffer = program.buffer(f"{target.name}_bare", [one.size for one in node.loops], DType.F32)
    value = exprs.load(node.buffer, places)
    for one in factors:
        value = exprs.expr("mul", (value, one))
    scaled = Node("pointwise", target, node.loops, value, node.target)
    node.become(exprs.expr("mul", (first, second)), places)
    return scaled


def narrow_scratch(program: Program) -> None:
    """Scratch whose every reader rounds it to the same 16-bit format is kept in that format."""
    wanted: dict[str, Formats] = {}
    for node in program.nodes:
        for name, formats in _read_as(node).items():
            wanted[name] = wanted.get(name, HALVES) & formats
    for node in program.nodes:
        formats = wanted.get(node.buffer.name, _NONE)
        if node.buffer.dtype is DType.F32 and node.buffer.role == "scratch" and len(formats) == 1:
            made = replace(node.buffer, dtype=next(iter(formats)))
            program.buffers[made.name] = node.buffer = made


def _read_as(node: Node) -> dict[str, Formats]:
    """The buffers that a node reads, and to which format alone it rounds what it reads."""
    found: dict[str, Formats] = {node.initial: _NONE} if node.initial else {}
    seen: set[Expr] = set()
    stack = [node.body, *(one for index in node.target for one in index.lookups)]

    def note(load: Expr, formats: Formats) -> None:
        found[load.buffer] = found.get(load.buffer, HALVES) & formats

    def push(parent: Expr, one: Expr) -> None:
        if one.op == "load":
            note(one, _ROUNDED.get(parent.op, _NONE) if parent.op in ("round_bf16", "round_f16") else _NONE)
        if one not in seen:
            seen.add(one)
            stack.append(one)

    for one in stack:
        if one.op == "load":
            note(one, _NONE)
    while stack:
        one = stack.pop()
        for inner in (*one.args, *(other for index in one.indices for other in index.lookups)):
            push(one, inner)
    return found
