"""What the files of all products have in common: sizes in the plan, parameters of kernels, which tile a block has."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from tilewright.playbook.file_text import MOST_32_BIT, Fragment, KernelSignature, PlanLines, fragment, includes
from tilewright.playbook.gemms.epilogue_text import EpilogueText, epilogue_text
from tilewright.playbook.gemms.program import Extent, Gemm, Operand
from tilewright.records import DType


class Choices(Enum):
    """What of a product is left to autotuning: a file has room for so many combinations, and a chain shares them."""

    ALL = "all"
    TILES = "the sizes of tiles"
    NONE = "nothing"


class SumsText:
    """What files of products and of convolutions have in common: choices, and what is done with sums."""

    plan: PlanLines
    choices: Choices

    @property
    def epilogue(self) -> EpilogueText:
        raise NotImplementedError

    @property
    def elements(self) -> tuple[DType, ...]:
        """The types of what is multiplied."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        return self.plan.program.name

    def tune(self, name: str, choices: tuple[int, ...], remark: str = "") -> None:
        self._choice(name, choices if self.choices is Choices.ALL else choices[:1], remark)

    def _choice(self, name: str, choices: tuple[int, ...], remark: str) -> None:
        directive = "tune" if len(choices) > 1 else "const"
        self.plan.add(directive, f"{name} = {' | '.join(str(one) for one in choices)}", remark)

    def launched(
        self,
        name: str,
        grid: str,
        block: str,
        pairs: list[tuple[str, str]],
        bounds: str,
        body: list[str],
        rest: str = "",
    ) -> list[str]:
        """A kernel of the file: declarations of its parameters with what the plan gives; its launch is in the plan."""
        signature = KernelSignature([one for one, _ in pairs], [other for _, other in pairs])
        self.plan.launch(name, grid, block, signature.given, rest)
        return signature.kernel(f"__launch_bounds__({bounds})", name, body)

    def stored(self, value: str) -> str:
        """A finished value as an element of the result."""
        dtype = self.plan.program.outputs[0].dtype
        return value if dtype is DType.F32 else f"static_cast<{dtype.cpp}>({value})"

    def fragment(self, header: str, *pieces: list[str]) -> Fragment:
        more = {DType.BF16: "cuda_bf16.h", DType.F16: "cuda_fp16.h"}
        own = {f"#include <{more[one]}>" for one in self.elements if one in more}
        included = sorted({*includes(self.plan.program), *own})
        return fragment(header, self.plan, included, *self.epilogue.helpers, *pieces)


@dataclass
class ProductText(SumsText):
    """The state of one product being written."""

    product: Gemm
    op_line: str
    choices: Choices = Choices.ALL

    def __post_init__(self) -> None:
        self.plan = PlanLines(self.product.epilogue, self.op_line)
        one = self.product
        sizes = [f"@m = {one.m.expression}, @n = {one.n.expression}, @k = {one.k.expression}"]
        sizes += [f"@batch = {one.batch.expression}"] if one.is_batched else []
        self.plan.add("let", ", ".join(sizes))
        self.plan.add("need", f"max(@m, @n, @k) <= {MOST_32_BIT}", "places, rounded up to a tile, fit an int")

    @cached_property
    def epilogue(self) -> EpilogueText:
        return epilogue_text(self.product)

    @property
    def elements(self) -> tuple[DType, ...]:
        return (self.product.a.dtype, self.product.b.dtype)

    # -- the plan --

    def tile(self, name: str, choices: tuple[int, ...], remark: str = "") -> None:
        """The size of a tile: the largest first, the smallest where nothing may be chosen."""
        if self.choices is Choices.TILES:
            choices = choices[:2]
        self._choice(name, choices if self.choices is not Choices.NONE else (64,), remark)

    @property
    def matrices(self) -> str:
        """How many matrices the batch has, as a factor behind something; "" for one."""
        return " * @batch" if self.product.is_batched else ""

    @property
    def rows(self) -> str:
        """The rows of all matrices."""
        return "@batch * @m" if self.product.is_batched else "@m"

    def width(self, constant: str, operand: Operand, inner: Extent, widest: int) -> None:
        """A constant: as many elements as are read at once, where every row of neighbours is so many long."""
        lengths = [self._named(inner), self._named(operand.pitch)]
        if self.product.is_batched and operand.batch_pitch.expression != "0":
            lengths.append(f"{operand.batch_pitch.expression}")
        whole = " and ".join(f"{_bracketed(one)} % {widest} == 0" for one in dict.fromkeys(lengths))
        self.plan.add("const", f"{constant} = {widest} if {whole} else 1")

    def _named(self, extent: Extent) -> str:
        """A size by its name in the plan, where it has one."""
        return {self.product.m: "@m", self.product.n: "@n", self.product.k: "@k"}.get(extent, extent.expression)

    # -- kernels --

    def parameters(self, target: tuple[str, str] | None = None) -> list[tuple[str, str]]:
        """Operands, the tensor that is written, sizes and pitches: declarations and plan expressions."""
        one = self.product
        written = target or (f"{one.output.dtype.cpp}* __restrict__ c", one.output.name)
        pairs = [
            (f"const {one.a.dtype.cpp}* __restrict__ a", one.a.tensor),
            (f"const {one.b.dtype.cpp}* __restrict__ b", one.b.tensor),
            written,
            *((f"int {size}", f"@{size}") for size in "mnk"),
            ("long long a_pitch", self._named(one.a.pitch)),
            ("long long b_pitch", self._named(one.b.pitch)),
        ]
        if one.is_batched:
            pairs += [
                ("long long a_batch", one.a.batch_pitch.expression),
                ("long long b_batch", one.b.batch_pitch.expression),
            ]
        return pairs

    # -- pieces of the kernels' text --

    def batch_lines(self, tiles: str) -> list[str]:
        """Which matrix of the batch a block works on, and its operands moved there."""
        if not self.product.is_batched:
            return [f"const int tile = blockIdx.x % ({tiles}), matrix = 0;"][:0]
        lines = [f"const int matrix = blockIdx.x / ({tiles});"]
        for name, operand in (("a", self.product.a), ("b", self.product.b)):
            if operand.batch_pitch.expression != "0":
                lines.append(f"{name} += matrix * {name}_batch;")
        return lines

    def tile_lines(self, rows: str, columns: str) -> list[str]:
        """Which tile: groups of tile rows, column by column inside a group."""
        tile = "blockIdx.x % (tiles_m * tiles_n)" if self.product.is_batched else "blockIdx.x"
        return [
            f"const int tiles_m = (m + {rows} - 1) / {rows}, tiles_n = (n + {columns} - 1) / {columns};",
            *self.batch_lines("tiles_m * tiles_n"),
            f"const int tile = {tile};",
            "const int group = tile / (TILE_GROUP * tiles_n), in_group = tile % (TILE_GROUP * tiles_n);",
            "const int group_rows = min(TILE_GROUP, tiles_m - group * TILE_GROUP);",
            f"const int m0 = (group * TILE_GROUP + in_group % group_rows) * {rows};",
            f"const int n0 = in_group / group_rows * {columns};",
        ]

    @property
    def first_row(self) -> str:
        """The number of the matrix's first row among the rows of all matrices."""
        return "static_cast<long long>(matrix) * m" if self.product.is_batched else "0ll"


def _bracketed(expression: str) -> str:
    return f"({expression})" if " " in expression else expression


TILE_GROUP = "constexpr int TILE_GROUP = 8;  // rows of tiles walked together: blocks in flight share operands in L2"
