"""The one intermediate representation: buffers, expressions over index expressions, and nodes that fill buffers.

A node has loops, a body (an expression of its loop variables) and the place in its buffer where the value goes. The
kinds of nodes differ only in what happens between body and store: nothing, a reduction, a scan, or a sort.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.playbook.loops.index import Atom, Index, Indices
from tilewright.playbook.loops.sizes import Size, SizeTable
from tilewright.records import DType

Variables = Mapping[Atom, Index]
OnLoad = Callable[["Expr"], "Expr | None"]

_OPPOSITE = {"lt": "ge", "ge": "lt", "le": "gt", "gt": "le"}
KINDS = ("bool", "int", "float", "double")  # in the order in which operands are brought to one kind


def kind_of(dtype: DType) -> str:
    """The arithmetic of a dtype: floats are f32 inside a kernel but for f64, all integers 64 bits wide."""
    if dtype is DType.BOOL:
        return "bool"
    return "double" if dtype is DType.F64 else "float" if dtype.is_float else "int"


@dataclass(frozen=True, eq=False)
class Buffer:
    name: str
    shape: tuple[Size, ...]
    dtype: DType
    strides: tuple[Size, ...]  # of an input that is not dense: only another index rewrite
    role: str  # "input", "scratch", "output", or "changed" for the new content of an argument changed in place

    @property
    def bytes(self) -> int:
        total = self.dtype.itemsize
        for one in self.shape:
            total *= one.own
        return total


class Expr:
    """A value. `Exprs` makes equal expressions once, so that identity is equality and sharing is visible."""

    __slots__ = ("args", "data", "depth", "kind", "loads", "op", "serial", "size", "variables", "world")

    def __init__(self, world: Exprs, op: str, args: tuple[Expr, ...], kind: str, data: object, serial: int):
        self.world, self.op, self.args, self.kind, self.data, self.serial = world, op, args, kind, data, serial
        indices = self.indices
        inner = [one.variables for one in args] + [one.variables for one in indices]
        self.variables: frozenset[Atom] = frozenset[Atom]().union(*inner)
        below = [*args, *(one for index in indices for one in index.lookups)]
        own = (self,) if op == "load" else ()
        self.loads: tuple[Expr, ...] = tuple(dict.fromkeys((*(load for one in below for load in one.loads), *own)))
        self.depth: int = 1 + max((one.depth for one in below), default=0)
        self.size: int = 0  # how many operations it has, shared ones counted once; see `size_of`

    @property
    def buffer(self) -> str:
        """The name of the buffer that a load reads."""
        assert isinstance(self.data, tuple)
        return str(self.data[0])

    @property
    def places(self) -> tuple[Index, ...]:
        """Where in its buffer a load reads."""
        assert isinstance(self.data, tuple)
        places: tuple[Index, ...] = self.data[1]
        return places

    @property
    def index(self) -> Index:
        assert isinstance(self.data, Index)
        return self.data

    @property
    def indices(self) -> tuple[Index, ...]:
        return self.places if self.op == "load" else (self.index,) if self.op == "position" else ()

    @property
    def mask(self) -> Expr | None:
        return self.args[0] if self.op == "load" and self.args else None


class Exprs:
    """Makes expressions, each once; `serial` counts them and so gives an order that no hash decides."""

    def __init__(self, indices: Indices) -> None:
        self.indices = indices
        self._known: dict[tuple[object, ...], Expr] = {}

    def expr(self, op: str, args: tuple[Expr, ...] = (), kind: str = "float", data: object = None) -> Expr:
        key = (op, args, kind, repr(data) if isinstance(data, float) else data)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = Expr(self, op, args, kind, data, len(self._known))
        return found

    def constant(self, value: float, kind: str = "float") -> Expr:
        made = bool(value) if kind == "bool" else int(value) if kind == "int" else float(value)
        return self.expr("constant", (), kind, made)

    def position(self, index: Index) -> Expr:
        literal = index.constant.literal
        if index.is_constant and literal is not None:
            return self.constant(literal, "int")
        return self.expr("position", (), "int", index)

    def size(self, size: Size | int) -> Expr:
        return self.position(self.indices.number(size))

    def load(self, buffer: Buffer, places: Sequence[Index], mask: Expr | None = None) -> Expr:
        return self.expr("load", (mask,) if mask else (), kind_of(buffer.dtype), (buffer.name, tuple(places)))

    def number(self, name: str, text: str, kind: str) -> Expr:
        """A number of the plan: its name in a kernel and its plan expression."""
        return self.expr("number", (), kind, (name, text))

    def convert(self, value: Expr, kind: str) -> Expr:
        if value.kind == kind:
            return value
        if value.op == "constant" and isinstance(value.data, (int, float)) and abs(value.data) < 1 << 62:
            return self.constant(value.data, kind)
        return self.expr(f"to_{kind}", (value,), kind)

    def compared(self, op: str, first: Expr, second: Expr) -> Expr:
        """A comparison, or what the bounds of the difference of two indices say of it."""
        made = self.expr(op, (first, second), "bool")
        if first.op != "position" or second.op not in ("position", "constant"):
            return made
        other = second.index if second.op == "position" else self.indices.number(int(str(second.data)))
        least, most = (first.index - other).bounds
        always = self.indices.sizes.always
        known = {
            "lt": always(lambda one: one < 0, most),
            "ge": always(lambda one: one >= 0, least),
            "le": always(lambda one: one <= 0, most),
            "gt": always(lambda one: one > 0, least),
        }
        return self.constant(known[op], "bool") if known[op] or known[_OPPOSITE[op]] else made

    def all_of(self, first: Expr, second: Expr) -> Expr:
        """Both of two tests, of which one may be known."""
        for one, other in ((first, second), (second, first)):
            if one.op == "constant":
                return other if one.data else one
        return self.expr("and", (first, second), "bool")

    def both(self, first: Expr | None, second: Expr | None) -> Expr | None:
        if first is None or second is None or first is second:
            return first or second
        return self.all_of(first, second)

    def select(self, condition: Expr, inside: Expr, outside: Expr) -> Expr:
        if condition.op == "constant":
            return inside if condition.data else outside
        return inside if inside is outside else self.expr("where", (condition, inside, outside), inside.kind)

    def within(self, index: Index, low: Size | int | None, high: Size | int | None) -> Expr | None:
        """The test low <= index < high, or None where the bounds show that it always holds."""
        sizes = self.indices.sizes
        least, most = index.bounds
        made = None
        if low is not None:
            bound = sizes.size(low)
            if not sizes.always(int.__ge__, least, bound.values):
                made = self.expr("ge", (self.position(index), self.size(bound)), "bool")
        if high is not None:
            bound = sizes.size(high)
            if not sizes.always(int.__lt__, most, bound.values):
                made = self.both(made, self.expr("lt", (self.position(index), self.size(bound)), "bool"))
        return made

    def guarded(self, condition: Expr | None, inside: Expr, outside: Expr) -> Expr:
        """A choice whose loads are made only where they are needed."""
        return inside if condition is None else self.select(condition, rewrite(inside, mask=condition), outside)


def rewrite(
    value: Expr, variables: Variables | None = None, on_load: OnLoad | None = None, mask: Expr | None = None
) -> Expr:
    """The value with indices for variables, other values for loads, and every load under one more mask."""
    known: dict[Expr, Expr] = {}
    places: Variables = variables or {}
    world = value.world

    def visit(one: Expr) -> Expr:
        if one not in known:
            known[one] = made(one)
        return known[one]

    def made(one: Expr) -> Expr:
        if one.op == "position":
            return world.position(one.index.rewritten(places, visit))
        if not one.args and one.op != "load":
            return one
        args = tuple([visit(arg) for arg in one.args])
        if one.op == "load":
            inner = world.both(mask, args[0] if args else None)
            if inner is not None and inner.op == "constant":
                if not inner.data:
                    return world.constant(0, one.kind)
                inner = None
            moved = tuple([index.rewritten(places, visit) for index in one.places])
            one = world.expr("load", (inner,) if inner else (), one.kind, (one.buffer, moved))
            return (on_load and on_load(one)) or one
        if one.op in _OPPOSITE:
            return world.compared(one.op, *args)
        if one.op == "and":
            return world.all_of(*args)
        return world.select(*args) if one.op == "where" else world.expr(one.op, args, one.kind, one.data)

    return visit(value)


def size_of(value: Expr) -> int:
    """How many operations it has, shared ones counted once."""
    if value.size:
        return value.size - 1
    seen: set[Expr] = set()
    stack = [value]
    while stack:
        one = stack.pop()
        if one not in seen:
            seen.add(one)
            stack += one.args
            stack += [other for index in one.indices for other in index.lookups]
    count = sum(one.op not in ("load", "constant", "position", "number") and one.op[:3] != "to_" for one in seen)
    value.size = count + 1
    return count


def uses(value: Expr, names: Collection[str]) -> bool:
    """Whether any of these operations is in it."""
    seen: set[Expr] = set()
    stack = [value]
    while stack:
        one = stack.pop()
        if one.op in names:
            return True
        if one not in seen:
            seen.add(one)
            stack += [*one.args, *(other for index in one.indices for other in index.lookups)]
    return False


@dataclass(eq=False)
class Node:
    """What fills a buffer. `loops` enumerate the values that are stored, `inner` what a reduction goes over."""

    kind: str  # "pointwise", "reduction", "scan", "scatter", "sort"
    buffer: Buffer
    loops: tuple[Atom, ...]
    body: Expr
    target: tuple[Index, ...]  # where in the buffer
    inner: tuple[Atom, ...] = ()  # of a reduction; of a scan or sort its one axis, which is also the last of `loops`
    op: str = ""  # "sum", "prod", "max", "min", "argmax", "argmin"; of a scatter "set" or what it combines by
    index_buffer: Buffer | None = None  # of a sort or a running maximum: where the order goes
    initial: str = ""  # of a scatter: the buffer that it changes, filled by a node of its own

    def __post_init__(self) -> None:
        self._settle()

    def _settle(self) -> None:
        values = (self.body, *(one for index in self.target for one in index.lookups))
        self.loads: tuple[Expr, ...] = tuple(dict.fromkeys(load for one in values for load in one.loads))
        names = dict.fromkeys(one.buffer for one in self.loads)
        self.reads: dict[str, None] = names | ({self.initial: None} if self.initial else {})

    @property
    def iterations(self) -> int:
        """At the task's own sizes."""
        total = 1
        for one in (*self.loops, *(self.inner if self.kind == "reduction" else ())):
            total *= one.size.own
        return total

    @property
    def writes(self) -> tuple[Buffer, ...]:
        return (self.buffer, self.index_buffer) if self.index_buffer else (self.buffer,)

    def rewritten(self, on_load: OnLoad) -> tuple[Expr, tuple[Index, ...]]:
        """Its body and target with other values for loads."""
        body = rewrite(self.body, None, on_load)
        return body, tuple(one.rewritten({}, lambda value: rewrite(value, None, on_load)) for one in self.target)

    def become(self, body: Expr, target: tuple[Index, ...], initial: str | None = None) -> None:
        self.body, self.target = body, target
        self.initial = self.initial if initial is None else initial
        self._settle()


@dataclass(eq=False)
class Program:
    """What a graph computes. Names of buffers are the program's own; inputs and outputs have the task's."""

    exprs: Exprs
    buffers: dict[str, Buffer] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    changed: dict[str, str] = field(default_factory=dict)  # from buffers to the inputs that take their content
    needs: dict[tuple[Size, Size], None] = field(default_factory=dict)  # sizes that are no longer than others
    notes: list[str] = field(default_factory=list)  # rewrites that made work disappear, a sentence each

    @property
    def indices(self) -> Indices:
        return self.exprs.indices

    @property
    def sizes(self) -> SizeTable:
        return self.exprs.indices.sizes

    def buffer(
        self,
        name: str,
        shape: Sequence[Size],
        dtype: DType,
        role: str = "scratch",
        strides: Sequence[Size] | None = None,
    ) -> Buffer:
        own = self.indices.strides(shape) if strides is None else tuple(strides)
        made = self.buffers[name] = Buffer(name, tuple(shape), dtype, own, role)
        return made

    def numel(self, buffer: Buffer) -> Size:
        return self.sizes.product(buffer.shape)

    def count(self, variables: Sequence[Atom]) -> Size:
        return self.sizes.product([one.size for one in variables])
