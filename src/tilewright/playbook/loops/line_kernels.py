"""Launches along lines: scans and sorts, and what is done with each result of theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.playbook.loops.emit import COMBINE, KIND, Scope, Writer, identity
from tilewright.playbook.loops.grouping import Group, Member, levels_of
from tilewright.playbook.loops.index import Atom, Index
from tilewright.playbook.loops.ir import Node, rewrite
from tilewright.playbook.loops.sizes import Size
from tilewright.playbook.loops.templates import THREADS

if TYPE_CHECKING:
    from tilewright.playbook.loops.codegen import KernelFile

_MOST_SHARED = 4096  # elements of a line that is sorted in shared memory


def after(
    file: KernelFile,
    group: Group,
    anchor: Node,
    results: list[str],
    writer: Writer,
    scope: Scope,
    seen: dict[Node, Member] | None = None,
) -> None:
    """What is done with each result of a product or a scan before it is stored; `seen`: members by other indices."""
    levels = levels_of(group)
    for one in sorted(group.members, key=lambda one: (one.node is not anchor, levels[one])):
        member = seen[one.node] if seen else one
        if one.node is anchor:
            for buffer, text in zip(anchor.writes, results, strict=True):
                writer.of_row[buffer.name] = text
                if file.is_stored(group, buffer):
                    writer.store(buffer, member.target, text, scope)
        else:
            file.place_value(group, member, writer, scope)


def counted(file: KernelFile, loops: list[Atom], name: str) -> tuple[dict[Atom, Index], Size]:
    """Loops as parts of one number that counts them all."""
    indices, total = file.program.indices, file.program.count(loops)
    flat = indices.of(indices.var(name, total))
    return dict(zip(loops, indices.unravel(flat, [one.size for one in loops]), strict=True)), total


def _line(file: KernelFile, node: Node, writer: Writer, depth: int) -> tuple[dict[Atom, Index], Size, Scope]:
    """For a scan or sort: its loops by the line and the place in it, and the value there."""
    indices, length, scope = file.program.indices, node.inner[0].size, Scope(depth)
    places, _ = counted(file, list(node.loops[:-1]), "line")
    places[node.loops[-1]] = indices.of(indices.var("column", length))
    value = writer.value(rewrite(node.body, places), scope)
    if node.op.startswith("arg"):
        value = f"tw::Indexed<{KIND[node.body.kind]}>{{{value}, (long long)column}}"
    scope.add(f"value = {value};")
    return places, length, scope


def write_scan(file: KernelFile, group: Group, name: str) -> None:
    node = next(one for one in group.nodes if one.kind == "scan")
    writer, scope, kind = file.writer(), Scope(3), KIND[node.body.kind]
    places, length, body = _line(file, node, writer, 3)
    indices = file.program.indices
    flat = indices.ravel([one.rewritten(places) for one in node.target], indices.strides(node.buffer.shape))
    row, start = writer.index(flat, scope), identity(node.op, node.body.kind)
    is_placed = node.op.startswith("arg")
    combine = {"argmax": "tw::LatestMax", "argmin": "tw::LatestMin"}.get(node.op) or COMBINE[node.op]
    after(file, group, node, ["result.value", "result.index"] if is_placed else ["result"], writer, scope)
    holes = {"type": f"tw::Indexed<{kind}>" if is_placed else kind, "combine": combine, "row": row}
    holes |= {"identity": f"{{{start}, 0}}" if is_placed else start, "body": body.text, "epilogue": scope.text}
    lines = file.plan.size(file.program.count(node.loops[:-1]))
    file.launch("scan", name, group, writer, lines, str(THREADS), length=length, **holes)


def write_sort(file: KernelFile, group: Group, name: str) -> None:
    node = group.nodes[0]
    writer, scope, kind = file.writer(), Scope(2), KIND[node.body.kind]
    places, length, body = _line(file, node, writer, 3)
    for buffer, text in zip(node.writes, ("value", "(long long)order"), strict=True):
        if file.is_stored(group, buffer):
            target = tuple(one.rewritten(places) for one in node.target)
            writer.store(buffer, target, text, scope)
    lines, plan = file.program.count(node.loops[:-1]), file.plan
    padded = length.next_power
    count = _count_of(file, node, lines)
    keys, orders = plan.name(f"keys_{name}"), plan.name(f"orders_{name}")
    wide = {"float": 4, "double": 8, "int": 8, "bool": 1}[node.body.kind]
    dtype = {"float": "f32", "double": "f64", "int": "i64", "bool": "bool"}[node.body.kind]
    at = plan.size(padded)
    total = f"{plan.size(lines)} * {at} if {at} > {_MOST_SHARED} else 1"
    plan.tail += [f"scratch {keys}: {dtype}[{total}]", f"scratch {orders}: i32[{total}]"]
    shared = plan.name(f"shared_{name}")
    plan.tail.append(f"let     {shared} = {at} * {wide + 4} + 8 if {at} <= {_MOST_SHARED} else 0")
    file.launch(
        "sort", name, group, writer, plan.size(lines), f"{THREADS}, {shared}", type=kind, length=length, count=count,
        descending=str(node.op == "descending").lower(), body=body.text, store=scope.text, most=_MOST_SHARED,
    )  # fmt: skip
    plan.tail[-1] = plan.tail[-1].rstrip(")") + f", {keys}, {orders}, {at})"


def _count_of(file: KernelFile, node: Node, lines: Size) -> Size:
    """How many of a line in order are stored."""
    return file.program.numel(node.buffer).over(lines)
