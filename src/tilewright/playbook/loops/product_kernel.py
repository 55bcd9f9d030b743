"""Launches of matrix products: operands and epilogue filled into the templates of GEMMs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.playbook.loops.emit import Scope
from tilewright.playbook.loops.gemm import STEP_BYTES, TILES, Operand, Product, choose, read_product
from tilewright.playbook.loops.grouping import Group
from tilewright.playbook.loops.templates import THREADS, filled
from tilewright.playbook.loops.tile_text import OperandText, TileWriter, epilogue
from tilewright.playbook.loops.vectors import Vectors
from tilewright.records import DType

if TYPE_CHECKING:
    from tilewright.playbook.loops.codegen import KernelFile

_MULTIPLY = {
    DType.BF16: "tw::multiply_halves<true, ",
    DType.F16: "tw::multiply_halves<false, ",
    DType.F32: "tw::multiply_singles<",
}
_FORMATS = {DType.BF16: "bf16", DType.F16: "f16", DType.F32: "f32 as two TF32 parts"}


def write_product(file: KernelFile, group: Group, name: str) -> None:
    product = read_product(file, group)
    for size in product.sizes.values():
        file.index_sizes[size] = None
    _Gemm(file, product, name).write()


class _Gemm:
    def __init__(self, file: KernelFile, product: Product, name: str) -> None:
        self.file, self.product, self.name = file, product, name
        self.choice = choose(product)
        self.is_split = self.choice.splits[0] > 1

    def write(self) -> None:
        file, product, plan = self.file, self.product, self.file.plan
        file.require("device.cc >= 80")
        self._name_constants()
        writer = TileWriter(file.program, file.memory.names)
        operands = {f"{one.word}_operand": self._operand(one, writer) for one in (product.a, product.b)}
        holes: dict[str, object] = {
            **self.constants,
            **operands,
            "again": self._again(writer),
            "range": self._range(writer),
        }
        holes |= self._partial(writer) if self.is_split else self._epilogue(writer, self.name)
        sizes = {word: product.sizes[word] for word in ("m", "n")}
        tiles = " * ".join(
            f"ceil_div({plan.size(product.sizes[word])}, {self.constants[side]})"
            for word, side in (("m", "bm"), ("n", "bn"))
        )
        blocks = f"{tiles} * {plan.size(product.sizes['batch'])}"
        grid = f"dim3({blocks}, {self.splits})" if self.is_split else blocks
        file.launch(
            "gemm", self.name, product.group, writer, grid, f"{self.constants['threads']}, {self.shared}",
            element=product.element.cpp, method=self._method, multiply=_MULTIPLY[product.element], **sizes, **holes,
        )  # fmt: skip
        if self.is_split:
            self._add_pieces()

    @property
    def _method(self) -> str:
        words = {one.word: f"{one.word} ({'by cp.async' if one.is_plain else 'computed'})" for one in self._operands}
        text = f"Tiles of {words['a']} and {words['b']} come into a ring of slots in shared memory; "
        text += f"mma.sync multiplies {_FORMATS[self.product.element]}."
        return text + (" Pieces of k are summed apart." if self.is_split else "")

    @property
    def _operands(self) -> tuple[Operand, Operand]:
        return self.product.a, self.product.b

    def _name_constants(self) -> None:
        """Plan lines of the tile; only the largest product of a file is tuned, so that choices do not multiply."""
        plan, word = self.file.plan, self.name.upper()
        is_tuned = self.file.largest_product is self.product.group
        tiles, splits = self.choice.tiles, self.choice.splits
        tile, self.splits = plan.name(f"TILE_{word}"), plan.name(f"SPLITS_{word}")
        self.constants: dict[str, object] = {"bk": self.product.depth, "stages": self.product.stages}
        kinds = {"bm": "rows", "bn": "columns", "warps_m": "warps_m", "warps_n": "warps_n"}
        if is_tuned and len(tiles) > 1:
            plan.tail.append(f"tune    {tile} = {' | '.join(map(str, tiles))}")
            names = {key: plan.name(f"{key.upper()}_{word}") for key in kinds}
            lines = [f"{names[key]} = {_chosen(tile, tiles, kind)}" for key, kind in kinds.items()]
            plan.tail += [f"const   {one}" for one in lines]
            self.constants |= names
        else:
            self.constants |= {key: getattr(TILES[tiles[0]], kind) for key, kind in kinds.items()}
        if self.is_split and is_tuned and len(splits) > 1:
            plan.tail.append(f"tune    {self.splits} = {' | '.join(map(str, splits))}")
        elif self.is_split:
            self.splits = str(splits[0])
        warps = f"{self.constants['warps_m']} * {self.constants['warps_n']}"
        self.constants["threads"] = f"32 * {warps}"
        self.shared = f"{self.product.stages * STEP_BYTES} * ({self.constants['bm']} + {self.constants['bn']})"

    # -- operands --

    def _operand(self, one: Operand, writer: TileWriter) -> str:
        other, sizes = "m" if one.word == "a" else "n", self.product.sizes
        text = OperandText(self.file, self.name, writer, one)
        return text.text(f"B{other.upper()}", "BK", (writer.size(sizes[other]), sizes[other]), ("k_end", sizes["k"]))

    def _again(self, writer: TileWriter) -> str:
        """For f32: a sum by plain arithmetic, where the parts of numbers have overflown."""
        if self.product.element is not DType.F32:
            return ""
        scope = Scope(3)
        a, b = (writer.value(one, scope) for one in self.product.factors)
        scope.add(f"sum = fmaf({a}, {b}, sum);")
        return filled("gemm_again", body=scope.text)

    def _range(self, writer: TileWriter) -> str:
        k = writer.size(self.product.sizes["k"])
        if not self.is_split:
            return f"  const index_t k_begin = 0, k_end = {k};"
        return "\n".join(
            [
                f"  const index_t piece_of_k = (({k} + {self.splits} - 1) / {self.splits} + BK - 1) / BK * BK;",
                f"  const index_t k_begin = min(index_t({k}), blockIdx.y * piece_of_k);",
                f"  const index_t k_end = min(index_t({k}), k_begin + piece_of_k);",
            ]
        )

    # -- results --

    def _epilogue(self, writer: TileWriter, name: str) -> dict[str, object]:
        one = self.product
        correction = "" if self.is_split else self._correction
        return epilogue(
            self.file, name, one.group, one.node, one.members, one.vectors, one.sizes["n"], writer, correction
        )

    @property
    def _correction(self) -> str:
        return "if (sum != sum) sum = again(line, column + i);" if self.product.element is DType.F32 else ""

    def _partial(self, writer: TileWriter) -> dict[str, object]:
        """The sums of a piece of k go to scratch memory as they are."""
        product, plan = self.product, self.file.plan
        m, n, batch = (product.sizes[word] for word in ("m", "n", "batch"))
        self.partial = plan.name(f"partial_{self.name}")
        plan.tail.append(
            f"scratch {self.partial}: f32[{self.splits} * {plan.size(batch)} * {plan.size(m)} * {plan.size(n)}]"
        )
        self.sum_width = self.file.width(f"c_{self.name}", Vectors(self.file.program, 4), n)
        writer.used[self.partial] = DType.F32, True
        body = Scope(4)
        if self._correction:
            body.add(self._correction)
        body.add("piece_sums.at[i] = sum;")
        rows, columns = writer.size(m), writer.size(n)
        at = f"(((long long)blockIdx.y * {writer.size(batch)} + batch) * {rows} + line) * {columns} + column"
        return {
            "width": self.sum_width,
            "loads": "      tw::Packed<float, WIDTH> piece_sums;",
            "body": body.text,
            "stores": f"      tw::store_packed({self.partial}_data + {at}, piece_sums);",
        }

    def _add_pieces(self) -> None:
        product, plan, file = self.product, self.file.plan, self.file
        name = f"{self.name}_sum"
        writer = TileWriter(file.program, file.memory.names)
        writer.used[self.partial] = DType.F32, False
        holes = self._epilogue(writer, name)
        rows = product.sizes["batch"] * product.sizes["m"]
        file.index_sizes[rows * product.sizes["n"]] = None
        grid = f"ceil_div({plan.size(rows)} * {plan.size(product.sizes['n'])}, {THREADS} * {holes['width']})"
        file.launch(
            "gemm_sum", name, product.group, writer, grid, str(THREADS), partial=self.partial, splits=self.splits,
            rows=rows, m=product.sizes["m"], n=product.sizes["n"], **holes,
        )  # fmt: skip


def _chosen(name: str, tiles: tuple[int, ...], kind: str) -> str:
    *rest, last = tiles
    text = str(getattr(TILES[last], kind))
    for one in reversed(rest):
        text = f"{getattr(TILES[one], kind)} if {name} == {one} else {text}"
    return text
