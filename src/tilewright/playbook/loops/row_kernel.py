"""Launches of rows: teams of lanes reduce, scale and store rows, which they hold between sweeps where these fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.playbook.loops.emit import COMBINE, KIND, ElementScope, Scope, VectorScope, identity
from tilewright.playbook.loops.grouping import Group, Member, levels_of
from tilewright.playbook.loops.ir import Expr
from tilewright.playbook.loops.sizes import Size
from tilewright.playbook.loops.templates import filled
from tilewright.playbook.loops.vectors import Vectors, access_cost, widths

if TYPE_CHECKING:
    from tilewright.playbook.loops.codegen import KernelFile

_LEAST_THREADS, _MOST_LANES = 128, 1024
_ACROSS, _LANES_ACROSS, _COLUMNS_ACROSS = 32, 32, 16  # rows side by side, their most lanes, and columns for a lane
_HELD_BYTES = 128  # of a row in the registers of a thread
_VALUE_BYTES = 192  # likewise, where values that were made of it replace what was read
_SHORTEST = 4  # columns of a row that no lanes share
_MOST_HELD = 32  # vectors, each of which is unrolled
_LEAST_WORK = 10  # instructions that make it worth while to hold a value
_WORK = {"exp": 10, "tanh": 20, "log": 12, "log1p": 20, "erf": 25, "gelu": 30, "gelu_tanh": 15, "silu": 15}
_WORK |= {"sigmoid": 15, "pow": 60, "softplus": 30, "mish": 40, "sin": 30, "cos": 30, "sqrt": 8, "rsqrt": 6, "div": 8}


def write_rows(file: KernelFile, group: Group, name: str) -> None:
    _Rows(file, group, name).write()


class _Rows:
    def __init__(self, file: KernelFile, group: Group, name: str) -> None:
        self.file, self.group, self.name = file, group, name
        self.program = file.program
        self.levels = levels_of(group)
        self.moving = [one for one in group.members if one.columns is not None]
        self.sizes = list(dict.fromkeys(one.columns for one in self.moving if one.columns is not None))
        self.is_single = max((one.own for one in self.sizes), default=1) <= _SHORTEST  # a thread alone takes a row
        self.is_across = not self.is_single and self._is_across()
        self.vectors = self._best_vectors()
        self.writer, self.outer = file.writer(), Scope(1)
        self.held_columns: Size | None = None  # of the rows that threads hold

    def write(self) -> None:
        file, writer, outer = self.file, self.writer, self.outer
        file.index_sizes[self.group.rows] = None
        held = self._hold()
        values = self._hold_values() if held else []
        self._name_constants(bool(held), bool(values))
        for level in range(max(self.levels.values()) + 1):
            here = [one for one in self.group.members if self.levels[one] == level]
            for one in here:
                if one.columns is None:
                    self._row_value(one)
            for columns in self.sizes:
                members = [one for one in here if one.columns is columns]
                if members:
                    self._sweep(members, columns)
        self._set_constants(held, values)
        grid = f"ceil_div({file.plan.size(self.group.rows)}, {self.threads} / {self.lanes})"
        holes = {"lanes": self.lanes, "threads": self.threads, "across": _ACROSS if self.is_across else 1}
        holes |= {"width": self.width, "keep": self.keep, "held": self.held, "rows": self.group.rows}
        file.launch("rows", self.name, self.group, writer, grid, self.threads, body=outer.text, **holes)

    # -- decisions --

    def _is_across(self) -> bool:
        """Whether neighbours in memory are neighbouring rows rather than columns."""
        along = across = 0
        for one in self.moving:
            for load in one.loads if one.columns is not None and one.columns.own > 1 else ():
                buffer = self.program.buffers[load.buffer]
                flat = self.program.indices.ravel(load.places, buffer.strides)
                start, next_column, next_row = (flat.evaluated(at) for at in ({}, {"column": 1}, {"row": 1}))
                along += (next_column - start == 1) * buffer.bytes
                across += (next_row - start == 1) * buffer.bytes
        return across > along

    def _best_vectors(self) -> Vectors:
        """The width of vectors that costs least; among equals the widest."""
        found: list[tuple[float, Vectors]] = []
        for width in (1,) if self.is_single or self.is_across else widths(self.program, self.moving):
            vectors = Vectors(self.program, width, self.file.unaligned)
            cost, _ = access_cost(self.program, self.moving, vectors, self.group.written)
            if all(one.own % width == 0 for one in self.sizes):
                found.append((cost, vectors))
        return min(found, key=lambda one: one[0])[1]

    def _hold(self) -> list[Expr]:
        """Loads that several sweeps make are made once, before the first, where a thread can hold them."""
        sweeps: dict[Expr, dict[int, None]] = {}
        for one in self.moving:
            for load in one.loads:
                if any(var.name == "column" for var in load.variables) and load.buffer not in self.group.written:
                    sweeps.setdefault(load, {})[self.levels[one]] = None
        again = [one for one, found in sweeps.items() if len(found) > 1 and not self.vectors.is_same(one)]
        sizes = {next(var.size for var in load.variables if var.name == "column") for load in again}
        if len(sizes) != 1:
            return []  # nothing, or rows of different lengths
        self.held_columns = sizes.pop()
        vector = VectorScope(3, self.outer)
        element = ElementScope(vector, self.vectors)
        names: dict[Expr, str] = {}
        for load in again:
            kept, dtype = self.writer.name("kept"), self.program.buffers[load.buffer].dtype
            self.outer.add(f"tw::Packed<{dtype.cpp}, WIDTH> {kept}[KEEP > 0 ? KEEP : 1];")
            step = self.vectors.load_step(load)
            if step:
                vector.stores.append(f"{vector.indent}{kept}[item] = {self.writer.vector(load, vector, step)};")
            else:
                element.add(f"{kept}[item].at[i] = {self.writer.single(load, element)};")
            names[load] = kept
        loop = ["#pragma unroll", "      for (int i = 0; i < WIDTH; ++i) {", element.text, "      }"]
        lines = [*vector.lines, *(loop if element.lines else []), *vector.stores]
        self.writer.kept = names
        self.outer.lines.append(filled("held", end=self._end(self.held_columns), loads="\n".join(lines)))
        return again

    def _hold_values(self) -> list[Expr]:
        """Values that several sweeps make of what is held, where they take long: made once, in f32."""
        sweeps: dict[Expr, dict[int, None]] = {}
        order: dict[Expr, None] = {}
        for one in self.moving:
            if one.columns is self.held_columns:
                for value in _below(one.body, order):
                    sweeps.setdefault(value, {})[self.levels[one]] = None
        work: dict[Expr, int] = {}
        found: list[Expr] = []
        for value in order:  # operands first
            work[value] = _WORK.get(value.op, 1) + sum(work[arg] for arg in value.args if arg in work)
            if value.op == "load" or self.vectors.is_same(value):
                work[value] = 0
            elif len(sweeps[value]) > 1 and value.kind == "float" and work[value] >= _LEAST_WORK:
                found = [one for one in found if sweeps[one] != sweeps[value] or one not in _below(value, {})]
                found.append(value)
                work[value] = 0 if value.op in _WORK else work[value]
        for value in found:
            name = self.writer.held[value] = self.writer.name("held")
            self.outer.add(f"float {name}[HELD > 0 ? HELD : 1][WIDTH];")
        return found

    def _name_constants(self, holds: bool, holds_values: bool) -> None:
        plan, word = self.file.plan, self.name.upper()
        self.lanes = "1" if self.is_single else plan.name(f"LANES_{word}")
        self.threads = str(_LEAST_THREADS) if self.is_single else plan.name(f"THREADS_{word}")
        self.keep = plan.name(f"KEEP_{word}") if holds else "0"
        self.held = plan.name(f"HELD_{word}") if holds_values else "0"

    def _set_constants(self, held: list[Expr], values: list[Expr]) -> None:
        """By the length of a row, when it is known what vectors ask of sizes."""
        plan = self.file.plan
        self.width = self.file.width(self.name, self.vectors, *self.sizes)
        if self.is_across:
            columns = [plan.size(one) for one in self.sizes]
            longest = columns[0] if len(columns) == 1 else f"max({', '.join(columns)})"
            most = 8 if any(one.node.op.startswith("arg") for one in self.moving) else _LANES_ACROSS
            wanted = f"min(next_pow2(max(ceil_div({longest}, {_COLUMNS_ACROSS}), 4)), {most})"
            plan.tail.append(f"const   {self.lanes} = {wanted}, {self.threads} = {_ACROSS} * {self.lanes}")
        elif not self.is_single:
            columns = [plan.size(one) for one in self.sizes]
            longest = columns[0] if len(columns) == 1 else f"max({', '.join(columns)})"
            wanted = f"next_pow2(max(ceil_div({longest}, {self.width} * {self.file.vectors_of_lane}), 1))"
            threads = f"{self.threads} = max({self.lanes}, {_LEAST_THREADS})"
            plan.tail.append(f"const   {self.lanes} = min({wanted}, {_MOST_LANES}), {threads}")
        if held and self.held_columns is not None:
            items = plan.name(f"items_{self.name}")
            each = sum(self.program.buffers[load.buffer].dtype.itemsize for load in held)
            plan.tail.append(f"let     {items} = ceil_div({plan.size(self.held_columns)}, {self.width} * {self.lanes})")
            fits = f"{items} * {self.width} * {each} <= {_HELD_BYTES} and {items} <= {_MOST_HELD}"
            plan.tail.append(f"const   {self.keep} = {items} if {fits} else 0")
        if values:
            fits = f"{items} * {self.width} * {each + 4} <= {_VALUE_BYTES}"
            plan.tail.append(f"const   {self.held} = {self.keep} if {fits} else 0")

    # -- text --

    def _row_value(self, one: Member, value: str = "") -> None:
        """What there is one of for a row: all its lanes know it, the first stores it where somebody else needs it."""
        self.file.place_value(self.group, one, self.writer, self.outer, "is_live && lane == 0", value)

    def _end(self, columns: Size) -> str:
        """Where a sweep ends. A thread without a row goes along the last one too, and stores nothing; but not where
        the launch changes what it reads, which other threads then write."""
        size = self.writer.size(columns)
        changes = any(name in self.program.changed for name in self.group.written)
        return f"(is_live ? {size} : 0)" if changes else size

    def _sweep(self, members: list[Member], columns: Size) -> None:
        """Once along the columns: what is stored there, and what is reduced."""
        writer, outer = self.writer, self.outer
        vector = VectorScope(3, outer)
        loop, ends = ElementScope(vector, self.vectors), []
        for one in members:
            if one.node.kind != "reduction":
                self.file.place_value(self.group, one, writer, loop, "is_live")
                continue
            value, op, kind = writer.value(one.body, loop), one.node.op, KIND[one.body.kind]
            name, combine, start, result = writer.name("r"), COMBINE[op], identity(op, one.body.kind), ""
            if op.startswith("arg"):
                kind, start, result = f"tw::Indexed<{kind}>", f"{{{start}, 9223372036854775807LL}}", ".index"
                value = f"{kind}{{{value}, (long long)(column + i)}}"
            outer.add(f"{kind} {name} = {start};")
            loop.add(f"{name} = {combine}{{}}({name}, {value});")
            ends.append((one, kind, name, combine, result))
        holes = {"loads": vector.text, "body": loop.text, "stores": "\n".join(vector.stores)}
        holes["end"] = self._end(columns)
        holes["keep"] = "KEEP" if writer.kept and columns is self.held_columns else "0"
        outer.lines.append(filled("sweep", **holes))
        writer.filled |= dict.fromkeys(one for one in writer.held if one in loop.names)
        for one, kind, name, combine, result in ends:
            if self.is_across:
                outer.add(f"__shared__ {kind} {name}_of_lanes[{self.threads}];")
                reduced = f"tw::column_reduce<ACROSS, LANES>({name}, {combine}{{}}, {name}_of_lanes)"
                outer.add(f"{name} = {reduced};")
            elif not self.is_single:
                outer.add(f"__shared__ {kind} {name}_of_warps[{self.threads} / 32];")
                outer.add(f"{name} = tw::team_reduce<LANES>({name}, {combine}{{}}, {name}_of_warps);")
            self._row_value(one, name + result)


def _below(value: Expr, order: dict[Expr, None]) -> dict[Expr, None]:
    """A value and all that it is made of, which is also put into the order, operands first."""
    found: dict[Expr, None] = {}

    def visit(one: Expr) -> None:
        if one not in found:
            for arg in one.args:
                visit(arg)
            found[one] = order[one] = None

    visit(value)
    return found
