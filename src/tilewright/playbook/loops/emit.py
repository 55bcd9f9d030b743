"""Expressions as C++: each value once, and outside of a loop where it does not need the loop's variable."""

from __future__ import annotations

from tilewright.playbook.elementwise import OPERATIONS
from tilewright.playbook.loops.index import Index
from tilewright.playbook.loops.ir import Buffer, Expr, Program
from tilewright.playbook.loops.sizes import Size
from tilewright.records import DType

KIND = {"float": "float", "double": "double", "int": "long long", "bool": "bool"}


class Scope:
    """Lines of a block of code and the names of the values they define; values of outer scopes are seen too."""

    def __init__(self, depth: int, outer: Scope | None = None) -> None:
        self.lines: list[str] = []
        self.names: dict[Expr, str] = {}
        self.outer, self.indent = outer, "  " * depth

    def add(self, line: str) -> None:
        self.lines.append(self.indent + line)

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


class Writer:
    """The expressions of one kernel, of buffers that lie in memory by the names of `memory`."""

    def __init__(self, program: Program, memory: dict[str, str]) -> None:
        self.program, self.memory = program, memory
        self.used: dict[str, tuple[DType, bool]] = {}  # memory the kernel is given, and whether it writes there
        self.sizes: dict[Size, None] = {}  # sizes that it is given
        self.numbers: dict[tuple[str, str], str] = {}  # numbers of the plan that it is given, and their kind
        self.tables: dict[Expr, str] = {}  # constants of the graph with several elements
        self.of_row: dict[str, str] = {}  # buffers whose value for this row is in a variable
        self.kept: dict[Expr, str] = {}  # loads that stay in registers between sweeps, and the array
        self.keep = ""  # the constant that says how many a thread keeps; 0 where a row is too long
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
        if scope.outer is not None and not any(var.name == "column" for var in one.variables):
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
        if one in self.filled:
            text = f"{self.keep} > 0 ? {self.kept[one]}[item] : {text}"
        scope.names[one] = name = self.name()
        scope.add(f"const {KIND[one.kind]} {name} = {text};")
        if one in self.kept and one not in self.filled:
            scope.add(f"if ({self.keep} > 0) {self.kept[one]}[item] = {name};")
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
            table = self.tables.setdefault(one, f"table{len(self.tables)}")
            return f"{table}[{self.value(one.args[0], scope)}]"
        args = [self.value(arg, scope) for arg in one.args]
        return OPERATIONS[one.op].text(args)

    def _load(self, one: Expr, scope: Scope) -> str:
        mask = self.value(one.mask, scope) if one.mask else ""
        place = self.place(self.program.buffers[one.buffer], one.places, scope, False)
        dtype = self.program.buffers[one.buffer].dtype
        read = f"*({place})"
        if dtype.is_float and dtype is not DType.F64 and dtype is not DType.F32:
            read = f"tw::to_float({read})"
        elif one.kind == "int" and dtype is not DType.I64:
            read = f"(long long){read}"
        return f"{mask} ? {read} : ({KIND[one.kind]})0" if mask else read

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
                text = atom.name
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
        place = self.place(buffer, target, scope, True)
        narrow = buffer.dtype.is_float and buffer.dtype.itemsize < 4
        stored = f"tw::from_float<{buffer.dtype.cpp}>({value})" if narrow else value
        word = {"set": f"*({place}) = {stored};", "sum": f"tw::add_atomic({place}, {value});"}.get(op)
        line = word or f"tw::combine_atomic({place}, {value}, {COMBINE[op]}{{}});"
        scope.add(f"if ({guard}) {line}" if guard else line)


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
