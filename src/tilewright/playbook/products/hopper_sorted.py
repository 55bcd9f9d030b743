"""The walk over the tiles of a triangle, as text.

Of a tile on the diagonal one half may be all that is kept. Such tiles come last, and which block is ready takes the
next tile: so all end together. Tiles far from the diagonal come first: where the operands are triangles themselves,
those are the longest sums, and who loads a tile leaves out zeros at the ends of all its rows, or all its columns, which
the splitting kernels have noted.
"""

from __future__ import annotations

from tilewright.playbook.cpp_text import worded
from tilewright.playbook.products.finish_text import skipped_tile
from tilewright.playbook.products.hopper_f32_tiles import stored_result
from tilewright.playbook.products.hopper_form import Form
from tilewright.playbook.products.program import Contraction, Triangle
from tilewright.records import DType

SORTED_MEMBERS = [
    "int number = 0, diagonal = 0, before = 0;  // of the tile, and of tiles on the diagonals before",
    "bool is_half = false;  // of the tile's columns only one half is kept",
]
NUMBERS = """\
__device__ __forceinline__ void store_number(uint32_t to, int number) {
  asm volatile("st.shared.s32 [%0], %1;" ::"r"(to), "r"(number) : "memory");
}
__device__ __forceinline__ int number_at(uint32_t from) {
  int number; asm volatile("ld.shared.s32 %0, [%1];" : "=r"(number) : "r"(from) : "memory"); return number;
}
"""
# What a tile's rows and columns are multiplied with outside of these is 0, or in rows or columns that are too wide. Of
# tiles that nobody has looked at all is multiplied: so a few blocks that are run alone do about their part.
SPANS = """\
int first = 0;  // step of k
if (tile.steps > 0) {  // zeros at the ends of all the tile's rows, or columns, are not multiplied
  const int tiles = tile.tiles_m + tile.tiles_n;
  const int* spans = wide + 1 + (batch + 2ll * tile.z) * tiles;
  const int *of_a = spans + tile.m0 / BM * 2, *of_b = spans + (tile.tiles_m + tile.n0 / BN) * 2;
  auto both = [&](int which) { return min(of_a[which] ? of_a[which] : K, of_b[which] ? of_b[which] : K); };
  first = min((K - both(0)) / BK, tile.steps - 1);
  tile.steps = max(1, min(tile.steps, (both(1) + BK - 1) / BK) - first);
}
"""
# Who is ready takes the next tile, but nobody many more than others: so a few blocks that are run alone do about their
# part. The last number is told as well: it is of no tile.
TAKING = """\
int* taken = wide + 1 + 3ll * batch * (tile.tiles_m + tile.tiles_n);
int tiles_left = 0;  // that the block may take
"""
TAKEN = """\
if (tiles_left == 0) tiles_left = tile.share();  // while the first tile's loads are under way
tiles_left -= 1;
tile.number = tiles_left > 0 ? gridDim.x + atomicAdd(taken, 1) : INT_MAX;
"""
TOLD_LAST = """\
barrier_wait(empty + slot * 8, parity);
store_number(numbers_of_tiles + slot * 4, INT_MAX);
barrier_arrive(full + slot * 8);
"""
# What consumers are told of tiles.
TOLD = """\
barrier_wait(full + slot * 8, parity);
tile.number = number_at(numbers_of_tiles + slot * 4);
if (!tile.next()) break;
tile.steps = number_at(steps_of_tiles + slot * 4);
"""
_NEXT = """\
constexpr int TOGETHER = BN / BM;  // rows of tiles beside one column of them
while (true) {
  const int across = @across, down = @down;
  m0 = down * BM, n0 = across * BN;  // as far apart as those of all tiles on the diagonal
  if (@ended || @outside) {
    diagonal = 0;
    if (++z == batch) return false;
    continue;
  }
  const int first = max(0, -across), rows = (tiles_m - down + TOGETHER - 1) / TOGETHER;
  const int count = max(0, min(rows, tiles_n - across) - first);
  if (number - before < count) {
    m0 += (first + number - before) * TOGETHER * BM, n0 += (first + number - before) * BN;
    break;
  }
  before += count, ++diagonal;
}
is_half = BN > WIDTH && @half;
steps = all_steps;
return true;
"""
# How many tiles a block takes at most: its part of those of which something is kept, and an eighth more.
SHARE = """\
__device__ __forceinline__ int share() const {
  Walk all = *this;
  all.number = INT_MAX, all.diagonal = all.before = all.z = 0, all.batch = 1;
  all.next();
  return (all.before * batch + all.before * batch / 8 + gridDim.x - 1) / gridDim.x;
}
"""


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
    return worded(_NEXT, words).splitlines()


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
