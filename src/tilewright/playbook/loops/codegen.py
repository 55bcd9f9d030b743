"""Code generation: a group becomes a launch of one of the templates in `kernels/`, its holes filled from the IR."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path
from string import Template

from tilewright.device_library import flatten
from tilewright.device_library.definitions import Header, read_header
from tilewright.playbook.families import TracedTask
from tilewright.playbook.loops.emit import COMBINE, KIND, Scope, Writer, identity
from tilewright.playbook.loops.grouping import Group, Member
from tilewright.playbook.loops.index import Atom, Index
from tilewright.playbook.loops.ir import Buffer, Expr, Node, Program, rewrite
from tilewright.playbook.loops.memory import Memory
from tilewright.playbook.loops.plan import Plan
from tilewright.playbook.loops.sizes import Size
from tilewright.playbook.places.program import out_lines, shape_needs
from tilewright.records import Layout

_FOLDER = Path(__file__).parent.parent / "kernels"
THREADS = 256
_MOST_KEPT = 16  # columns of a row that a thread may keep in registers between sweeps
_MOST_SHARED = 4096  # elements of a line that is sorted in shared memory
_INDEX_LIMIT = 2000000000


@cache
def _template(file: str) -> Template:
    return Template((_FOLDER / f"{file}.cu").read_text())


@cache
def _elements() -> Header:
    return read_header("elements.cuh", (_FOLDER / "elements.cuh").read_text())


def _filled(file: str, **holes: object) -> str:
    return _template(file).substitute(holes).rstrip("\n")


class KernelFile:
    """All kernels of a program, their launches and the plan."""

    def __init__(self, traced: TracedTask, program: Program, groups: list[Group], memory: Memory, op_line: str) -> None:
        self.traced, self.program, self.groups, self.memory = traced, program, groups, memory
        names = {*memory.names, *memory.names.values(), "WIDE", "THREADS"}
        self.plan = Plan(op_line, names - {one.name for one in traced.task.inputs})
        self.code: list[str] = []
        self.index_sizes: dict[Size, None] = {}  # what indices count up to
        self._head()
        for number, group in enumerate(groups):
            write = {"product": self._product, "scan": self._scan, "sort": self._sort}.get(group.kind, self._rows)
            write(group, f"k{number}")

    def _head(self) -> None:
        plan = self.plan
        plan.head += [f"out     {one}" for one in out_lines(self.traced)]
        plan.head += [f"need    {one}" for one in _merged(shape_needs(self.traced))]
        for one in self.traced.task.tensors:
            if one.memory_order not in ((), tuple(range(len(one.dimensions)))) or one.layout is not Layout.DENSE:
                plan.head.append(f"accept  {one.name}: strided, unaligned")
        for given in self.traced.task.tensors:
            if (
                given.memory_order
                and given.name in self.program.buffers
                and given.layout in (Layout.DENSE, Layout.UNALIGNED)
            ):
                buffer = self.program.buffers[given.name]
                for dim, stride in enumerate(buffer.strides):
                    if not buffer.shape[dim].is_always(1):
                        plan.tail.append(f"need    {given.name}.stride[{dim}] == {plan.size(stride)}")
        for name in self.memory.names:
            if name in self.program.buffers:
                self.index_sizes[self.program.numel(self.program.buffers[name])] = None
        for slot in self.memory.slots:
            plan.tail.append(f"scratch {slot.name}: {slot.dtype}[{plan.size(slot.size)}]")

    def text(self, notes: list[str]) -> str:
        counted = list(self.index_sizes)
        literal = max((one.literal for one in counted if one.literal is not None), default=0)
        varying = [self.plan.size(one) for one in counted if one.literal is None]
        wide = (
            f"1 if max({', '.join([str(literal), *varying])}) > {_INDEX_LIMIT} else 0"
            if varying
            else str(int(literal > _INDEX_LIMIT))
        )
        task = self.traced.task
        comment = [
            f"// {task.name}: {len(self.groups)} launch{'es' if len(self.groups) > 1 else ''}, baseline kernels."
        ]
        comment += [f"// {one}" for one in notes]
        includes = ["reduce.cuh", "vector_access.cuh", "elements.cuh"]
        body = "\n\n".join(self.code)
        includes += ["float8.cuh"] if "__nv_fp8" in body else []
        code = "\n".join(f"#include <tilewright/{one}>" for one in includes)
        code += f"\n\nusing index_t = tw::IndexOf<WIDE>::type;\nconstexpr int THREADS = {THREADS};\n\n"
        code += body
        lines = self.plan.lines
        place = next(
            (number for number, line in enumerate(lines) if line.startswith(("//! launch", "//! const"))), len(lines)
        )
        lines.insert(place, f"//! const   WIDE = {wide}")
        plan = "\n".join(lines)
        words = {"fp16": ("__half", "float2half"), "bf16": ("bfloat16",), "fp8": ("__nv_fp8",)}
        heads = "".join(f"#include <cuda_{key}.h>\n" for key, found in words.items() if any(w in code for w in found))
        flat = flatten("\n".join(comment) + "\n\n" + heads + code + "\n", (_elements(),))
        head, _, rest = flat.partition("\n\n")
        return f"{head}\n\n{plan}\n\n{rest}"

    def _writer(self) -> Writer:
        return Writer(self.program, self.memory.names)

    def _is_stored(self, group: Group, buffer: Buffer) -> bool:
        """Whether anybody but the group itself reads the buffer."""
        return buffer.role != "scratch" or any(buffer.name in one.read for one in self.groups if one is not group)

    def _launch(
        self,
        template: str,
        name: str,
        group: Group,
        writer: Writer,
        grid: str,
        more: str = "",
        **holes: object,
    ) -> None:
        kinds = Counter(one.op if one.kind == "reduction" else one.kind for one in group.nodes)
        holes["comment"] = f"{name}: " + ", ".join(f"{many} {kind}" for kind, many in kinds.items())
        numbers = [f"{KIND[kind]} {name}_" for (name, _), kind in writer.numbers.items()]
        pointers = [
            f"{'' if written else 'const '}{dtype.cpp}* __restrict__ {memory}_data"
            for memory, (dtype, written) in writer.used.items()
        ]
        holes = {key: writer.size(one) if isinstance(one, Size) else one for key, one in holes.items()}
        sizes = [self.plan.size(one) for one in writer.sizes]
        parameters = ", ".join([*pointers, *(f"index_t {one}" for one in sizes), *numbers])
        tables = [self._table(one, text) for one, text in writer.tables.items()]
        code = "\n".join([*tables, _filled(template, name=name, parameters=parameters, **holes)])
        self.code.append(re.sub(r"@(\d+)@", lambda found: sizes[int(found[1])], code))
        arguments = [*writer.used, *sizes, *(text for _, text in writer.numbers)]
        self.plan.launch(name, grid, str(THREADS) + more, arguments)

    def _table(self, one: Expr, name: str) -> str:
        assert isinstance(one.data, tuple)
        *values, is_bool = one.data
        dtype = "bool" if is_bool else KIND[one.kind]
        listed = ", ".join(_literal(value, one.kind) for value in values)
        return f"__constant__ const {dtype} {name}[] = {{{listed}}};"

    # -- rows: pointwise work, reductions and scatters --

    def _rows(self, group: Group, name: str) -> None:
        self.index_sizes[group.rows] = None
        writer = self._writer()
        if all(one.columns is None for one in group.members):
            scope, levels = Scope(1), _levels(group)
            for one in sorted(group.members, key=levels.__getitem__):
                value = writer.value(one.body, scope)
                self._row_value(group, one, value, writer, scope, guard="")
            grid = f"ceil_div({self.plan.size(group.rows)}, {THREADS})"
            self._launch("pointwise", name, group, writer, grid, rows=group.rows, body=scope.text)
            return
        outer, levels = Scope(1), _levels(group)
        lanes = self._lanes(group)
        self._keep(group, name, lanes, levels, writer, outer)
        for level in range(max(levels.values()) + 1):
            here = [one for one in group.members if levels[one] == level]
            for one in here:
                if one.columns is None:
                    value = writer.value(one.body, outer)
                    self._row_value(group, one, value, writer, outer)
            moving = [one for one in here if one.columns is not None]
            for columns in dict.fromkeys(one.columns for one in moving):
                assert columns is not None
                self._sweep(group, [one for one in moving if one.columns is columns], columns, lanes, writer, outer)
        grid = f"ceil_div({self.plan.size(group.rows)}, {THREADS // lanes})"
        words = {1: "A thread for each row.", 32: "A warp for each row.", 256: "A block for each row."}
        self._launch(
            "rows", name, group, writer, grid, rows=group.rows, lanes=lanes, lanes_comment=words[lanes],
            all_lanes="  // all lanes take part in exchanges" if lanes > 1 else "", body=outer.text,
        )  # fmt: skip

    def _keep(
        self, group: Group, name: str, lanes: int, levels: dict[Member, int], writer: Writer, outer: Scope
    ) -> None:
        """Loads that several sweeps make stay in registers where a row is short enough."""
        sweeps: dict[Expr, dict[int, None]] = {}
        for one in group.members:
            for load in one.loads if one.columns is not None else ():
                if any(var.name == "column" for var in load.variables) and load.buffer not in group.written:
                    sweeps.setdefault(load, {})[levels[one]] = None
        again = [one for one, found in sweeps.items() if len(found) > 1]
        sizes = {next(var.size for var in load.variables if var.name == "column") for load in again}
        if len(sizes) != 1:
            return  # rows of different lengths
        columns = sizes.pop()
        if columns.own > 4 * _MOST_KEPT * lanes:
            return
        writer.keep = self.plan.name(f"KEEP_{name.upper()}")
        size = self.plan.size(columns)
        fits = f"next_pow2(ceil_div({size}, {lanes})) if {size} <= {_MOST_KEPT * lanes} and {size} > 0 else 0"
        self.plan.tail.append(f"const   {writer.keep} = {fits}")
        for load in again:
            writer.kept[load] = writer.name("kept")
            outer.add(f"{KIND[load.kind]} {writer.kept[load]}[{writer.keep} > 0 ? {writer.keep} : 1];")

    def _row_value(
        self, group: Group, one: Member, value: str, writer: Writer, scope: Scope, guard: str = "is_live && lane == 0"
    ) -> None:
        """What there is one of for a row: all its lanes know it, the first stores it where somebody else needs it."""
        node = one.node
        writer.of_row[node.buffer.name] = value
        if self._is_stored(group, node.buffer):
            op = node.op if node.kind == "scatter" else "set"
            writer.store(node.buffer, one.target, value, scope, op, guard)

    def _sweep(
        self, group: Group, members: list[Member], columns: Size, lanes: int, writer: Writer, outer: Scope
    ) -> None:
        """Once along the columns: what is stored there, and what is reduced."""
        loop, ends = Scope(2, outer), []
        for one in members:
            value, op, kind = writer.value(one.body, loop), one.node.op, KIND[one.body.kind]
            if one.node.kind != "reduction":
                writer.store(one.node.buffer, one.target, value, loop, guard="is_live")
                continue
            name, combine, start, result = writer.name("r"), COMBINE[op], identity(op, one.body.kind), ""
            if op.startswith("arg"):
                kind, start, result = f"tw::Indexed<{kind}>", f"{{{start}, 9223372036854775807LL}}", ".index"
                value = f"{kind}{{{value}, (long long)column}}"
            outer.add(f"{kind} {name} = {start};")
            loop.add(f"{name} = {combine}{{}}({name}, {value});")
            ends.append((one, kind, name, combine, result))
        file = "kept_sweep" if writer.keep and columns is self._kept_columns(writer) else "sweep"
        holes = {"columns": writer.size(columns), "body": loop.text, "keep": writer.keep}
        in_place = self._in_place(group)  # where threads without a row would read what others write
        holes |= {"live": "is_live && " if in_place else "", "dead": "!is_live || " if in_place else ""}
        outer.lines.append(_filled(file, **holes))
        if file == "kept_sweep":
            writer.filled |= dict.fromkeys(load for load in writer.kept if load in loop.names)
        for one, kind, name, combine, result in ends:
            if lanes > 32:
                outer.add(f"__shared__ {kind} {name}_of_warps[THREADS / 32];")
            if lanes > 1:
                partial = f"{name}_of_warps" if lanes > 32 else f"static_cast<{kind}*>(nullptr)"
                outer.add(f"{name} = tw::team_reduce<LANES>({name}, {combine}{{}}, {partial});")
            self._row_value(group, one, name + result, writer, outer)

    def _in_place(self, group: Group) -> bool:
        return any(name in self.program.changed for name in group.written)

    def _kept_columns(self, writer: Writer) -> Size:
        return next(var.size for load in writer.kept for var in load.variables if var.name == "column")

    def _lanes(self, group: Group) -> int:
        """How many threads share a row: neighbours in memory should be neighbours among threads."""
        columns = max((one.columns.own for one in group.members if one.columns is not None), default=1)
        along = across = 0
        for one in group.members:
            for load in one.loads if one.columns is not None and one.columns.own > 1 else ():
                buffer = self.program.buffers[load.buffer]
                flat = self.program.indices.ravel(load.places, buffer.strides)
                start, next_column, next_row = (flat.evaluated(at) for at in ({}, {"column": 1}, {"row": 1}))
                along += (next_column - start == 1) * buffer.bytes
                across += (next_row - start == 1) * buffer.bytes
        if columns <= 4 or across > along:
            return 1
        return 32 if columns <= 1024 else 256

    # -- products, scans and sorts --

    def _after(self, group: Group, anchor: Node, results: list[str], writer: Writer, scope: Scope) -> None:
        """What is done with each result of a product or a scan before it is stored."""
        levels = _levels(group)
        for one in sorted(group.members, key=lambda one: (one.node is not anchor, levels[one])):
            if one.node is anchor:
                for buffer, text in zip(anchor.writes, results, strict=True):
                    writer.of_row[buffer.name] = text
                    if self._is_stored(group, buffer):
                        writer.store(buffer, one.target, text, scope)
            else:
                self._row_value(group, one, writer.value(one.body, scope), writer, scope, guard="")

    def _counted(self, loops: list[Atom], name: str) -> tuple[dict[Atom, Index], Size]:
        """Loops as parts of one number that counts them all."""
        indices, total = self.program.indices, self.program.count(loops)
        flat = indices.of(indices.var(name, total))
        return dict(zip(loops, indices.unravel(flat, [one.size for one in loops]), strict=True)), total

    def _product(self, group: Group, name: str) -> None:
        node = next(one for one in group.nodes if one.kind == "reduction")
        assert group.factors is not None
        first, second = group.factors
        parts: dict[str, list[Atom]] = {"batch": [], "m": [], "n": [], "k": list(node.inner)}
        for loop in node.loops:
            of_both = loop.size.is_always(1) or (loop in first.variables and loop in second.variables)
            parts["batch" if of_both else "m" if loop in first.variables else "n"].append(loop)
        places: dict[Atom, Index] = {}
        sizes: dict[str, Size] = {}
        for word, loops in parts.items():
            found, sizes[word] = self._counted(loops, word)
            places |= found
            self.index_sizes[sizes[word]] = None
        writer, loads, holes = self._writer(), [], dict[str, object]()
        for word, other, factor in (("a", "m", first), ("b", "n", second)):
            value = rewrite(factor, places)
            loads.append(Scope(4))
            loads[-1].add(f"{word}_value = {writer.value(value, loads[-1])};")
            by_k = self._is_along(value, "k", other)
            holes[f"{word}_along_k"] = "piece / DEPTH" if by_k else "piece % TILE"
            holes[f"{word}_at_k"] = "piece % DEPTH" if by_k else "piece / TILE"
        scope, indices = Scope(3), self.program.indices
        flat = indices.ravel([places[one] for one in node.loops], indices.strides(node.buffer.shape))
        row = writer.index(flat, scope)
        self._after(group, node, ["sum"], writer, scope)
        tiles = [f"ceil_div({self.plan.size(sizes[word])}, 64)" for word in ("m", "n")]
        grid = f"{tiles[0]} * {tiles[1]} * {self.plan.size(sizes['batch'])}"
        holes |= {word: sizes[word] for word in ("m", "n", "k")}
        holes |= {"row": row, "a_body": loads[0].text, "b_body": loads[1].text, "epilogue": scope.text}
        self._launch("product", name, group, writer, grid, "", **holes)

    def _is_along(self, value: Expr, inner: str, other: str) -> bool:
        """Whether neighbours in memory are neighbours along k rather than along m or n."""
        for load in value.loads:
            buffer = self.program.buffers[load.buffer]
            flat = self.program.indices.ravel(load.places, buffer.strides)
            start, along, across = (flat.evaluated(at) for at in ({}, {inner: 1}, {other: 1}))
            if across - start == 1 and along - start != 1:
                return False
        return True

    def _line(self, node: Node, writer: Writer, depth: int) -> tuple[dict[Atom, Index], Size, Scope]:
        """For a scan or sort: its loops by the line and the place in it, and the value there."""
        indices, length, scope = self.program.indices, node.inner[0].size, Scope(depth)
        places, _ = self._counted(list(node.loops[:-1]), "line")
        places[node.loops[-1]] = indices.of(indices.var("column", length))
        value = writer.value(rewrite(node.body, places), scope)
        if node.op.startswith("arg"):
            value = f"tw::Indexed<{KIND[node.body.kind]}>{{{value}, (long long)column}}"
        scope.add(f"value = {value};")
        return places, length, scope

    def _scan(self, group: Group, name: str) -> None:
        node = next(one for one in group.nodes if one.kind == "scan")
        writer, scope, kind = self._writer(), Scope(3), KIND[node.body.kind]
        places, length, body = self._line(node, writer, 3)
        indices = self.program.indices
        flat = indices.ravel([one.rewritten(places) for one in node.target], indices.strides(node.buffer.shape))
        row, start = writer.index(flat, scope), identity(node.op, node.body.kind)
        is_placed = node.op.startswith("arg")
        combine = {"argmax": "tw::LatestMax", "argmin": "tw::LatestMin"}.get(node.op) or COMBINE[node.op]
        self._after(group, node, ["result.value", "result.index"] if is_placed else ["result"], writer, scope)
        holes = {"type": f"tw::Indexed<{kind}>" if is_placed else kind, "combine": combine, "row": row}
        holes |= {"identity": f"{{{start}, 0}}" if is_placed else start, "body": body.text, "epilogue": scope.text}
        lines = self.plan.size(self.program.count(node.loops[:-1]))
        self._launch("scan", name, group, writer, lines, "", length=length, **holes)

    def _sort(self, group: Group, name: str) -> None:
        node = group.nodes[0]
        writer, scope, kind = self._writer(), Scope(2), KIND[node.body.kind]
        places, length, body = self._line(node, writer, 3)
        for buffer, text in zip(node.writes, ("value", "(long long)order"), strict=True):
            if self._is_stored(group, buffer):
                target = tuple(one.rewritten(places) for one in node.target)
                writer.store(buffer, target, text, scope)
        lines, plan = self.program.count(node.loops[:-1]), self.plan
        padded = length.next_power
        count = self._count_of(node, lines)
        keys, orders = plan.name(f"keys_{name}"), plan.name(f"orders_{name}")
        wide = {"float": 4, "double": 8, "int": 8, "bool": 1}[node.body.kind]
        dtype = {"float": "f32", "double": "f64", "int": "i64", "bool": "bool"}[node.body.kind]
        at = plan.size(padded)
        total = f"{plan.size(lines)} * {at} if {at} > {_MOST_SHARED} else 1"
        plan.tail += [f"scratch {keys}: {dtype}[{total}]", f"scratch {orders}: i32[{total}]"]
        shared = plan.name(f"shared_{name}")
        plan.tail.append(f"let     {shared} = {at} * {wide + 4} + 8 if {at} <= {_MOST_SHARED} else 0")
        self._launch(
            "sort", name, group, writer, plan.size(lines), more=f", {shared}", type=kind, length=length, count=count,
            descending=str(node.op == "descending").lower(), body=body.text, store=scope.text, most=_MOST_SHARED,
        )  # fmt: skip
        plan.tail[-1] = plan.tail[-1].rstrip(")") + f", {keys}, {orders}, {at})"

    def _count_of(self, node: Node, lines: Size) -> Size:
        """How many of a line in order are stored."""
        return self.program.numel(node.buffer).over(lines)


def _levels(group: Group) -> dict[Member, int]:
    """For every member the number of sweeps that must have ended before it can start."""
    made = {buffer.name: one for one in group.members for buffer in one.node.writes}
    found: dict[Member, int] = {}

    def level(one: Member) -> int:
        if one not in found:
            needed = [made[load.buffer] for load in one.loads if load.buffer in made]
            found[one] = max((level(other) + (other.node.kind == "reduction") for other in needed), default=0)
        return found[one]

    order: list[Member] = []

    def visit(one: Member) -> None:
        if one not in order:
            for load in one.loads:
                if load.buffer in made:
                    visit(made[load.buffer])
            order.append(one)

    for one in group.members:
        visit(one)
        level(one)
    group.members = order
    return found


def _literal(value: float, kind: str) -> str:
    if kind == "bool":
        return "true" if value else "false"
    if kind == "int":
        return f"{int(value)}LL"
    suffix = "f" if kind == "float" else ""
    if value != value:
        return "NAN"
    return ("-" if value < 0 else "") + "INFINITY" if abs(value) == float("inf") else f"{float(value)!r}{suffix}"


def _merged(needs: tuple[str, ...]) -> list[str]:
    """Conditions on one tensor in one line."""
    lines: list[str] = []
    for one in needs:
        plain = " or " not in one and " if " not in one
        if lines and plain and " or " not in lines[-1] and len(lines[-1]) + len(one) < 90:
            lines[-1] += f" and {one}"
        else:
            lines.append(one)
    return lines
