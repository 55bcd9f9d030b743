"""Expressions as C++: each value once, and outside of a loop where it does not need the loop's variable."""

from __future__ import annotations

from tilewright.playbook.elementwise import OPERATIONS
from tilewright.playbook.loops.index import Index
from tilewright.playbook.loops.ir import Buffer, Expr, Program
from tilewright.playbook.loops.sizes import Size
from tilewright.playbook.loops.vectors import Vectors
from tilewright.records import DType

KIND = {"float": "float", "double": "double", "int": "long long", "bool": "bool"}


QUICK = frozenset(["exp", "tanh", "sigmoid", "silu", "gelu", "gelu_tanh"])  # with forms for results of 16 bits
_COMPARED = frozenset(["eq", "ne", "lt", "le", "gt", "ge"])


class Scope:
    """Lines of a block of code and the names of the values they define; values of outer scopes are seen too."""

    def __init__(self, depth: int, outer: Scope | None = None) -> None:
        self.lines: list[str] = []
        self.names: dict[Expr, str] = {}
        self.outer, self.indent = outer, "  " * depth

    def keeps(self, one: Expr) -> bool:
        """Whether a value is made here, and not in the scope around this one."""
        return self.outer is None or any(var.name == "column" for var in one.variables)

    def variable(self, name: str) -> str:
        return name

    def add(self, line: str) -> None:
        self.lines.append(self.indent + line)

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


class VectorScope(Scope):
    """What is done once for a vector of columns, before and after its elements; `column` is the first of them."""

    def __init__(self, depth: int, outer: Scope, has_tail: bool = False) -> None:
        super().__init__(depth, outer)
        self.has_tail = has_tail  # the last vector may be incomplete: `left` says how many elements there are
        self.packs: dict[Expr, str] = {}
        self.stores: list[str] = []


class ElementScope(Scope):
    """What is done for element `i` of a vector of columns."""

    outer: VectorScope

    def __init__(self, outer: VectorScope, vectors: Vectors) -> None:
        super().__init__(len(outer.indent) // 2 + 1, outer)
        self.vectors = vectors

    def keeps(self, one: Expr) -> bool:
        return not self.vectors.is_same(one)

    def variable(self, name: str) -> str:
        return "(column + i)" if name == "column" else name


class Writer:
    """The expressions of one kernel, of buffers that lie in memory by the names of `memory`."""

    def __init__(self, program: Program, memory: dict[str, str], is_quick: bool = False) -> None:
        self.program, self.memory, self.is_quick = program, memory, is_quick
        self.used: dict[str, tuple[DType, bool]] = {}  # memory the kernel is given, and whether it writes there
        self.sizes: dict[Size, None] = {}  # sizes that it is given
        self.numbers: dict[tuple[str, str], str] = {}  # numbers of the plan that it is given, and their kind
        self.tables: dict[Expr, str] = {}  # constants of the graph with several elements
        self.of_row: dict[str, str] = {}  # buffers whose value for this row is in a variable
        self.kept: dict[Expr, str] = {}  # loads of which a thread holds all vectors of its row, and where
        self.squares: dict[Expr, str] = {}  # loads that lie in shared memory, and element i of them there
        self.held: dict[Expr, str] = {}  # values that several sweeps need, and where a thread holds them
        self.filled: dict[Expr, None] = {}  # of them those that an earlier sweep has made
        self.made = 0

    def name(self, word: str = "v") -> str:
        self.made += 1
        return f"{word}{self.made}"

    def value(self, one: Expr, scope: Scope) -> str:
        if one.op == "load" and one.buffer in self.of_row:
            return self.of_row[one.buffer]
        if one.op == "constant":
            return _number(one)
        while scope.outer is not None and not scope.keeps(one):
            scope = scope.outer
        where: Scope | None = scope
        while where is not None:
            if one in where.names:
                return where.names[one]
            where = where.outer
        text = self._text(one, scope)
        if one.op == "table":
            scope.names[one] = text
            return text
        held = f"{self.held[one]}[item][i]" if one in self.held else ""
        if one in self.filled:
            text = f"HELD > 0 ? {held} : {text}"
        scope.names[one] = name = self.name()
        scope.add(f"const {KIND[one.kind]} {name} = {text};")
        if held and one not in self.filled:
            scope.add(f"if (HELD > 0) {held} = {name};")
        return name

    def _text(self, one: Expr, scope: Scope) -> str:
        if one.op == "position":
            return self.index(one.index, scope)
        if one.op == "load":
            return self._load(one, scope)
        if one.op == "number":
            assert isinstance(one.data, tuple)
            self.numbers[one.data] = one.kind
            return f"{one.data[0]}_"
        if one.op == "table":
            table = self.tables.setdefault(one, f"table{one.serial}")
            return f"{table}[{self.value(one.args[0], scope)}]"
        if one.op in _COMPARED and all(arg.op == "position" for arg in one.args):
            return OPERATIONS[one.op].text([self.index(arg.index, scope) for arg in one.args])
        args = [self.value(arg, scope) for arg in one.args]
        if one.op == "div" and one.kind == "float" and isinstance(scope, ElementScope) and not scope.keeps(one.args[1]):
            return f"tw::quotient({args[0]}, {args[1]})"
        if self.is_quick and one.op in QUICK and one.kind == "float":
            return f"tw::quick_{one.op}({', '.join(args)})"
        return OPERATIONS[one.op].text(args)

    def _load(self, one: Expr, scope: Scope) -> str:
        buffer = self.program.buffers[one.buffer]
        if one in self.squares:
            return _widened(self.squares[one], one, buffer.dtype)
        if isinstance(scope, ElementScope) and (step := scope.vectors.load_step(one)):
            at = f"{self._packed(one, scope.outer, step)}.at[{'i' if step > 0 else 'WIDTH - 1 - i'}]"
            return _widened(at, one, buffer.dtype)
        read = self.single(one, scope)
        if one in self.kept and isinstance(scope, ElementScope):
            return f"KEEP > 0 ? {_widened(f'{self.kept[one]}[item].at[i]', one, buffer.dtype)} : ({read})"
        return read

    def single(self, one: Expr, scope: Scope) -> str:
        """One element out of memory."""
        buffer = self.program.buffers[one.buffer]
        mask = self.value(one.mask, scope) if one.mask else ""
        read = _widened(f"*({self.place(buffer, one.places, scope, False)})", one, buffer.dtype)
        return f"{mask} ? {read} : ({KIND[one.kind]})0" if mask else read

    def _packed(self, one: Expr, scope: VectorScope, step: int) -> str:
        """The vector of a load, which a thread holds or reads here."""
        if one not in scope.packs:
            read = self.vector(one, scope, step)
            name = scope.packs[one] = self.name("p")
            held = f"KEEP > 0 ? {self.kept[one]}[item] : " if one in self.kept else ""
            scope.add(f"const auto {name} = {held}{read};")
        return scope.packs[one]

    def vector(self, one: Expr, scope: VectorScope, step: int) -> str:
        """A vector out of memory; zeros where the load is masked, or behind the last element."""
        buffer = self.program.buffers[one.buffer]
        mask = self.value(one.mask, scope) if one.mask else ""
        place = self.place(buffer, one.places, scope, False) + (" - (WIDTH - 1)" if step < 0 else "")
        count = "left" if scope.has_tail else "WIDTH"
        more = f", {mask} ? {count} : 0" if mask else ", left" if scope.has_tail else ""
        return f"tw::load_packed<WIDTH>({place}{more})"

    def place(self, buffer: Buffer, places: tuple[Index, ...], scope: Scope, is_written: bool) -> str:
        name = self.memory[buffer.name]
        self.used[name] = buffer.dtype, is_written or (name in self.used and self.used[name][1])
        flat = self.program.indices.ravel(places, buffer.strides)
        at = self.index(flat, scope)
        return f"{name}_data" if at == "0" else f"{name}_data + {at}"

    def size(self, size: Size) -> str:
        if size.literal is not None:
            return str(size.literal)
        self.sizes[size] = None
        return f"@{list(self.sizes).index(size)}@"

    def index(self, index: Index, scope: Scope) -> str:
        parts = []
        for atom, factor in index.terms:
            if atom.kind == "var":
                text = scope.variable(atom.name)
            elif atom.kind == "lookup":
                text = f"tw::wrapped({self.value(atom.looked_up, scope)}, {self.size(atom.size)})"
            else:
                text = f"({self.index(atom.inner, scope)} {'/' if atom.kind == 'div' else '%'} {self.size(atom.size)})"
            parts.append(text if factor.is_always(1) else f"{self.size(factor)} * {text}")
        if not index.constant.is_always(0) or not parts:
            parts.append(self.size(index.constant))
        return f"({' + '.join(parts)})" if len(parts) > 1 else parts[0]

    def store(
        self, buffer: Buffer, target: tuple[Index, ...], value: str, scope: Scope, op: str = "set", guard: str = ""
    ) -> None:
        narrow = buffer.dtype.is_float and buffer.dtype.itemsize < 4
        stored = f"tw::from_float<{buffer.dtype.cpp}>({value})" if narrow else value
        step = scope.vectors.packed_step(buffer, target) if isinstance(scope, ElementScope) and op == "set" else 0
        if isinstance(scope, ElementScope) and step:
            self._store_packed(buffer, target, stored, scope, step, guard)
            return
        place = self.place(buffer, target, scope, True)
        word = {"set": f"*({place}) = {stored};", "sum": f"tw::add_atomic({place}, {value});"}.get(op)
        line = word or f"tw::combine_atomic({place}, {value}, {COMBINE[op]}{{}});"
        scope.add(f"if ({guard}) {line}" if guard else line)

    def _store_packed(
        self, buffer: Buffer, target: tuple[Index, ...], stored: str, scope: ElementScope, step: int, guard: str
    ) -> None:
        """An element of a vector, which is stored when all are made."""
        outer, name = scope.outer, self.name("o")
        place = self.place(buffer, target, outer, True) + (" - (WIDTH - 1)" if step < 0 else "")
        outer.add(f"tw::Packed<{buffer.dtype.cpp}, WIDTH> {name};")
        scope.add(f"{name}.at[{'i' if step > 0 else 'WIDTH - 1 - i'}] = {stored};")
        line = f"tw::store_packed({place}, {name}{', left' if outer.has_tail else ''});"
        outer.stores.append(f"{outer.indent}if ({guard}) {line}" if guard else f"{outer.indent}{line}")


def _widened(read: str, load: Expr, dtype: DType) -> str:
    """An element as it is computed with."""
    if dtype.is_float and dtype.itemsize < 4:
        return f"tw::to_float({read})"
    return f"(long long){read}" if load.kind == "int" and dtype is not DType.I64 else read


COMBINE = {
    "sum": "tw::Sum",
    "prod": "tw::Product",
    "max": "tw::Max",
    "min": "tw::Min",
    "logsumexp": "tw::LogSumExp",
    "argmax": "tw::ArgMax",
    "argmin": "tw::ArgMin",
}


def identity(op: str, kind: str) -> str:
    if op in ("sum", "prod"):
        return f"({KIND[kind]}){int(op == 'prod')}"
    endless = {"float": "INFINITY", "double": "(double)INFINITY"}
    least = {"int": "(-9223372036854775807LL - 1)", "bool": "false"}
    most = {"int": "9223372036854775807LL", "bool": "true"}
    if op.endswith("max") or op == "logsumexp":
        return f"-{endless[kind]}" if kind in endless else least[kind]
    return endless[kind] if kind in endless else most[kind]


def _number(one: Expr) -> str:
    value = one.data
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value}LL" if value > -(1 << 63) else "(-9223372036854775807LL - 1)"
    assert isinstance(value, float)
    suffix = "f" if one.kind == "float" else ""
    if value != value:
        return "NAN"
    if abs(value) == float("inf") or (suffix and abs(value) > 3.4028235677973366e38):
        return ("-" if value < 0 else "") + "INFINITY"
    text = f"{value!r}{suffix}"
    return f"({text})" if value < 0 else text
