"""Code generation: a group becomes a launch of one of the templates in `kernels/`, its holes filled from the IR."""

from __future__ import annotations

import re
from collections import Counter
from functools import cached_property

from tilewright.device_library import flatten
from tilewright.playbook.families import TracedTask
from tilewright.playbook.loops.attention_kernel import write_attention
from tilewright.playbook.loops.emit import KIND, Scope, Writer
from tilewright.playbook.loops.grouping import Group, Member
from tilewright.playbook.loops.ir import Buffer, Expr, Program
from tilewright.playbook.loops.line_kernels import write_scan, write_sort
from tilewright.playbook.loops.lowering import NARROW
from tilewright.playbook.loops.memory import Memory
from tilewright.playbook.loops.plan import Plan
from tilewright.playbook.loops.pointwise_kernel import write_pointwise
from tilewright.playbook.loops.product_kernel import write_product
from tilewright.playbook.loops.row_kernel import write_rows
from tilewright.playbook.loops.sizes import Size
from tilewright.playbook.loops.templates import THREADS, filled, headers
from tilewright.playbook.loops.vectors import Vectors
from tilewright.playbook.places.program import out_lines, shape_needs
from tilewright.records import Layout, TensorInput

_INDEX_LIMIT = 2000000000
_CONSTANTS = ("WIDE", "THREADS", "VECTORS", "AT_ONCE", "WIDTH", "LANES", "KEEP", "HELD", "TILE_M", "TILE_N")


def _write_rows(file: KernelFile, group: Group, name: str) -> None:
    """Rows with columns, or a pointwise launch where there are none."""
    has_columns = any(one.columns is not None for one in group.members)
    (write_rows if has_columns else write_pointwise)(file, group, name)


def _odd_tensors(traced: TracedTask) -> list[TensorInput]:
    """Tensors that are taken however they lie in memory."""
    return [
        one
        for one in traced.task.tensors
        if one.memory_order not in ((), tuple(range(len(one.dimensions)))) or one.layout is not Layout.DENSE
    ]


_WRITERS = {
    "rows": _write_rows,
    "scatter": _write_rows,
    "product": write_product,
    "attention": write_attention,
    "scan": write_scan,
    "sort": write_sort,
}


class KernelFile:
    """All kernels of a program, their launches and the plan."""

    def __init__(
        self, traced: TracedTask, program: Program, groups: list[Group], memory: Memory, op_line: str, is_quick: bool
    ) -> None:
        self.traced, self.program, self.groups, self.memory = traced, program, groups, memory
        self.is_quick = is_quick
        names = {
            *memory.names,
            *memory.names.values(),
            "WIDE",
            "THREADS",
            "VECTORS",
            "AT_ONCE",
            "WIDTH",
            "LANES",
            "KEEP",
            "HELD",
        }
        self.plan = Plan(op_line, names - {one.name for one in traced.task.inputs})
        self.code: list[str] = []
        self.index_sizes: dict[Size, None] = {}  # what indices count up to
        self.unaligned = frozenset(
            name for name, memory in memory.names.items() if any(one.name == memory for one in _odd_tensors(traced))
        )
        self._tunes: dict[str, str] = {}
        self._tables: dict[str, None] = {}
        self._head()
        for number, group in enumerate(groups):
            _WRITERS[group.kind](self, group, f"k{number}")
        self.plan.head += [f"tune    {one}" for one in self._tunes.values()]

    def _head(self) -> None:
        plan = self.plan
        plan.head += [f"out     {one}" for one in out_lines(self.traced)]
        plan.head += [f"need    {one}" for one in _merged(shape_needs(self.traced))]
        plan.head += [f"accept  {one.name}: strided, unaligned" for one in _odd_tensors(self.traced)]
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
        for least, most in self.program.needs:
            plan.tail.append(f"need    {plan.size(least)} <= {plan.size(most)}")
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
        comment = [f"// {task.name}: {len(self.groups)} launch{'es' if len(self.groups) > 1 else ''}."]
        comment += [f"// {one}" for one in notes]
        includes = [
            "reduce.cuh",
            "vector_access.cuh",
            "mma_tiles.cuh",
            "attention_tiles.cuh",
            "tile_scheduler.cuh",
            "elements.cuh",
        ]
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
        flat = flatten("\n".join(comment) + "\n\n" + heads + code + "\n", headers())
        head, _, rest = flat.partition("\n\n")
        return f"{head}\n\n{plan}\n\n{rest}"

    @property
    def vectors_of_lane(self) -> str:
        """The constant that says how many vectors of a row a lane is to take."""
        return self.tune("VECTORS", "2 | 4 | 1", "of a row, for each lane that shares it")

    @property
    def vectors_at_once(self) -> str:
        """The constant that says how many vectors of a pointwise launch a thread makes."""
        return self.tune("AT_ONCE", "2 | 4 | 1", "vectors of a thread in pointwise launches")

    def tune(self, name: str, choices: str, meaning: str) -> str:
        """A constant that is tuned, the same in all launches."""
        self._tunes.setdefault(name, f"{name} = {choices}  # {meaning}")
        return name

    def width(self, name: str, vectors: Vectors, *columns: Size, needs_whole: bool = True) -> str:
        """The elements of a vector: as many as were wanted, or one where a call's sizes do not fit."""
        sizes = dict(vectors.sizes)
        if needs_whole:
            sizes |= {one: None for one in columns if one.literal is None or one.literal % vectors.width}
        if vectors.width == 1 or not sizes:
            return str(vectors.width)
        tests = " and ".join(f"{self.plan.size(one)} % {vectors.width} == 0" for one in sizes)
        made = self.plan.name(f"WIDTH_{name.upper()}")
        self.plan.tail.append(f"const   {made} = {vectors.width} if {tests} else 1")
        return made

    def require(self, condition: str) -> None:
        line = f"need    {condition}"
        if line not in self.plan.head:
            self.plan.head.append(line)

    @cached_property
    def largest_product(self) -> Group | None:
        """The product that takes longest: its choices are tuned, those of others are made by the model."""
        found = [one for one in self.groups if one.kind == "product"]
        return max(found, key=lambda one: max(node.iterations for node in one.nodes), default=None)

    def writer(self) -> Writer:
        return Writer(self.program, self.memory.names, self.is_quick)

    def is_stored(self, group: Group, buffer: Buffer) -> bool:
        """Whether anybody but the group itself reads the buffer."""
        return buffer.role != "scratch" or any(buffer.name in one.read for one in self.groups if one is not group)

    def launch(
        self,
        template: str,
        name: str,
        group: Group,
        writer: Writer,
        grid: str,
        block: str,
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
        new = {one: text for one, text in writer.tables.items() if text not in self._tables}  # launches share tables
        self._tables |= dict.fromkeys(new.values())
        tables = [self._table(one, text) for one, text in new.items()]
        code = "\n".join([*tables, filled(template, name=name, parameters=parameters, **holes)])
        self.code.append(re.sub(r"@(\d+)@", lambda found: sizes[int(found[1])], code))
        arguments = [*writer.used, *sizes, *(text for _, text in writer.numbers)]
        self.plan.launch(name, grid, block, arguments)

    def _table(self, one: Expr, name: str) -> str:
        assert isinstance(one.data, tuple)
        *values, is_bool = one.data
        dtype = "bool" if is_bool else KIND[one.kind]
        listed = ", ".join(_literal(value, one.kind) for value in values)
        return f"__constant__ const {dtype} {name}[] = {{{listed}}};"

    def place_value(
        self, group: Group, one: Member, writer: Writer, scope: Scope, guard: str = "", value: str = ""
    ) -> None:
        """A member's value: the group's other members read it from a variable, and it is stored for anybody else."""
        buffer, narrow = one.node.buffer, NARROW.get(one.node.buffer.dtype)
        if not value and any(buffer.name in other.node.reads for other in group.members):
            value = writer.value(one.body, scope)
        writer.of_row[buffer.name] = value
        if self.is_stored(group, buffer):
            op = one.node.op if one.node.kind == "scatter" else "set"
            if not value:  # what is rounded as it is stored need not be rounded before
                body = one.body.args[0] if one.body.op == narrow and one.body.args[0].kind == "float" else one.body
                value = writer.value(body, scope)
            writer.store(buffer, one.target, value, scope, op, guard)


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
