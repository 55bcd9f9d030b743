"""GEMMs without tensor cores: tiles in shared memory, and matrix times vector."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.playbook.cpp_pieces import LOAD_PAST, PAST_BYTES
from tilewright.playbook.cpp_text import indented
from tilewright.playbook.file_text import Fragment
from tilewright.playbook.gemms.epilogue_text import kept_sum, skipped_tile
from tilewright.playbook.gemms.plan_text import TILE_GROUP, Choices, ProductText
from tilewright.playbook.gemms.program import Extent, Gemm, Operand
from tilewright.playbook.templates import sections

_CUDA = sections("gemms/tiles")

_PIECES = "64 | 32 | 16 | 8 | 4 | 2"
_LEAST_PIECE = 256  # of k

PIECES_HEADER = (
    "\n\nThe result is too small to fill the GPU: k is cut into PIECES, and a second kernel adds their sums, always in "
    "the same order."
)
PACK = _CUDA["pack"]


def tiled_product(product: Gemm, op_line: str, pieces: bool = False, choices: Choices = Choices.ALL) -> Fragment:
    """Tiles of BM by BN sums; with `pieces`, k is cut and a second kernel adds."""
    text = ProductText(product, op_line, choices=choices)
    plan = text.plan
    text.tile("BM", (128, 64, 32), "rows and columns of a tile")
    text.tile("BN", (128, 64, 32))
    plan.add("need", "BM * BN >= 4096")
    plan.add("const", "BK = 16")
    plan.add("let", f"@tiles = ceil_div(@m, BM) * ceil_div(@n, BN){text.matrices}")
    smallest = "BM * BN == 4096"
    if pieces:
        plan.add("tune", f"PIECES = {_PIECES} | 1", "that k is cut into")
        plan.add("need", f"@tiles * PIECES >= device.sms or {smallest}", "smaller tiles where large ones are few")
        rule = f"@tiles * PIECES <= 8 * device.sms and @k / PIECES >= {_LEAST_PIECE}"
        plan.add("need", f"PIECES == 1 or ({rule})")
    else:
        plan.add("need", f"@tiles >= device.sms or {smallest}", "smaller tiles where large ones are few")
    text.width("A_WIDTH", product.a, product.k if product.a.along_k else product.m, 4)
    text.width("B_WIDTH", product.b, product.k if product.b.along_k else product.n, 4)
    plan.add("const", "C_WIDTH = 4 if @n % 4 == 0 else 1", "elements that are stored at once")

    kernels = kernels_of_tiles(text, f"{text.name}_tiles", "BM * BN / 64", _body(text, pieces), pieces)
    constants = [
        "constexpr int THREADS = BM * BN / 64, HALF_M = BM / 2, HALF_N = BN / 2;",
        "constexpr int PAD = 4;  // keeps the columns of a tile apart in the banks",
        TILE_GROUP,
    ]
    header = (
        f"{text.name} without tensor cores: a block computes a tile of BM x BN sums, a thread eight by eight of them "
        "in registers, so that each value read from shared memory is used eight times. The loads of the next step run "
        "under the arithmetic of the present one."
    )
    header += PIECES_HEADER if pieces else ""
    return text.fragment(header, constants, [PACK], [_CUDA["tile_copy"]], text.epilogue.function, *kernels)


def kernels_of_tiles(text: ProductText, name: str, block: str, body: list[str], pieces: bool) -> list[list[str]]:
    """The kernel, and where k is cut the one that adds the pieces; their launches go into the plan."""
    if not pieces:
        parameters = [*text.parameters(), *text.epilogue.parameters]
        return [text.launched(name, "@tiles", block, parameters, "THREADS", body)]
    text.plan.add("scratch", f"@partial: f32[PIECES, {text.rows}, @n]")
    written = text.parameters(("float* __restrict__ partial", "@partial"))
    parameters = [*written, ("int piece", "round_up(ceil_div(@k, PIECES), BK)")]
    return [text.launched(name, "dim3(@tiles, PIECES)", block, parameters, "THREADS", body), add_pieces(text)]


def _body(text: ProductText, pieces: bool) -> list[str]:
    skipped = skipped_tile(text.product, "BM", "BN")
    first, last = ("min(k, static_cast<int>(blockIdx.y) * piece)", "min(k, k_begin + piece)") if pieces else ("0", "k")
    if skipped:
        last = f"{skipped} ? k_begin : {last}"
    a, b = text.product.a, text.product.b
    return [
        "__shared__ float a_tile[2][BK][BM + PAD], b_tile[2][BK][BN + PAD];",
        *text.tile_lines("BM", "BN"),
        f"const int k_begin = {first}, k_end = {last};",
        "",
        f"TileCopy<{a.dtype.cpp}, {str(a.along_k).lower()}, BM, A_WIDTH> a_copy;",
        f"TileCopy<{b.dtype.cpp}, {str(b.along_k).lower()}, BN, B_WIDTH> b_copy;",
        "// A thread's rows and columns are two groups of four, half a tile apart: neighbours read neighbours.",
        "const int my_row = threadIdx.x / (BN / 8) * 4, my_column = threadIdx.x % (BN / 8) * 4;",
        "float sums[8][8] = {};",
        "a_copy.fetch(a, a_pitch, m0, k_begin, m, k_end);",
        "b_copy.fetch(b, b_pitch, n0, k_begin, n, k_end);",
        "a_copy.keep(a_tile[0]);",
        "b_copy.keep(b_tile[0]);",
        "__syncthreads();",
        "int buffer = 0;",
        "for (int k0 = k_begin; k0 < k_end; k0 += BK, buffer ^= 1) {",
        "  const bool more = k0 + BK < k_end;",
        "  if (more) {",
        "    a_copy.fetch(a, a_pitch, m0, k0 + BK, m, k_end);",
        "    b_copy.fetch(b, b_pitch, n0, k0 + BK, n, k_end);",
        "  }",
        "  unrolled for (int i = 0; i < BK; ++i) {",
        "    float x[8], y[8];",
        "    unrolled for (int j = 0; j < 4; ++j) {",
        "      x[j] = a_tile[buffer][i][my_row + j], x[j + 4] = a_tile[buffer][i][my_row + HALF_M + j];",
        "      y[j] = b_tile[buffer][i][my_column + j], y[j + 4] = b_tile[buffer][i][my_column + HALF_N + j];",
        "    }",
        "    unrolled for (int p = 0; p < 8; ++p)",
        "      unrolled for (int q = 0; q < 8; ++q) sums[p][q] = fmaf(x[p], y[q], sums[p][q]);",
        "  }",
        "  if (more) {  // nobody reads that buffer: its readers passed the barrier of the step before",
        "    a_copy.keep(a_tile[buffer ^ 1]);",
        "    b_copy.keep(b_tile[buffer ^ 1]);",
        "  }",
        "  __syncthreads();",
        "}",
        "",
        "unrolled for (int p = 0; p < 8; ++p) {",
        "  const int at_row = m0 + my_row + p % 4 + p / 4 * HALF_M;",
        "  if (at_row >= m) continue;",
        f"  const long long row = {text.first_row} + at_row;",
        "  unrolled for (int q = 0; q < 8; q += C_WIDTH) {",
        "    const int column0 = n0 + my_column + q % 4 + q / 4 * HALF_N;",
        "    if (column0 >= n) continue;",
        *indented(partial_store(text, "sums[p][q + w]") if pieces else finished_store(text, "sums[p][q + w]"), 2),
        "  }",
        "}",
    ]


def finished_store(text: ProductText, sum: str) -> list[str]:
    """C_WIDTH neighbouring sums, from `column0` of `row` on, finished and stored."""
    cpp = text.product.output.dtype.cpp
    lines = [
        f"Pack<{cpp}, C_WIDTH> made;",
        "unrolled for (int w = 0; w < C_WIDTH; ++w) {",
    ]
    inner = []
    if "column" in text.epilogue.takes or text.product.kept:
        inner.append("const int column = column0 + w;")
    if "at" in text.epilogue.takes:
        inner.append("const long long at = row * n + column0 + w;")
    inner.append(f"const float sum = {kept_sum(text.product, sum, 'at_row', 'column')};")
    inner.append(f"made.at[w] = {text.stored(text.epilogue.call('sum'))};")
    return [
        *lines,
        *indented(inner),
        "}",
        f"*reinterpret_cast<Pack<{cpp}, C_WIDTH>*>(c + row * n + column0) = made;",
    ]


def partial_store(text: ProductText, sum: str) -> list[str]:
    """The same of the sums of one piece, as they are."""
    rows = "static_cast<long long>(gridDim.x / (tiles_m * tiles_n)) * m" if text.product.is_batched else "m"
    return [
        "Pack<float, C_WIDTH> made;",
        f"unrolled for (int w = 0; w < C_WIDTH; ++w) made.at[w] = {sum};",
        f"const long long line = static_cast<long long>(blockIdx.y) * {rows} + row;",
        "*reinterpret_cast<Pack<float, C_WIDTH>*>(partial + line * n + column0) = made;",
    ]


def add_pieces(text: ProductText, when: str = "") -> list[str]:
    """The kernel that adds the pieces' sums and finishes them; its launch goes into the plan."""
    product = text.product
    pairs = [
        ("const float* __restrict__ partial", "@partial"),
        (f"{product.output.dtype.cpp}* __restrict__ c", product.output.name),
        ("long long rows", text.rows),
        ("int m", "@m"),
        ("int n", "@n"),
        *text.epilogue.parameters,
    ]
    body = [
        "const long long place = (blockIdx.x * 128ll + threadIdx.x) * C_WIDTH, row = place / n;",
        "if (row >= rows) return;",
        "const int column0 = static_cast<int>(place - row * n);",
        "float sums[C_WIDTH] = {};",
        "#pragma unroll 8",
        "for (int piece = 0; piece < PIECES; ++piece) {",
        "  const float* from = partial + (piece * rows + row) * n + column0;",
        "  const auto one = *reinterpret_cast<const Pack<float, C_WIDTH>*>(from);",
        "  unrolled for (int i = 0; i < C_WIDTH; ++i) sums[i] += one.at[i];",
        "}",
        "const int at_row = static_cast<int>(row % m);" if product.kept else "",
        *finished_store(text, "sums[w]"),
    ]
    note = "// Adds the sums of the pieces, in their order: the result is the same bits every time."
    name, grid = f"{text.name}_add_pieces", f"ceil_div({text.rows} * @n / C_WIDTH, 128)"
    return [note, *text.launched(name, grid, "128", pairs, "128", [one for one in body if one], when)]


# A matrix times a vector: every element of the matrix is used once, so all that matters is how its bytes move.


_BLOCK_SUM = _CUDA["block_sum"]


def is_vector_product(product: Gemm) -> bool:
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
    def of(cls, product: Gemm) -> _Sides:
        others = product.k.size * product.batch.size
        first = cls("a", "b", "m", product.a, product.m, product.m.size * others)
        return first if product.n.is_one else cls("b", "a", "n", product.b, product.n, product.n.size * others)

    @property
    def reads_past(self) -> bool:
        """Whether the matrix is small enough for its lines to leave the cache first: see `LOAD_PAST`."""
        return self.elements * self.operand.dtype.itemsize in PAST_BYTES


def vector_product(product: Gemm, op_line: str, choices: Choices = Choices.ALL) -> Fragment:
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
        *text.epilogue.parameters,
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
        text.epilogue.function,
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
    used = {"at", *text.epilogue.takes}
    places = [one for one in _places(text) if "row" in one or "column" in used]
    return [
        *places,
        "if constexpr (PIECES == 1) {",
        f"  c[at] = {text.stored(text.epilogue.call(sum))};",
        "} else {",
        f"  partial[blockIdx.y * (static_cast<long long>(m) * n * {batches}) + at] = {sum};",
        "}",
    ]
