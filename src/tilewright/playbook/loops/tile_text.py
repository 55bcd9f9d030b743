"""What GEMMs and attention share in their text: operands that fill tiles of shared memory, and the epilogue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.playbook.loops.emit import ElementScope, Scope, VectorScope, Writer
from tilewright.playbook.loops.gemm import Operand
from tilewright.playbook.loops.grouping import Group, Member
from tilewright.playbook.loops.index import Index
from tilewright.playbook.loops.ir import Expr, Node
from tilewright.playbook.loops.line_kernels import after
from tilewright.playbook.loops.narrow import HALVES
from tilewright.playbook.loops.sizes import Size
from tilewright.playbook.loops.templates import filled
from tilewright.playbook.loops.vectors import Vectors

if TYPE_CHECKING:
    from tilewright.playbook.loops.codegen import KernelFile


class TileWriter(Writer):
    """Places in a vector are counted from that of its first element, whose quotients are taken once."""

    def index(self, index: Index, scope: Scope) -> str:
        if isinstance(scope, ElementScope) and any(atom.kind in ("div", "mod") for atom, _ in index.terms):
            step = scope.vectors.step(index)
            if step is not None:
                first = self.value(self.program.exprs.position(index), scope.outer)
                return first if step == 0 else f"({first} + {'' if step == 1 else f'{step} * '}i)"
        return super().index(index, scope)

    def _load(self, one: Expr, scope: Scope) -> str:
        if isinstance(scope, ElementScope) and self._is_shifted(one, scope.vectors):
            mask = self.value(one.mask, scope) if one.mask else ""
            read = f"tw::to_float({self._shifted(one, scope)}.at[i])"
            return f"{mask} ? {read} : 0.f" if mask else read
        return super()._load(one, scope)

    def _is_shifted(self, one: Expr, vectors: Vectors) -> bool:
        """Whether a vector of columns lies together in memory, but begins anywhere."""
        buffer = self.program.buffers[one.buffer]
        count = self.program.numel(buffer)
        dense = buffer.strides == self.program.indices.strides(buffer.shape) and buffer.name not in vectors.unaligned
        if not dense or buffer.dtype not in HALVES or vectors.width != 8 or vectors.load_step(one):
            return False
        return vectors.step(self.program.indices.ravel(one.places, buffer.strides)) == 1 and vectors.holds(count)

    def _shifted(self, one: Expr, scope: ElementScope) -> str:
        outer, buffer = scope.outer, self.program.buffers[one.buffer]
        if one not in outer.packs:
            at = super().index(self.program.indices.ravel(one.places, buffer.strides), outer)
            name = outer.packs[one] = self.name("p")
            self.used.setdefault(self.memory[buffer.name], (buffer.dtype, False))
            count = self.size(self.program.numel(buffer))
            call = f"tw::load_shifted<WIDTH>({self.memory[buffer.name]}_data, {at}, {count})"
            outer.add(f"const auto {name} = {call};")
        return outer.packs[one]


class OperandText:
    """The text of one operand: a tile of `tile` places beside k, and of `depth` along it."""

    def __init__(self, file: KernelFile, kernel: str, writer: TileWriter, one: Operand) -> None:
        self.file, self.kernel, self.writer, self.one = file, kernel, writer, one

    def text(self, tile: str, depth: str, other: tuple[str, Size], along: tuple[str, Size]) -> str:
        """`other` and `along` are the ends of the places beside k and along it, and the sizes that they have."""
        one = self.one
        (lines, _), (columns, size) = (along, other) if one.is_turned else (other, along)
        width_name = f"{one.word}_{self.kernel}"
        holes: dict[str, object] = {
            "word": one.word, "upper": one.word.upper(), "turned": str(one.is_turned).lower(), "tile": tile,
            "depth": depth, "lines": lines, "columns": columns,
        }  # fmt: skip
        if one.is_plain:
            scope, load = Scope(2), one.value
            place = self.writer.place(self.file.program.buffers[load.buffer], load.places, scope, False)
            width = self.file.width(width_name, one.vectors, size)
            return filled("gemm_plain", width=width, before=scope.text, place=place, **holes)
        outer = Scope(4)
        vector = VectorScope(4, outer)
        element = ElementScope(vector, one.vectors)
        value = self.writer.value(one.value, element)
        element.add(f"values[part + i] = is_inside ? {value} : 0.f;")
        width = self.file.width(width_name, one.vectors, size)
        return filled("gemm_prologue", width=width, loads=_joined(outer, vector), body=element.text, **holes)


def epilogue(
    file: KernelFile,
    name: str,
    group: Group,
    anchor: Node,
    members: tuple[Member, ...],
    vectors: Vectors,
    columns: Size,
    writer: TileWriter,
    correction: str = "",
) -> dict[str, object]:
    """What is done with each `sum` before it is stored, for vectors of columns."""
    outer = Scope(3)
    vector = VectorScope(3, outer)
    element = ElementScope(vector, vectors)
    if correction:
        element.add(correction)
    after(file, group, anchor, ["sum"], writer, element, {one.node: one for one in members})
    width = file.width(f"c_{name}", vectors, columns)
    stores = "\n".join(vector.stores)
    return {"width": width, "loads": _joined(outer, vector), "body": element.text, "stores": stores}


def _joined(*scopes: Scope) -> str:
    return "\n".join(one.text for one in scopes if one.text)
