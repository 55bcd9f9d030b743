"""Attention of 16-bit elements on any GPU with `mma.sync` and asynchronous copies (sm_80 and later)."""

from __future__ import annotations

from tilewright.playbook.attention.program import Attention
from tilewright.playbook.attention.text import (
    EACH_SCORE,
    PAIR,
    POWER,
    AttentionKernel,
    AttentionPlan,
    inverse_line,
    is_whole,
    pair_text,
    scale_argument,
)
from tilewright.playbook.cpp_text import indented, worded
from tilewright.records import DType

_HEADER = """
{name} with tensor cores. A block has the rows of a tile of queries, 16 or 32 for every warp, and walks the keys in
tiles that asynchronous copies bring to shared memory, the next while this one is worked on.

Scores, weights and sums stay in registers: what comes out of the first product is what the second takes in.
"""


def can_write(made: Attention) -> bool:
    """Whether rows are whole numbers of 16 bytes at the task's own sizes."""
    return made.element in (DType.F16, DType.BF16) and is_whole(made, 8)


def flash(made: Attention, op_line: str) -> str:
    plan = AttentionPlan(made, op_line)
    kernel = AttentionKernel(plan, PITCHES, _DEVICE, MATRICES, _BODY, PAIR, POWER)
    _plan(plan)
    text = _kernel(kernel)
    words = {"type": made.element.cpp, "kind": made.element.value}
    device = [POWER, pair_text(made.element), *(worded(one, words) for one in (PITCHES, _DEVICE, MATRICES))]
    return plan.fragment(_HEADER, (*device, *kernel.forms.helpers()), text).file()


def _plan(plan: AttentionPlan) -> None:
    plan.add("need", "device.cc >= 80 and @depth <= 256 and @columns <= 256")
    plan.whole_rows(8)
    plan.add("tune", "WARPS = 4 | 8")
    plan.add("tune", "HALVES = 2 | 1", "16 rows each, of a warp")
    plan.add("tune", "KEYS = 64 | 32 | 128", "of a tile")
    plan.add("need", "HALVES * (round_up(E, 16) + KEYS) <= 384", "registers of a thread")
    rows = "WARPS * HALVES * 16 * (round_up(D, 16) + 8)"
    tiles = "2 * KEYS * (round_up(D, 16) + round_up(E, 16) + 16)"
    plan.add("let", f"@slots = {tiles}")
    plan.shared_memory(f"({rows} + @slots) * 2")
    plan.tiles("WARPS * HALVES * 16")


PITCHES = """\
constexpr int D_VECTORS = (D + 15) / 16 * 2, E_VECTORS = (E + 15) / 16 * 2;  // of 16 bytes; a row has zeros after it
constexpr int D_PITCH = D_VECTORS * 8 + 8, E_PITCH = E_VECTORS * 8 + 8;      // 8 more: ldmatrix meets no bank twice
"""
_DEVICE = """\
constexpr int THREADS = WARPS * 32, ROWS = WARPS * HALVES * 16;

// Rows on their way to shared memory; zeros where there are none.
template <int COUNT, int LENGTH, int VECTORS>
__device__ __forceinline__ void copy_rows(@type* to, const @type* __restrict__ from, long long pitch,
                                          int rows) {
  unrolled for (int first = 0; first < COUNT * VECTORS; first += THREADS) {
    const int i = first + threadIdx.x, row = i / VECTORS, column = i % VECTORS * 8;
    const bool inside = row < rows && column < LENGTH;
    if (COUNT * VECTORS % THREADS == 0 || i < COUNT * VECTORS)
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                   ::"r"((uint32_t)__cvta_generic_to_shared(to + row * (VECTORS * 8 + 8) + column)),
                     "l"(from + (inside ? row * pitch + column : 0)), "r"(inside ? 16 : 0) : "memory");
  }
}
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();
}
"""
MATRICES = """\
// Four 8 x 8 matrices from rows of shared memory, one of whose addresses each lane gives; or their transposes.
__device__ __forceinline__ void load4(uint32_t (&r)[4], const @type* at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"((uint32_t)__cvta_generic_to_shared(at)) : "memory");
}
__device__ __forceinline__ void load4_transposed(uint32_t (&r)[4], const @type* at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"((uint32_t)__cvta_generic_to_shared(at)) : "memory");
}
// d (16 x 8) += a (16 x 16) * b (16 x 8)
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.@kind.@kind.f32"
      " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
"""

_BODY = """\
extern __shared__ __align__(16) char shared[];
auto* q_tile = reinterpret_cast<@type*>(shared);
auto *k_tiles = q_tile + ROWS * D_PITCH, *v_tiles = k_tiles + 2 * KEYS * D_PITCH;
const int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * (HALVES * 16);
// The last rows of a head come first: with a causal mask they have the most to do.
const int row0 = (tiles - 1 - blockIdx.x % tiles) * ROWS, head = blockIdx.x / tiles;
@heads
const @type* q_rows = @q_first;
const @type* k_rows = @k_first;
const @type* v_rows = @v_first;
@scored
const int count = (@ends + KEYS - 1) / KEYS;  // tiles of keys, from the last to the first
auto copy_tile = [&](int n) {
  const int left = keys - n * KEYS;
  copy_rows<KEYS, D, D_VECTORS>(k_tiles + n % 2 * (KEYS * D_PITCH), k_rows + n * KEYS * @k_pitch, @k_pitch, left);
  copy_rows<KEYS, E, E_VECTORS>(v_tiles + n % 2 * (KEYS * E_PITCH), v_rows + n * KEYS * @v_pitch, @v_pitch, left);
};
copy_rows<ROWS, D, D_VECTORS>(q_tile, q_rows + row0 * @q_pitch, @q_pitch, rows - row0);
copy_tile(count - 1);
float sum[HALVES][E_VECTORS][4] = {}, greatest[HALVES][2], total[HALVES][2] = {};
unrolled for (int h = 0; h < HALVES; ++h) greatest[h][0] = greatest[h][1] = -INFINITY;

rolled for (int n = count - 1; n >= 0; n--) {
  wait_for_copies();  // this tile is here, and nobody reads the one before it any more
  if (n > 0) copy_tile(n - 1);
  const @type *k_tile = k_tiles + n % 2 * (KEYS * D_PITCH), *v_tile = v_tiles + n % 2 * (KEYS * E_PITCH);
  float score[HALVES][KEYS / 8][4] = {};
  unrolled for (int d = 0; d < D_VECTORS / 2; ++d) {
    uint32_t query[HALVES][4];
    unrolled for (int h = 0; h < HALVES; ++h)
      load4(query[h], q_tile + (warp_row + h * 16 + lane % 16) * D_PITCH + d * 16 + lane / 16 * 8);
    unrolled for (int j = 0; j < KEYS / 16; ++j) {
      uint32_t b[4];
      load4(b, k_tile + (j * 16 + lane % 16) * D_PITCH + d * 16 + lane / 16 * 8);
      unrolled for (int h = 0; h < HALVES; ++h) {
        mma(score[h][2 * j], query[h], b[0], b[2]);
        mma(score[h][2 * j + 1], query[h], b[1], b[3]);
      }
    }
  }
  // A thread has of two rows, 8 apart, two neighbours of every eight: [2 * r + e] is element e of row r.
  const int key0 = n * KEYS + lane % 4 * 2;
  unrolled for (int h = 0; h < HALVES; ++h) {
    @masked
    unrolled for (int r = 0; r < 2; ++r) {
      float top = greatest[h][r];
      unrolled for (int j = 0; j < KEYS / 8; ++j) top = fmaxf(top, fmaxf(score[h][j][2 * r], score[h][j][2 * r + 1]));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      const float base = top == -INFINITY ? 0.0f : top@scale;  // so far every key may be masked
      const float less = power_of_two(greatest[h][r]@scale - base);
      greatest[h][r] = top, total[h][r] *= less;
      unrolled for (int j = 0; j < KEYS / 8; ++j)
#pragma unroll
        for (int e = 2 * r; e < 2 * r + 2; ++e) total[h][r] += score[h][j][e] = power_of_two(@power);
      unrolled for (int j = 0; j < E_VECTORS; ++j) sum[h][j][2 * r] *= less, sum[h][j][2 * r + 1] *= less;
    }
  }
  unrolled for (int s = 0; s < KEYS / 16; ++s) {  // scores of 16 keys are the first operand of a product as they are
    uint32_t weight[HALVES][4];
    unrolled for (int h = 0; h < HALVES; ++h)
      unrolled for (int i = 0; i < 4; ++i) {
        const float* two = &score[h][2 * s + i / 2][i % 2 * 2];
        weight[h][i] = pair(two[0], two[1]);
      }
    unrolled for (int j = 0; j < E_VECTORS / 2; ++j) {
      uint32_t b[4];
      load4_transposed(b, v_tile + (s * 16 + lane % 16) * E_PITCH + j * 16 + lane / 16 * 8);
      unrolled for (int h = 0; h < HALVES; ++h) {
        mma(sum[h][2 * j], weight[h], b[0], b[1]);
        mma(sum[h][2 * j + 1], weight[h], b[2], b[3]);
      }
    }
  }
}
unrolled for (int h = 0; h < HALVES; ++h)
  unrolled for (int r = 0; r < 2; ++r) {
    total[h][r] += __shfl_xor_sync(~0u, total[h][r], 1);
    total[h][r] += __shfl_xor_sync(~0u, total[h][r], 2);
    @inverse
    const int @row = row0 + warp_row + h * 16 + lane / 4 + r * 8;
    if (@row >= rows) continue;
    @store
  }
"""


def _kernel(kernel: AttentionKernel) -> list[str]:
    made, plan = kernel.made, kernel.plan
    general = made.scores.value is not None
    needs_row = general or made.scores.causal is not None
    row = ["const int row = row0 + warp_row + h * 16 + lane / 4;"] if needs_row else []
    parts = {
        "type": [made.element.cpp],
        "heads": kernel.split(made.heads, "head"),
        "scored": kernel.scored(),
        "ends": [kernel.ends("row0 + ROWS")],
        **{f"{name}_{what}": [text] for name, what, text in kernel.places()},
        "masked": kernel.masked([*row, *EACH_SCORE], "score[h][j][e]", "row + e / 2 * 8", "row0 + warp_row + h * 16"),
        "scale": ["" if general else " * scale"],
        "power": ["score[h][j][e] - base" if general else "fmaf(score[h][j][e], scale, -base)"],
        "inverse": [inverse_line(made, "total[h][r]")],
        "row": [kernel.variable(made.row)],
        "store": _store(kernel),
    }
    body = worded(_BODY, parts).splitlines()
    more = [*plan.numbers("rows", "keys", "tiles"), scale_argument(made)]
    grid = "@tiles * @heads"
    return kernel.launched("flash", grid, "WARPS * 32, @smem", "WARPS * 32", body, more)


def _store(kernel: AttentionKernel) -> list[str]:
    column = kernel.variable(kernel.made.column)
    loop = ["#pragma unroll", "for (int j = 0; j < E_VECTORS; ++j) {"]
    pair = kernel.stored_pair("sum[h][j][2 * r] * inverse", "sum[h][j][2 * r + 1] * inverse")
    if pair:
        first = [f"const int {column} = j * 8 + lane % 4 * 2;", f"if ({column} >= E) break;"]
        return [*loop, *indented([*first, *pair]), "}"]
    inner = [f"const int {column} = j * 8 + lane % 4 * 2 + e;", f"if ({column} >= E) break;"]
    inner += kernel.stored_lines("sum[h][j][2 * r + e] * inverse")
    return [*loop, "#pragma unroll", "  for (int e = 0; e < 2; ++e) {", *indented(inner, 2), "  }", "}"]
