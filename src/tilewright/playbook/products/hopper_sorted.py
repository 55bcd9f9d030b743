"""The walk over the tiles of a triangle, as text.

Of a tile on the diagonal one half may be all that is kept. Such tiles come last, and blocks take tiles in turns, every
other turn from the last block to the first: few of a block's are more than another's. Tiles far from the diagonal come
first: where the operands are triangles themselves, those are the longest sums, and who loads a tile leaves out zeros at
the ends of all its rows, or all its columns, which the splitting kernels have noted.

On an H200 a triangle of 4096 x 4096 x 4096 took 565 us with tiles in the order of others, 470 so, and 368 of triangles.
"""

from __future__ import annotations

from tilewright.playbook.cpp_text import indented
from tilewright.playbook.products.finish_text import skipped_tile
from tilewright.playbook.products.hopper_form import Form
from tilewright.playbook.products.hopper_split import stored_result
from tilewright.playbook.products.program import Contraction, Triangle

SORTED_MEMBERS = [
    "int turn = 0, diagonal = 0, before = 0;  // tiles on the diagonals before",
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
# What a tile's rows and columns are multiplied with outside of these is 0, or in rows or columns that are too wide.
SPANS = """\
int first = 0;  // step of k
if (tile.steps > 0) {  // zeros at the ends of all the tile's rows, or columns, are not multiplied
  const int tiles = tile.tiles_m + tile.tiles_n;
  const int* spans = wide + 1 + (batch + 2ll * tile.z) * tiles;
  const int *of_a = spans + tile.m0 / BM * 2, *of_b = spans + (tile.tiles_m + tile.n0 / BN) * 2;
  first = min((K - min(of_a[0], of_b[0])) / BK, tile.steps - 1);
  tile.steps = max(1, min(tile.steps, (min(of_a[1], of_b[1]) + BK - 1) / BK) - first);
}
"""
# What consumers are told of it.
STEPS = """\
if (tile.steps > 0) {
  barrier_wait(full + slot * 8, parity);
  tile.steps = number_at(steps_of_tiles + slot * 4);
}
"""
_NEXT = """\
constexpr int TOGETHER = BN / BM;  // rows of tiles beside one column of them
const int mine = turn * gridDim.x + (turn % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
++turn;
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
  if (mine - before < count) {
    m0 += (first + mine - before) * TOGETHER * BM, n0 += (first + mine - before) * BN;
    break;
  }
  before += count, ++diagonal;
}
is_half = BN > WIDTH && @half;
steps = all_steps;
return true;
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
    text = _NEXT
    for word, meaning in words.items():
        text = text.replace(f"@{word}", meaning)
    return text.splitlines()


def unkept_half(product: Contraction) -> list[str]:
    """What consumers do about the half of a tile of which nothing is kept."""
    if _is_upper(product):
        return ["if (half == 0 && tile.is_half) continue;"]
    return ["if (half == 1 && tile.is_half) {", "  release(slot);", "  continue;", "}"]


def unkept_tiles(form: Form) -> list[str]:
    """What the producer's other warps do: they store what becomes of zeros."""
    body = [
        "const int m = m0 + i / BN, n = n0 + i % BN;",
        "if (m >= M || n >= N) continue;",
        "const long long row = (long long)(job / tiles) * M + m;",
        f"c[row * N + n] = {stored_result(form, '0.0f')};",
    ]
    return [
        "// Tiles of which nothing is kept are stored beside the products.",
        "const int tiles = tile.tiles_m * tile.tiles_n;",
        "for (int job = blockIdx.x; job < tiles * batch; job += gridDim.x) {",
        "  const int m0 = job % tile.tiles_m * BM, n0 = job % tiles / tile.tiles_m * BN;",
        f"  if (!({skipped_tile(form.product, 'BM', 'BN')})) continue;",
        "#pragma unroll 1",
        "  for (int i = threadIdx.x - 288; i < BM * BN; i += 96) {",
        *indented(body, 2),
        "  }",
        "}",
    ]


def _is_upper(product: Contraction) -> bool:
    return product.kept is not None and product.kept.triangle is Triangle.UPPER
