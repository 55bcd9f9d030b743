"""Split-f32 by kernels before the GEMM: f32 as two f16 parts, sorted rows, and tiles that plain f32 computes again."""

from __future__ import annotations

import re

from tilewright.playbook.cpp_text import indented, worded
from tilewright.playbook.gemms.epilogue_text import skipped_tile
from tilewright.playbook.gemms.hopper_form import Form, greatest_parameters, kernel
from tilewright.playbook.gemms.program import Gemm, Operand, Triangle
from tilewright.playbook.templates import sections
from tilewright.records import DType

_CUDA = sections("gemms/hopper_split")


def splitting_text(form: Form) -> list[str]:
    """The kernels that split the operands."""
    split = (form.product.b,) if form.ready_b else (form.product.a, form.product.b)
    kinds = {one.along_k for one in split}
    if form.short:  # `hopper_short` splits both at once
        return _CUDA["criterion"].splitlines()
    text = _CUDA["criterion"] + (_CUDA["span"] if form.sorted else "")
    text += ("\n" + _CUDA["rows"] if True in kinds else "") + ("\n" + _CUDA["columns"] if False in kinds else "")
    if form.sorted:
        return re.sub(r"@span ?", "", text).splitlines()
    return re.sub(r"(?m)^ *@span .*\n", "", text).splitlines()


# -- tiles of a product of which f16 parts do not hold enough, made in f32, as text --


def f32_tiles_parameters(form: Form) -> list[tuple[str, str]]:
    """Declarations of the f32 kernel, and what the plan gives for them."""
    a, b = form.product.a, form.product.b
    pairs = [("const float* __restrict__ a", a.tensor), ("const float* __restrict__ b", b.tensor)]
    pairs += [("const int* __restrict__ wide", "@wide"), (f"{form.stored.cpp}* __restrict__ c", "@c")]
    if not form.pieces:
        pairs += form.epilogue.parameters
    pairs += greatest_parameters(form)
    pairs += [(f"int {name}", f"@{name.lower()}") for name in ("M", "N", "K", "batch")]
    for name, one in (("a", a), ("b", b)):
        pairs += [(f"long long {name}_pitch", one.pitch.expression)]
        pairs += [(f"long long {name}_matrix_pitch", one.batch_pitch.expression)]
    pairs += [("int pieces", "@pieces"), ("int piece", "@piece")] if form.pieces else []
    return pairs


# Where every flag is written, and nothing says whether one is set.
ANY_IS_WIDE = [
    "bool any = false;",
    "for (long long i = threadIdx.x; i < (long long)batch * ((M + 127) / 128 + (N + 127) / 128); i += 256)",
    "  any |= wide[1 + i] != 0;",
    "if (!__syncthreads_or(any)) return;",
]


def f32_tiles_text(form: Form) -> list[str]:
    """The kernel that makes in f32 what f16 parts do not hold."""
    a, b = form.product.a, form.product.b
    jobs = "tiles_m * tiles_n * batch" + (" * pieces" if form.pieces else "")
    width = "128" if form.short else "BN"  # of what a flag is for
    body = [
        "constexpr int ROWS = 128, COLUMNS = 64, DEPTH = 16, TOGETHER = 16;",
        "__shared__ float a_tile[DEPTH][ROWS + 4], b_tile[DEPTH][COLUMNS + 4];",
        *(["cudaTriggerProgrammaticLaunchCompletion();  // the pieces are added next"] if form.pieces else []),
        "cudaGridDependencySynchronize();",
        *(ANY_IS_WIDE if form.short else ["if (!wide[0]) return;"]),
        "const int thread = threadIdx.x, tiles_m = (M + ROWS - 1) / ROWS, tiles_n = (N + COLUMNS - 1) / COLUMNS;",
        f"const int flags_n = (N + {width} - 1) / {width}, m_of = thread / 16 * 8, n_of = thread % 16 * 4;",
        "// The block looks at 256 of its tiles at once. Blocks are odd in number: so a row or a column of tiles is",
        "// spread over all of them.",
        f"const int jobs = {jobs};",
        "__shared__ bool is_wide[256];",
        *(["__shared__ float greatest_of[ROWS];"] if form.product.weighs else []),
        "for (int from = blockIdx.x; from < jobs; from += 256 * gridDim.x) {",
        "  __syncthreads();",
        *indented(_flag(form)),
        "  __syncthreads();",
        "  for (int looked = 0; looked < 256; ++looked) {",
        "    if (!is_wide[looked]) continue;",
        "    const int job = from + looked * gridDim.x;",
        *indented(_f32_tile(form, a, b), 2),
        "  }",
        "}",
    ]
    note = "// ---- tiles with a row or a column that is too wide for f16 parts, in f32; mostly there are none"
    return [note, *kernel("256", "tiles_in_f32", f32_tiles_parameters(form), body)]


def _flag(form: Form) -> list[str]:
    """Whether one of the block's tiles is too wide, told by the thread that looks at it."""
    of_tiles = form.fused and not form.ready_b
    tile = "wide[1 + ((long long)matrix * tiles_m + m) * flags_n + n] >> columns % (BN / COLUMNS) & 1"
    flag = tile if of_tiles else "flags[m] || flags[tiles_m + n]"
    return [
        "const int mine = from + thread * gridDim.x, m = mine % tiles_m, matrix = mine / tiles_m / tiles_n;",
        f"const int columns = mine / tiles_m % tiles_n, n = columns * COLUMNS / {'128' if form.short else 'BN'};",
        *([] if of_tiles else ["const int* flags = wide + 1 + (long long)matrix * (tiles_m + flags_n);"]),
        f"is_wide[thread] = mine < jobs && ({flag});",
    ]


def _f32_tile(form: Form, a: Operand, b: Operand) -> list[str]:
    lines = [
        "const int m0 = job % tiles_m * ROWS, n0 = job / tiles_m % tiles_n * COLUMNS;",
        "const int matrix = job / tiles_m / tiles_n;",
    ]
    if form.pieces:
        lines += [
            "const int z = matrix / pieces, first = matrix % pieces * piece, last = min(K, first + piece);",
            "const long long out = matrix % pieces * (long long)batch + z;",
        ]
    else:
        lines += ["const int z = matrix, first = 0, last = K;"]
    fetch: list[str] = []
    put: list[str] = []
    for name, one, size, start, limit in (("a", a, "ROWS", "m0", "M"), ("b", b, "COLUMNS", "n0", "N")):
        row = {"a": "m", "b": "n"}[name]
        taken = f"next_{name}[j]"
        if name == "a" and form.product.weighs:  # nothing has no weight
            taken = "k0 + k < last && m0 + m < M ? power(next_a[j], greatest_of[m]) : 0.f"
        if one.along_k:
            place, at = f"const int k = i % DEPTH, {row} = i / DEPTH;", f"({start} + {row}) * {name}_pitch + k0 + k"
        else:
            place, at = f"const int {row} = i % {size}, k = i / {size};", f"(k0 + k) * {name}_pitch + {start} + {row}"
        element = f"{name}[z * {name}_matrix_pitch + {at}]"
        each = f"for (int j = 0, i = thread; j < DEPTH * {size} / 256; ++j, i += 256) {{"
        fetch += [
            "#pragma unroll",
            each,
            f"  {place}",
            f"  const bool inside = k0 + k < last && {start} + {row} < {limit};",
            f"  next_{name}[j] = inside ? {element} : 0.f;",
            "}",
        ]
        put += ["#pragma unroll", each, f"  {place}", f"  {name}_tile[k][{row}] = {taken};", "}"]
    weighs, empty = form.product.weighs, form.product.empty_rows  # of which a row's weights may all be zero
    divided = " / (total[i / 4] == 0.f ? 1.f : total[i / 4])" if empty else " / total[i / 4]" if weighs else ""
    of_scores = (
        _CUDA["of_scores"].replace("= most;", "= most == -INFINITY ? 0.f : most;") if empty else _CUDA["of_scores"]
    )
    lines += of_scores.splitlines() if weighs else []
    lines += [
        "float sum[8][4] = {}, some[8][4] = {};  // a long sum is a sum of sums",
        "float next_a[DEPTH * ROWS / 256], next_b[DEPTH * COLUMNS / 256];  // on their way while others are multiplied",
        "auto fetch = [&](int k0) {",
        *indented(fetch),
        "};",
        "fetch(first);",
        "for (int k0 = first, step = 1; k0 < last; k0 += DEPTH, ++step) {",
        "  __syncthreads();",
        *indented(put),
        "  __syncthreads();",
        "  fetch(k0 + DEPTH);",
        "  unrolled for (int k = 0; k < DEPTH; ++k)",
        "    unrolled for (int i = 0; i < 8; ++i) {",
        *(["      some_total[i] += a_tile[k][m_of + i];"] if weighs else []),
        "#pragma unroll",
        "      for (int j = 0; j < 4; ++j) some[i][j] = fmaf(a_tile[k][m_of + i], b_tile[k][n_of + j], some[i][j]);",
        "    }",
        "  if (step % TOGETHER == 0 || k0 + DEPTH >= last) {",
        "    unrolled for (int i = 0; i < 32; ++i) sum[i / 4][i % 4] += some[i / 4][i % 4], some[i / 4][i % 4] = 0.f;",
        *(_CUDA["add_totals"].splitlines() if weighs else []),
        "  }",
        "}",
        *(["float most[8];", "for (float& one : most) one = -INFINITY;"] if form.product.greatest else []),
        "unrolled for (int i = 0; i < 32; ++i) {",
        "  const int m = m0 + m_of + i / 4, n = n0 + n_of + i % 4;",
        "  if (m >= M || n >= N) continue;",
        f"  const long long row = {'out' if form.pieces else '(long long)z'} * M + m;",
        *_store_of_tile(form, f"sum[i / 4][i % 4]{divided}"),
        "}",
        *(_CUDA["greatest_of_rows"].splitlines() if form.product.greatest else []),
    ]
    return lines


def _store_of_tile(form: Form, sum: str) -> list[str]:
    """Statements that store a result, which the greatest of its row is to know."""
    if not form.product.greatest:
        return [f"  c[row * N + n] = {stored_result(form, sum)};"]
    return [
        f"  const float result = {stored_result(form, sum)};",
        "  c[row * N + n] = result, most[i / 4] = fmaxf(most[i / 4], result);",
    ]


def stored_result(form: Form, value: str) -> str:
    """What is stored of one sum, of column n and row m, which is row `row` of all matrices."""
    text = value if form.pieces else form.finished(value)
    return text if form.stored is DType.F32 else f"static_cast<{form.stored.cpp}>({text})"


# -- the walk over the tiles of a triangle, as text --
# Of a tile on the diagonal one half may be all that is kept. Such tiles come last, and which block is ready takes
# the next tile: so all end together. Tiles far from the diagonal come first: where the operands are triangles
# themselves, those are the longest sums, and who loads a tile leaves out zeros at the ends of all its rows, or all
# its columns, which the splitting kernels have noted.


SORTED_MEMBERS = [
    "int number = 0, diagonal = 0, before = 0;  // of the tile, and of tiles on the diagonals before",
    "bool is_half = false;  // of the tile's columns only one half is kept",
]
NUMBERS = _CUDA["numbers"]
SPANS = _CUDA["spans"]
TAKING = _CUDA["taking"]
TAKEN = _CUDA["taken"]
TOLD_LAST = _CUDA["told_last"]
TOLD = _CUDA["told"]
SHARE = _CUDA["share"]


def sorted_tiles(product: Gemm) -> list[str]:
    """The body of the walk's `next`: diagonal by diagonal, from the corner on."""
    outside = skipped_tile(product, "BM", "BN")
    upper = _is_upper(product)
    words = {
        "across": "tiles_n - 1 - diagonal / TOGETHER" if upper else "diagonal / TOGETHER - (tiles_m - 1) / TOGETHER",
        "down": "diagonal % TOGETHER" if upper else "TOGETHER - 1 - diagonal % TOGETHER",
        "ended": "across * TOGETHER <= -tiles_m" if upper else "across >= tiles_n",
        "outside": outside,
        "half": skipped_tile(product, "BM", "WIDTH") if upper else outside.replace("n0", "n0 + WIDTH"),
    }
    return worded(_CUDA["next"], words).splitlines()


def unkept_half(product: Gemm) -> list[str]:
    """What consumers do about the half of a tile of which nothing is kept."""
    if _is_upper(product):
        return ["if (half == 0 && tile.is_half) continue;"]
    return ["if (half == 1 && tile.is_half) {", "  release(slot);", "  continue;", "}"]


def unkept_tiles(form: Form) -> list[str]:
    """What the producer's other warps do: they store what becomes of zeros, a warp a row."""
    vectors = form.tma_store and form.stored is DType.F32
    value, step = ("make_float4(zero(n), zero(n + 1), zero(n + 2), zero(n + 3))", 4) if vectors else ("zero(n)", 1)
    place = "c[row * N + n]"
    place = f"*reinterpret_cast<float4*>(&{place})" if vectors else place
    return [
        "// Tiles of which nothing is kept are stored beside the products, eight rows in turns.",
        "const int tiles = tile.tiles_m * tile.tiles_n, lane = threadIdx.x % 32, warp = threadIdx.x / 32 - 9;",
        "for (int job = blockIdx.x; job < tiles * batch * (BM / 8); job += gridDim.x) {",
        "  const int of = job / (BM / 8), m0 = of % tile.tiles_m * BM, n0 = of % tiles / tile.tiles_m * BN;",
        f"  if (!({skipped_tile(form.product, 'BM', 'BN')})) continue;",
        "  const int first = m0 + job % (BM / 8) * 8;",
        "  for (int m = first + warp; m < min(first + 8, M); m += 3) {",
        "    const long long row = (long long)(of / tiles) * M + m;",
        f"    auto zero = [&](int n) {{ return {stored_result(form, '0.0f')}; }};",
        f"    for (int n = n0 + lane * {step}; n < min(n0 + BN, N); n += {32 * step})",
        f"      {place} = {value};",
        "  }",
        "}",
    ]


def _is_upper(product: Gemm) -> bool:
    return product.kept is not None and product.kept.triangle is Triangle.UPPER
