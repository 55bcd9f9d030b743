"""Launches of attention: tiles of keys and values go by while a block's rows stay in registers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.playbook.loops.attention import AttentionNode, key_range, parts_of
from tilewright.playbook.loops.emit import Scope
from tilewright.playbook.loops.gemm import placed, read_operand, result_members, result_vectors
from tilewright.playbook.loops.grouping import Group
from tilewright.playbook.loops.index import Index
from tilewright.playbook.loops.ir import Expr, rewrite
from tilewright.playbook.loops.sizes import Size
from tilewright.playbook.loops.tile_text import OperandText, TileWriter, epilogue
from tilewright.records import DType

if TYPE_CHECKING:
    from tilewright.playbook.loops.codegen import KernelFile


def write_attention(file: KernelFile, group: Group, name: str) -> None:
    _Attention(file, group, name).write()


class _ScoreScope(Scope):
    """A score's own values; what depends on no row and no key is outside of the loops."""

    def keeps(self, one: Expr) -> bool:
        return bool(one.variables) or bool(one.loads)


def _by_reciprocals(score: Expr) -> Expr:
    """Quotients by what is the same for all scores as products; terms are rounded to 16 bits later."""
    if not score.args or score.op == "load":
        return score
    args = tuple(_by_reciprocals(one) for one in score.args)
    if score.op == "div" and score.kind == "float" and not args[1].variables and not args[1].loads:
        return score.world.expr("mul", (args[0], score.world.expr("reciprocal", (args[1],))))
    return score.world.expr(score.op, args, score.kind, score.data)


class _Attention:
    def __init__(self, file: KernelFile, group: Group, name: str) -> None:
        self.file, self.group, self.name = file, group, name
        self.node = next(one for one in group.nodes if isinstance(one, AttentionNode))
        self.parts = parts_of(self.node)
        self.sizes = {word: file.program.count(loops) for word, loops in self.parts.items()}
        self.writer = TileWriter(file.program, file.memory.names)

    def write(self) -> None:
        file, sizes, writer = self.file, self.sizes, self.writer
        file.require("device.cc >= 80")
        for size in (*sizes.values(), sizes["batch"] * sizes["m"]):
            file.index_sizes[size] = None
        members = result_members(file.program, self.group, self.node, self.parts)
        vectors = result_vectors(file, self.group, members)
        constants = self._constants()
        holes = epilogue(file, self.name, self.group, self.node, members, vectors, sizes["n"], writer)
        holes |= {f"{word}_operand": text for word, text in self._operands().items()}
        element = self.node.of.element
        holes |= self._score() | {"range": self._range(), "element": element.cpp, "format": element.value}
        holes |= {"is_bf16": str(element is DType.BF16).lower()}
        holes["empty"] = "0.f" if self.node.of.is_zero_if_empty else "NAN"
        grid = f"ceil_div({file.plan.size(sizes['m'])}, 16 * {constants['warps']}) * {file.plan.size(sizes['batch'])}"
        file.launch(
            "flash", self.name, self.group, writer, grid, f"{constants['threads']}, {self.shared}", m=sizes["m"],
            n=sizes["n"], **constants, **holes,
        )  # fmt: skip

    def _constants(self) -> dict[str, object]:
        """Tiles by the length of a head: as many rows and keys as registers and shared memory take."""
        plan, word = self.file.plan, self.name.upper()
        depth, values = (
            self._padded(f"{kind}_{word}", self.sizes[of]) for kind, of in (("DEPTH", "depth"), ("VALUES", "n"))
        )
        warps, keys = plan.name(f"WARPS_{word}"), plan.name(f"KEYS_{word}")
        longest = f"max({depth}, {values})"
        few = self.sizes["m"].own <= 64
        plan.tail.append(f"tune    {warps} = {'4 | 8' if few else '8 | 4'}  # each has 16 rows")
        plan.tail.append(f"need    {warps} == 4 or {longest} <= 128")
        plan.tail.append(f"const   {keys} = 64 if {longest} <= 128 else 32")
        staged = f"64 * {warps} * ({values} + 8)"
        tiles = f"2 * (16 * {warps} * {depth} + 2 * {keys} * ({depth} + {values}))"
        self.shared = f"max({tiles}, {staged})"
        plan.tail.append(f"need    {self.shared} <= device.smem_block")
        return {"depth": depth, "values": values, "warps": warps, "key_tile": keys, "threads": f"32 * {warps}"}

    def _padded(self, name: str, size: Size) -> str:
        plan = self.file.plan
        made = plan.name(name)
        plan.tail.append(f"const   {made} = max(next_pow2({plan.size(size)}), 32)")
        plan.tail.append(f"need    {made} <= 256")
        return made

    def _operands(self) -> dict[str, str]:
        file, of, size = self.file, self.node.of, self.writer.size
        found = {}
        for word, value, other, k, tile, depth in (
            ("q", of.query, "m", "depth", "ROWS", "DEPTH"),
            ("k", of.keys, "keys", "depth", "KEYS", "DEPTH"),
            ("v", of.values, "n", "keys", "VALUES", "KEYS"),
        ):
            operand = read_operand(file, word, value, self.parts, other, k, of.element)
            ends = {one: (size(self.sizes[one]), self.sizes[one]) for one in (other, k)}
            text = OperandText(file, self.name, self.writer, operand)
            found[word] = text.text(tile, depth, ends[other], ends[k])
        return found

    def _score(self) -> dict[str, object]:
        """The score of one row and key, where both exist; what is the same for all of them is made once."""
        outer = Scope(1)
        scope = _ScoreScope(7, outer)
        self.writer.of_row[self.node.of.scored] = "score"
        value = self.writer.value(_by_reciprocals(self._placed_score), scope)
        scope.add(f"scores[0][j][r] = {value};")
        return {"score": scope.text, "before": outer.text}

    @property
    def _placed_score(self) -> Expr:
        places = placed(self.file.program, self.parts, {"m": "line", "keys": "column"})
        return rewrite(self.node.of.score, places)

    def _range(self) -> str:
        """The keys that any row of a block looks at."""
        indices = self.file.program.indices
        line, column = (indices.var(*one) for one in (("line", self.sizes["m"]), ("column", self.sizes["keys"])))
        found = key_range(self.file.program, self._placed_score, line, column)
        keys = self.writer.size(self.sizes["keys"])
        begin, end = "0", keys
        if found.most is not None:
            end = f"min(index_t({keys}), first_m + ROWS - 1 + {self._bound(found.most)})"
        if found.least is not None:
            begin = f"max(index_t(0), first_m + {self._bound(found.least)}) / KEYS * KEYS"
        return f"  const index_t keys_begin = {begin}, keys_end = {end};"

    def _bound(self, index: Index) -> str:
        return self.writer.index(index, Scope(1))
