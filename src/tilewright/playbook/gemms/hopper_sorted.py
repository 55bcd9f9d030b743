"""The walk over the tiles of a triangle, as text.

Of a tile on the diagonal one half may be all that is kept. Such tiles come last, and which block is ready takes the
next tile: so all end together. Tiles far from the diagonal come first: where the operands are triangles themselves,
those are the longest sums, and who loads a tile leaves out zeros at the ends of all its rows, or all its columns, which
the splitting kernels have noted.
"""

from __future__ import annotations

from tilewright.playbook.cpp_text import worded
from tilewright.playbook.gemms.finish_text import skipped_tile
from tilewright.playbook.gemms.hopper_f32_tiles import stored_result
from tilewright.playbook.gemms.hopper_form import Form
from tilewright.playbook.gemms.program import Contraction, Triangle
from tilewright.playbook.templates import sections
from tilewright.records import DType

_CUDA = sections("gemms/hopper_sorted")

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


def sorted_tiles(product: Contraction) -> list[str]:
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


def unkept_half(product: Contraction) -> list[str]:
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


def _is_upper(product: Contraction) -> bool:
    return product.kept is not None and product.kept.triangle is Triangle.UPPER
