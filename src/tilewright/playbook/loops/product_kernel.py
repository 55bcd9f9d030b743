"""Launches of matrix products: on tensor cores, with whatever is done to operands and results in the same kernel."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tilewright.playbook.loops.emit import ElementScope, Scope, VectorScope
from tilewright.playbook.loops.grouping import Group, Member
from tilewright.playbook.loops.index import Atom, Index
from tilewright.playbook.loops.ir import Expr, Program, rewrite
from tilewright.playbook.loops.line_kernels import after, counted
from tilewright.playbook.loops.product_fma import write_fma_product
from tilewright.playbook.loops.templates import THREADS, filled
from tilewright.playbook.loops.vectors import Vectors, access_cost, widths
from tilewright.records import DType

if TYPE_CHECKING:
    from tilewright.playbook.loops.codegen import KernelFile

_CHUNK = 8  # elements of 16 bits that lie together in shared memory
_OLDEST = 80  # the compute capability whose tensor cores multiply bf16
_EXACT = {"round_bf16": DType.BF16, "round_f16": DType.F16}
_SMALL = {DType.F8E4M3, DType.F8E5M2, DType.I8, DType.U8, DType.BOOL}  # both 16-bit floats hold them


def write_product(file: KernelFile, group: Group, name: str) -> None:
    _Product(file, group, name).write()


@dataclass
class _Operand:
    """One factor, read along k or along the other direction."""

    word: str  # "a" or "b"
    value: Expr
    along_k: bool
    vectors: Vectors
    parts: int = 1
    holes: dict[str, object] = field(default_factory=dict)


class _Product:
    def __init__(self, file: KernelFile, group: Group, name: str) -> None:
        self.file, self.group, self.name = file, group, name
        self.program, self.writer = file.program, file.writer()
        self.node = next(one for one in group.nodes if one.kind == "reduction")
        assert group.factors is not None
        first, second = group.factors
        self.loops: dict[str, list[Atom]] = {"batch": [], "m": [], "n": [], "k": list(self.node.inner)}
        for loop in self.node.loops:
            of_both = loop.size.is_always(1) or (loop in first.variables and loop in second.variables)
            self.loops["batch" if of_both else "m" if loop in first.variables else "n"].append(loop)
        self.sizes = {word: self.program.count(loops) for word, loops in self.loops.items()}
        for size in self.sizes.values():
            file.index_sizes[size] = None

    def write(self) -> None:
        if self.file.traced.task.profile.cc < _OLDEST:
            write_fma_product(self.file, self.group, self.name)
            return
        assert self.group.factors is not None
        operands = [self._operand(word, value) for word, value in zip("ab", self.group.factors, strict=True)]
        dtype = self._operand_dtype([one.value for one in operands])
        for one in operands:
            one.parts = 1 if dtype in _exact_dtypes(one.value, self.program) else 3
            self._write_operand(one, dtype)
        plan = self.file.plan
        self.file.needs[f"device.cc >= {_OLDEST}"] = None
        tiles = self._tiles(operands)
        is_exact = all(one.parts == 1 for one in operands)
        depth, stages = (64, 3) if is_exact else (32, 2)
        slot = " + ".join(f"{tile} * {one.parts}" for tile, one in zip(tiles, operands, strict=True))
        shared = plan.name(f"shared_{self.name}")
        results = f"{THREADS // 32} * 16 * ({tiles[1]} / 2 + 4) * 4"
        plan.tail.append(f"let     {shared} = max(({slot}) * {2 * depth * stages}, {results})")
        holes = {"tile_m": tiles[0], "tile_n": tiles[1], "stages": stages, "depth": depth, "type": dtype.cpp}
        for one in operands:
            holes |= {f"{one.word}_{key}": text for key, text in one.holes.items() if key != "first"}
            holes |= {f"{one.word}_along_k": str(one.along_k).lower(), f"{one.word}_parts": one.parts}
        holes |= self._results()
        m, n, batch = (plan.size(self.sizes[word]) for word in ("m", "n", "batch"))
        grid = f"ceil_div({m}, {tiles[0]}) * ceil_div({n}, {tiles[1]}) * {batch}"
        holes |= {"m": self.sizes["m"], "n": self.sizes["n"], "k": self.sizes["k"]}
        self.file.launch("product_mma", self.name, self.group, self.writer, grid, f"{THREADS}, {shared}", **holes)

    # -- decisions --

    def _tiles(self, operands: list[_Operand]) -> tuple[str, str]:
        """The sides of a block's tile: no longer than the results, and short enough that all of the GPU has work."""
        plan, sms = self.file.plan, self.file.traced.task.profile.sms
        is_exact = all(one.parts == 1 for one in operands)
        sides = ((256, 128), (128, 128), (64, 64)) if is_exact else ((64, 64),)
        first = next((one for one in sides if self._tile_count(*one) >= sms), sides[-1])
        made = []
        for place, (word, tune) in enumerate((("m", "TILE_M"), ("n", "TILE_N"))):
            choices = "256 | 128 | 64" if word == "m" else "128 | 64"
            self.file.tune(tune, choices, "the longest side of a block's results in products")
            least = 32 if word == "m" else 64
            side = plan.name(f"{tune}_{self.name.upper()}")
            wanted = f"max(next_pow2({plan.size(self.sizes[word])}), {least})"
            plan.tail.append(f"const   {side} = min({tune}, {first[place]}, {wanted})")
            made.append(side)
        return made[0], made[1]

    def _tile_count(self, tile_m: int, tile_n: int) -> int:
        tiles = -(-self.sizes["m"].own // tile_m) * -(-self.sizes["n"].own // tile_n)
        return tiles * self.sizes["batch"].own

    def _operand_dtype(self, values: list[Expr]) -> DType:
        """The 16-bit float that holds both operands; bf16, of which three hold any f32, where neither does."""
        exact = [_exact_dtypes(one, self.program) for one in values]
        both = exact[0] & exact[1]
        if both:
            return DType.BF16 if DType.BF16 in both else DType.F16
        return DType.BF16

    def _operand(self, word: str, factor: Expr) -> _Operand:
        """Read in that direction in which vectors of it are vectors in memory."""
        outer = "m" if word == "a" else "n"
        found: list[tuple[float, _Operand]] = []
        for along_k in (True, False):
            names = {outer: outer if along_k else "column", "k": "column" if along_k else "k", "batch": "batch"}
            value = rewrite(factor, self._places(names))
            columns = self.sizes["k" if along_k else outer]
            member = Member(self.node, value, (), columns)
            for width in widths(self.program, [member]):
                if width <= _CHUNK and (width == 1 or columns.own % width == 0):
                    vectors = Vectors(self.program, width, self.file.unaligned)
                    cost, _ = access_cost(self.program, [member], vectors, {})
                    found.append((cost / max(columns.own, 1), _Operand(word, value, along_k, vectors)))
        return min(found, key=lambda one: one[0])[1]

    def _places(self, names: dict[str, str]) -> dict[Atom, Index]:
        places: dict[Atom, Index] = {}
        for word, name in names.items():
            places |= counted(self.file, self.loops[word], name)[0]
        return places

    # -- text --

    def _write_operand(self, one: _Operand, dtype: DType) -> None:
        writer, outer = self.writer, "m" if one.word == "a" else "n"
        names = ("line", "first_line", "lines"), ("along", "first_along", "columns")
        words = (outer, "k") if one.along_k else ("k", outer)
        holes: dict[str, object] = {"word": one.word, "tile": one.word.upper(), "line": words[0]}
        for (_, first, count), word in zip(names, words, strict=True):
            holes |= {first: f"first_{word}", count: writer.size(self.sizes[word])}
        before = Scope(4)
        vector = VectorScope(4, before)
        element = ElementScope(vector, one.vectors)
        held = dtype.cpp if one.parts == 1 else "float"
        body = one.value
        if one.parts == 1 and _EXACT.get(body.op) is dtype and body.args[0].kind == "float":
            body = body.args[0]  # rounded as it is stored
        made = writer.value(body, element)
        stored = f"tw::from_float<{held}>({made})" if one.parts == 1 else made
        element.add(f"chunk.at[piece + i] = {stored};")
        columns = self.sizes[words[1]]
        width = self.file.width(f"{self.name}_{one.word}", one.vectors, columns)
        text = {"before": before.text, "loads": vector.text, "body": element.text, "held": held}
        chunk = filled("product_chunk", width=width, **holes, **text)
        plain, copy = "false", ""
        load, mask = _plain_load(one.value)
        buffer = self.program.buffers[load.buffer] if load is not None else None
        if load is not None and buffer is not None and one.parts == 1 and one.vectors.width == _CHUNK:
            is_same = mask is None or (not mask.loads and one.vectors.is_same(mask))
            if is_same and buffer.dtype is dtype and one.vectors.packed_step(buffer, load.places) == 1:
                plain = f"{width} == {_CHUNK}"
                slot = "slot" if one.word == "a" else "slot + A::BYTES"
                scope = Scope(6)
                inside = f" && {writer.value(mask, scope)}" if mask is not None else ""
                text = {"place": writer.place(buffer, load.places, scope, False), "inside": inside}
                copy = filled("product_copy", plain=plain, slot=slot, before=scope.text, **text, **holes)
        one.holes = {"chunk": chunk, "copy": copy, "plain": plain, "held": held}

    def _results(self) -> dict[str, object]:
        """What is done with sums, in vectors along n."""
        indices, group = self.program.indices, self.group
        places = self._places({"batch": "batch", "m": "m", "n": "column"})
        flat = indices.ravel([places[one] for one in self.node.loops], indices.strides(self.node.buffer.shape))
        row = indices.var("row", group.rows)

        def moved(value: Expr) -> Expr:
            return rewrite(value, {row: flat})

        members = [
            Member(one.node, moved(one.body), tuple(at.rewritten({row: flat}, moved) for at in one.target), None)
            for one in group.members
        ]
        stores = [(one.node.buffer, one.target) for one in members if self.file.is_stored(group, one.node.buffer)]
        found = []
        for width in widths(self.program, members, stores):
            vectors = Vectors(self.program, width, self.file.unaligned)
            cost, _ = access_cost(
                self.program, [one for one in members if one.node is not self.node], vectors, group.written, stores
            )
            if self.sizes["n"].own % width == 0:
                found.append((cost, vectors))
        vectors = min(found, key=lambda one: one[0])[1]
        before = Scope(3)
        vector = VectorScope(3, before)
        element = ElementScope(vector, vectors)
        after(self.file, group, self.node, ["sum"], self.writer, element, {one.node: one for one in members})
        wide = self.file.width(f"{self.name}_out", vectors, self.sizes["n"])
        lines = "\n".join(one for one in (before.text, vector.text) if one)
        return {"width": wide, "loads": lines, "body": element.text, "stores": "\n".join(vector.stores)}


def _plain_load(value: Expr) -> tuple[Expr | None, Expr | None]:
    """The load that an operand is, nothing but zeros beside it, and when it is made; no load that is looked up."""
    test = None
    if value.op == "where" and value.args[2].op == "constant" and value.args[2].data == 0:
        test, value = value.args[0], value.args[1]
    if value.op != "load" or any(index.lookups for index in value.places):
        return None, None
    return value, value.world.both(value.mask, test)


def _exact_dtypes(value: Expr, program: Program) -> frozenset[DType]:
    """The 16-bit floats of which every number that the expression can be is one."""
    both, none = frozenset((DType.BF16, DType.F16)), frozenset[DType]()
    if value.op == "load":
        dtype = program.buffers[value.buffer].dtype
        return both if dtype in _SMALL else frozenset((dtype,)) & both
    if value.op in _EXACT:
        return frozenset((_EXACT[value.op],))
    if value.op == "constant":
        number = value.data
        return both if isinstance(number, (int, float)) and abs(number) <= 256 and number == int(number) else none
    if value.op in ("to_float", "neg", "abs", "relu"):
        is_known = value.op != "to_float" or value.args[0].op == "load" or value.args[0].kind == "bool"
        return (
            _exact_dtypes(value.args[0], program)
            if is_known and value.args[0].kind != "bool"
            else both
            if is_known
            else none
        )
    if value.op in ("where", "maximum", "minimum"):
        parts = value.args[1:] if value.op == "where" else value.args
        return _exact_dtypes(parts[0], program) & _exact_dtypes(parts[1], program)
    return none
