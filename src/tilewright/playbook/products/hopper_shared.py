"""Tiles that all blocks share, as text: the last ones of 16-bit products on Hopper, which do not fill a round.

Their steps along k, of one tile after the other, are dealt out in equal runs. A block leaves its sums of a run in
scratch memory, in the order of its registers, and a last kernel adds them up, always in the same order, and finishes.
"""

from __future__ import annotations

from tilewright.playbook.cpp_text import indented
from tilewright.playbook.products.hopper_form import Form, signature
from tilewright.playbook.products.hopper_store import finish_of_four, row_values

# A consumer's sums of a shared tile; `rounded` is nothing then, which registers need not keep.
LEAVE_SHARED = """\
if (SHARED && last.number >= 0) {
  float4* to = sums + (((size_t)last.number * most + last.piece) * (BN / 8) * 2 + consumer) * 128 + thread;
#pragma unroll
  for (int j = 0; j < BN / 8; ++j)
    to[j * 256] = make_float4(sum[j * 4], sum[j * 4 + 1], sum[j * 4 + 2], sum[j * 4 + 3]);
#pragma unroll
  for (int j = 0; j < BN / 4; ++j) rounded[j] = 0;
  unfinished = false;
  return;
}
"""

WALK = """\
// The walk over tiles, the same for producer and consumers.
struct Walk {
  int tiles_m, tiles_n, job, blocks, all_steps;
  int whole, shared_steps;  // tiles that a block has for itself, and steps along k of the others
  int from, to;  // the block's of those steps
  int m0, n0, z, first, steps;  // of the tile, and of its steps
  int number, piece;  // which of the shared tiles it is, or -1, and which piece of it
  __device__ __forceinline__ Walk(int M, int N, int K, int batch, int blocks) {
    tiles_m = (M + BM - 1) / BM, tiles_n = (N + BN - 1) / BN;
    job = blockIdx.x, this->blocks = blocks;
    all_steps = (K + BK - 1) / BK;
    const int jobs = tiles_m * tiles_n * batch;
    whole = SHARED ? jobs / blocks * blocks : jobs;
    shared_steps = SHARED ? (jobs - whole) * all_steps : 0;
    from = job * shared_steps / blocks, to = (job + 1) * shared_steps / blocks;
  }
  __device__ __forceinline__ int block_of(int shared_step) const {
    return ((shared_step + 1) * blocks - 1) / shared_steps;
  }
  __device__ __forceinline__ void place(int job) {
    const int tiles = tiles_m * tiles_n, matrix = job / tiles, in_matrix = job % tiles;
    const int group = in_matrix / (TILE_GROUP * tiles_n), in_group = in_matrix % (TILE_GROUP * tiles_n);
    const int rows = min(TILE_GROUP, tiles_m - group * TILE_GROUP);
    const int m_tile = group * TILE_GROUP + in_group % rows, n_tile = in_group / rows;
    m0 = m_tile * BM, n0 = n_tile * BN, z = matrix;
  }
  __device__ __forceinline__ bool next() {
    if (job < whole) {
      place(job), first = 0, steps = all_steps, number = -1;
      job += blocks;
      return true;
    }
    if (!SHARED || from >= to) return false;
    number = from / all_steps, first = from % all_steps, steps = min(all_steps - first, to - from);
    piece = (int)blockIdx.x - block_of(number * all_steps);
    place(whole + number);
    from += steps;
    return true;
  }
};
"""


def finishing_parameters(form: Form) -> list[tuple[str, str]]:
    output = form.product.output
    pairs = [("const float4* __restrict__ sums", "@sums"), (f"{output.dtype.cpp}* __restrict__ c", output.name)]
    pairs += list(zip(form.finish.declared, form.finish.given, strict=True))
    pairs += [(f"int {name}", f"@{name.lower()}") for name in ("M", "N", "K", "batch")]
    return [*pairs, ("int most", "@most"), ("int blocks", "device.sms")]


def finishing_text(form: Form) -> list[str]:
    """The kernel that adds up and finishes the sums of shared tiles: 32 columns of one."""
    made = finish_of_four(form, [f"s.{side}" for side in "xyzw"], form.finish, staged=False)
    needed = "\n".join([*made, *row_values(form.finish)])
    row_at = ", ".join(f"(size_t)tile.z * M + min(m[{row}], M - 1)" for row in range(2))
    store = "if (m[{0}] < M) *reinterpret_cast<uint32_t*>(c + row_at[{0}] * N + n) = pack(v[{1}], v[{2}]);"
    body = [
        "cudaGridDependencySynchronize();",
        "Walk tile(M, N, K, batch, blocks);",
        "const int number = blockIdx.x / (BN / 32), step = number * tile.all_steps, lane = threadIdx.x % 32;",
        "const int pieces = tile.block_of(step + tile.all_steps - 1) - tile.block_of(step) + 1;",
        "tile.place(tile.whole + number);",
        "const int row = tile.m0 + threadIdx.x / 32 * 16 + lane / 4, m[2] = {row, row + 8};",
        f"const size_t row_at[2] = {{{row_at}}};",
        *(row_values(form.finish) if needed else []),
        "const float4* from = sums + (size_t)number * most * (BN / 8) * 256 + threadIdx.x;",
        "#pragma unroll",
        "for (int i = 0; i < 4; ++i) {",
        "  const int j = blockIdx.x % (BN / 32) * 4 + i, n = tile.n0 + j * 8 + lane % 4 * 2;",
        "  float4 s = make_float4(0.f, 0.f, 0.f, 0.f);",
        "#pragma unroll 4",
        "  for (int piece = 0; piece < pieces; ++piece) {",
        "    const float4 one = from[(piece * (BN / 8) + j) * 256];",
        "    s.x += one.x, s.y += one.y, s.z += one.z, s.w += one.w;",
        "  }",
        "  if (n >= N) continue;",
        "  float v[4];",
        *indented(made),
        *indented([store.format(row, row * 2, row * 2 + 1) for row in range(2)]),
        "}",
    ]
    declared = [declaration for declaration, _ in finishing_parameters(form)]
    note = "// Adds up what blocks left of the tiles that they share, and finishes the sums."
    return [note, *signature("__launch_bounds__(256) ", "finish_shared", declared), *indented(body), "}"]
