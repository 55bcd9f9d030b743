"""A matrix times a vector: every element of the matrix is used once, so all that matters is how its bytes move."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.playbook.cpp_pieces import LOAD_PAST, PAST_BYTES
from tilewright.playbook.cpp_text import indented
from tilewright.playbook.file_text import Fragment
from tilewright.playbook.gemms.plan_text import Choices, ProductText
from tilewright.playbook.gemms.program import Contraction, Extent, Operand
from tilewright.playbook.gemms.tiles import PACK, add_pieces
from tilewright.playbook.templates import sections

_CUDA = sections("gemms/vectors")

_BLOCK_SUM = _CUDA["block_sum"]


def is_vector_product(product: Contraction) -> bool:
    """Whether one of the operands is a vector at every size."""
    return (product.m.is_one or product.n.is_one) and product.kept is None


@dataclass(frozen=True)
class _Sides:
    """The matrix and the vector, whichever operand each is."""

    matrix: str
    vector: str
    lines: str  # how many sums there are, by the kernel's name for it
    operand: Operand  # the matrix
    extent: Extent
    elements: int  # of the matrix

    @classmethod
    def of(cls, product: Contraction) -> _Sides:
        others = product.k.size * product.batch.size
        first = cls("a", "b", "m", product.a, product.m, product.m.size * others)
        return first if product.n.is_one else cls("b", "a", "n", product.b, product.n, product.n.size * others)

    @property
    def reads_past(self) -> bool:
        """Whether the matrix is small enough for its lines to leave the cache first: see `LOAD_PAST`."""
        return self.elements * self.operand.dtype.itemsize in PAST_BYTES


def vector_product(product: Contraction, op_line: str, choices: Choices = Choices.ALL) -> Fragment:
    """One sum for each row of the matrix, or for each column where k goes down the columns."""
    text, sides = ProductText(product, op_line, choices=choices), _Sides.of(product)
    plan, along = text.plan, sides.operand.along_k
    widest = 16 // sides.operand.dtype.itemsize
    text.tune("THREADS", (256, 128, 512))
    if along:
        text.tune("ROWS", (2, 8, 4, 1), "of the matrix that share what is read of the vector")
    text.width("WIDTH", sides.operand, product.k if along else sides.extent, widest)
    plan.add("tune", "PIECES = 1 | 2 | 4 | 8 | 16 | 32 | 64 | 128 | 256", "that k is cut into")
    plan.add("const", "C_WIDTH = 4 if @n % 4 == 0 else 1", "sums that are added at once")
    per_block = "ROWS" if along else "THREADS * WIDTH"
    plan.add("let", f"@blocks = ceil_div(@{sides.lines}, {per_block}){text.matrices}")
    least = "THREADS * WIDTH" if along else "64"
    fills = f"@blocks * PIECES >= 2 * device.sms or @k / (2 * PIECES) < {least} or PIECES == 256"
    plan.add("need", f"PIECES == 1 or @k / PIECES >= {least}")
    plan.add("need", fills, "as many pieces as fill the GPU")
    plan.add("scratch", f"@partial: f32[PIECES if PIECES > 1 else 0, {text.rows} * @n]")

    parameters = [
        *text.parameters(),
        ("float* __restrict__ partial", "@partial"),
        ("int piece", f"round_up(ceil_div(@k, PIECES), {least})"),
        *text.finish.parameters,
    ]
    body = _along_rows(text, sides) if along else _down_columns(text, sides)
    kernel = text.launched(f"{text.name}_vector", "dim3(@blocks, PIECES)", "THREADS", parameters, "THREADS", body)
    how = (
        "a block goes along ROWS rows at once, so that what it reads of the vector is used ROWS times"
        if along
        else "a thread goes down WIDTH neighbouring columns, and neighbouring threads down the next"
    )
    header = (
        f"{text.name}: a matrix times a vector. Every element of the matrix is used once; {how}. Where that gives too "
        "few blocks for the GPU, k is cut into PIECES and a second kernel adds their sums, always in the same order."
    )
    pieces = [
        [PACK],
        *([[LOAD_PAST]] if along and sides.reads_past else []),
        *([[_BLOCK_SUM]] if along else []),
        text.finish.function,
        kernel,
        add_pieces(text, " when PIECES > 1"),
    ]
    return text.fragment(header, *pieces)


def _begin(text: ProductText, sides: _Sides, per_block: str) -> list[str]:
    lines = sides.lines
    batched = text.product.is_batched
    blocks = f"({lines} + {per_block} - 1) / {per_block}"
    return [
        *([f"const int blocks = {blocks};", *text.batch_lines("blocks")] if batched else []),
        f"const int first = blockIdx.x{' % blocks' if batched else ''} * {per_block};",
        "const int k_begin = min(k, static_cast<int>(blockIdx.y) * piece), k_end = min(k, k_begin + piece);",
    ]


def _along_rows(text: ProductText, sides: _Sides) -> list[str]:
    matrix, vector, lines = sides.matrix, sides.vector, sides.lines
    cpp = sides.operand.dtype.cpp
    vector_cpp = (text.product.b if vector == "b" else text.product.a).dtype.cpp
    place = f"reinterpret_cast<const Pack<{cpp}, WIDTH>*>({matrix} + line * {matrix}_pitch + at_k)"
    return [
        "__shared__ float of_warps[ROWS][THREADS / 32];",
        *_begin(text, sides, "ROWS"),
        "float sums[ROWS][WIDTH] = {};",
        "#pragma unroll 4",
        "for (int at_k = k_begin + threadIdx.x * WIDTH; at_k < k_end; at_k += THREADS * WIDTH) {",
        f"  const auto given = *reinterpret_cast<const Pack<{vector_cpp}, WIDTH>*>({vector} + at_k);",
        "  unrolled for (int i = 0; i < ROWS; ++i) {",
        f"    const int line = min(first + i, {lines} - 1);  // rows beyond the last are read again and not stored",
        f"    const auto one = {f'load_past({place})' if sides.reads_past else f'*{place}'};",
        "    unrolled for (int j = 0; j < WIDTH; ++j)",
        "      sums[i][j] = fmaf(static_cast<float>(one.at[j]), static_cast<float>(given.at[j]), sums[i][j]);",
        "  }",
        "}",
        "unrolled for (int i = 0; i < ROWS; ++i) {",
        "  float total = 0.0f;",
        "  unrolled for (int j = 0; j < WIDTH; ++j) total += sums[i][j];",
        "  total = block_sum(total, of_warps[i]);",
        "  const int line = first + i;",
        f"  if (threadIdx.x == 0 && line < {lines}) {{",
        *indented(_store(text, "total"), 2),
        "  }",
        "}",
    ]


def _down_columns(text: ProductText, sides: _Sides) -> list[str]:
    matrix, vector, lines = sides.matrix, sides.vector, sides.lines
    cpp = sides.operand.dtype.cpp
    return [
        *_begin(text, sides, "(THREADS * WIDTH)"),
        "const int line0 = first + threadIdx.x * WIDTH;",
        f"if (line0 >= {lines}) return;",
        "float sums[WIDTH] = {};",
        "#pragma unroll 8",
        "for (int at_k = k_begin; at_k < k_end; ++at_k) {",
        f"  const float given = static_cast<float>({vector}[at_k]);",
        f"  const auto one = *reinterpret_cast<const Pack<{cpp}, WIDTH>*>({matrix} + at_k * {matrix}_pitch + line0);",
        "  unrolled for (int j = 0; j < WIDTH; ++j) sums[j] = fmaf(static_cast<float>(one.at[j]), given, sums[j]);",
        "}",
        "unrolled for (int j = 0; j < WIDTH; ++j) {",
        "  const int line = line0 + j;",
        *indented(_store(text, "sums[j]")),
        "}",
    ]


def _places(text: ProductText) -> list[str]:
    """Where a sum's row, column and element are; the compiler drops what is not used."""
    if text.product.n.is_one:
        return [f"const long long row = {text.first_row} + line, at = row;", "const int column = 0;"]
    row = "matrix" if text.product.is_batched else "0"
    return [f"const long long row = {row}, at = row * n + line;", "const int column = line;"]


def _store(text: ProductText, sum: str) -> list[str]:
    batches = "(gridDim.x / blocks)" if text.product.is_batched else "1ll"
    used = {"at", *text.finish.takes}
    places = [one for one in _places(text) if "row" in one or "column" in used]
    return [
        *places,
        "if constexpr (PIECES == 1) {",
        f"  c[at] = {text.stored(text.finish.call(sum))};",
        "} else {",
        f"  partial[blockIdx.y * (static_cast<long long>(m) * n * {batches}) + at] = {sum};",
        "}",
    ]
