"""Matrix products on GPUs whose tensor cores do not multiply bf16: in f32, tiles of shared memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.playbook.loops.emit import Scope
from tilewright.playbook.loops.grouping import Group
from tilewright.playbook.loops.index import Atom, Index
from tilewright.playbook.loops.ir import Expr, rewrite
from tilewright.playbook.loops.line_kernels import after, counted
from tilewright.playbook.loops.sizes import Size
from tilewright.playbook.loops.templates import THREADS

if TYPE_CHECKING:
    from tilewright.playbook.loops.codegen import KernelFile


def write_fma_product(file: KernelFile, group: Group, name: str) -> None:
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
        found, sizes[word] = counted(file, loops, word)
        places |= found
        file.index_sizes[sizes[word]] = None
    writer, loads, holes = file.writer(), [], dict[str, object]()
    for word, other, factor in (("a", "m", first), ("b", "n", second)):
        value = rewrite(factor, places)
        loads.append(Scope(4))
        loads[-1].add(f"{word}_value = {writer.value(value, loads[-1])};")
        by_k = _is_along(file, value, "k", other)
        holes[f"{word}_along_k"] = "piece / DEPTH" if by_k else "piece % TILE"
        holes[f"{word}_at_k"] = "piece % DEPTH" if by_k else "piece / TILE"
    scope, indices = Scope(3), file.program.indices
    flat = indices.ravel([places[one] for one in node.loops], node.buffer.strides)
    row = writer.index(flat, scope)
    after(file, group, node, ["sum"], writer, scope)
    tiles = [f"ceil_div({file.plan.size(sizes[word])}, 64)" for word in ("m", "n")]
    grid = f"{tiles[0]} * {tiles[1]} * {file.plan.size(sizes['batch'])}"
    holes |= {word: sizes[word] for word in ("m", "n", "k")}
    holes |= {"row": row, "a_body": loads[0].text, "b_body": loads[1].text, "epilogue": scope.text}
    file.launch("product", name, group, writer, grid, str(THREADS), **holes)


def _is_along(file: KernelFile, value: Expr, inner: str, other: str) -> bool:
    """Whether neighbours in memory are neighbours along k rather than along m or n."""
    for load in value.loads:
        buffer = file.program.buffers[load.buffer]
        flat = file.program.indices.ravel(load.places, buffer.strides)
        start, along, across = (flat.evaluated(at) for at in ({}, {inner: 1}, {other: 1}))
        if across - start == 1 and along - start != 1:
            return False
    return True
