"""Attention of few rows of queries over many keys: the keys of a head are shared out among blocks (split-KV)."""

from __future__ import annotations

from tilewright.playbook.attention.program import Attention
from tilewright.playbook.attention.text import (
    LOG2_E,
    PAIR,
    POWER,
    AttentionKernel,
    filled,
    inverse_line,
    is_whole,
    plan_sizes,
    row_needs,
    scale_argument,
)
from tilewright.playbook.file_text import PlanLines, fragment, includes
from tilewright.playbook.places.indices import Variable
from tilewright.playbook.places.text import product_text
from tilewright.records import DType

_HEADER = """
{name} of few rows: what it costs is reading keys and values, once. Blocks share the keys of a head; all rows of queries
that look at the same keys are in one tile, 16 of them, so heads that share keys and values read them together.

A warp's lanes bring to shared memory just what they themselves multiply, in the order in which they multiply it: copies
run ahead in a ring without any barrier. The order of elements in a product is free, as long as both operands have the same.

A second kernel puts together what the blocks of a head have found, in a fixed order, so runs repeat bit for bit.
"""
_MOST_ROWS = 64


def can_write(made: Attention) -> bool:
    rows = made.row.size.own
    for one in made.sharing:
        rows *= one.size.own
    fits = made.element in (DType.F16, DType.BF16) and is_whole(made, 8)
    return fits and rows <= _MOST_ROWS and max(made.depth.size.own, made.column.size.own) <= 256


def decode(made: Attention, op_line: str) -> str:
    plan = PlanLines(made.placed.as_rows(), op_line)
    names = plan_sizes(made, plan)
    _plan(made, plan, names)
    first, second = AttentionKernel(made, plan), AttentionKernel(made, plan)
    kind = "bf16" if made.element is DType.BF16 else "f16"
    texts = [_pieces_kernel(first, plan, names), _together_kernel(second, plan, names)]
    device = [
        POWER,
        PAIR.replace("@kind", "bfloat16" if kind == "bf16" else "half").replace("@type", made.element.cpp + "2"),
        _DEVICE.replace("@type", made.element.cpp).replace("@kind", kind),
        *dict.fromkeys([*first.forms.helpers(), *second.forms.helpers()]),
    ]
    pieces = [one.splitlines() for one in device]
    return fragment(
        _HEADER.format(name=made.placed.name), plan, includes(made.placed.as_rows()), *pieces, *texts
    ).file()


def _plan(made: Attention, plan: PlanLines, names: dict[str, str]) -> None:
    depth, columns, keys = names["depth"], names["columns"], names["keys"]
    plan.add("need", f"device.cc >= 80 and {depth} <= 256 and {columns} <= 256")
    for need in row_needs(made, names, 8):
        plan.add("need", need, "rows are whole vectors of 16 bytes")
    plan.add("const", f"D = {depth}, E = {columns}", "elements of a query and of a result")
    plan.add("tune", "STEP = 16 | 32", "keys of a warp at a time")
    plan.add("tune", "STAGES = 3 | 4 | 2")
    plan.add("tune", "BLOCKS = 2 | 4 | 1", "for every multiprocessor")
    plan.add("const", "WARPS = 4")
    units, shared = plan.name("units"), plan.name("shared_rows")
    plan.add("let", f"{units} = {product_text(made.units)}, {shared} = {product_text((*made.sharing, made.row))}")
    plan.add("let", f"{plan.name('tiles')} = ceil_div({shared}, 16)")
    jobs = f"({units} * {plan.name('tiles')})"
    plan.add("let", f"{plan.name('most')} = max(1, min(device.sms * BLOCKS / {jobs}, ceil_div({keys}, 256)))")
    plan.add("let", f"{plan.name('piece')} = round_up(ceil_div({keys}, {plan.name('most')}), WARPS * STEP)")
    plan.add("let", f"{plan.name('pieces')} = ceil_div({keys}, {plan.name('piece')})")
    plan.add("need", f"{jobs} * {plan.name('pieces')} <= 2000000000 and {units} * {shared} <= 2000000000")
    ring = "STAGES * WARPS * STEP * (round_up(D, 64) + round_up(E, 64)) * 2"
    plan.add("let", f"{plan.name('smem')} = max({ring}, WARPS * 16 * (round_up(E, 64) + 4) * 4)")
    plan.add("need", f"{plan.name('smem')} <= device.smem_block")
    plan.add("scratch", f"{plan.name('part')}: f32[{units} * {shared}, {plan.name('pieces')}, {columns}]", "sums")
    plan.add(
        "scratch", f"{plan.name('stat')}: f32[{units} * {shared}, {plan.name('pieces')}, 2]", "greatest score, weights"
    )


_DEVICE = """\
constexpr int THREADS = WARPS * 32, D_PIECES = (D + 63) / 64 * 2, E_SETS = (E + 63) / 64;
constexpr int K_VECTORS = STEP / 8 * D_PIECES, VECTORS = K_VECTORS + STEP / 4 * E_SETS;  // of a thread's step, 16 bytes each
constexpr int E_PITCH = E_SETS * 64 + 4;

__device__ __forceinline__ void copy_vector(uint4* to, const @type* from, bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from), "r"(inside ? 16 : 0) : "memory");
}
// d (16 x 8) += a (16 x 16) * b (16 x 8)
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.@kind.@kind.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ uint32_t word(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }
"""

_BODY = """\
extern __shared__ __align__(16) char shared[];
__shared__ float tops[WARPS][16], totals[WARPS][16];
const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
const int piece_at = blockIdx.x % pieces, tile = blockIdx.x / pieces % tiles, unit = blockIdx.x / pieces / tiles;
const int first_row = tile * 16;  // of the rows that share these keys
@units
const @type* k_rows = @k_first;
const @type* v_rows = @v_first;
@scored
auto query_of = [&](int shared_row) {
  @split
  return @q_row;
};
const int begin = piece_at * piece + warp * STEP, end = min((piece_at + 1) * piece, keys);
const int steps = end > begin ? (end - begin + WARPS * STEP - 1) / (WARPS * STEP) : 0;

// Lane 4 g + t has of every 8 keys key g, vectors t + 4 i; of every 16 values 2 t, 2 t + 1, 2 t + 8, 2 t + 9, vectors g + 8 c.
auto* ring = reinterpret_cast<uint4*>(shared) + threadIdx.x;
auto value_key = [&](int m) { return m / 4 * 16 + m % 4 / 2 * 8 + m % 2 + 2 * t; };
auto fetch = [&](int step) {
  if (step < steps) {
    auto* to = ring + step % STAGES * (VECTORS * THREADS);
    const int key0 = begin + step * (WARPS * STEP);
#pragma unroll
    for (int n = 0; n < STEP / 8; ++n)
#pragma unroll
      for (int i = 0; i < D_PIECES; ++i) {
        const bool inside = key0 + n * 8 + g < end && (t + 4 * i) * 8 < D;
        const @type* from = k_rows + (inside ? (key0 + n * 8 + g) * @k_pitch + (t + 4 * i) * 8 : 0);
        copy_vector(to + (n * D_PIECES + i) * THREADS, from, inside);
      }
#pragma unroll
    for (int m = 0; m < STEP / 4; ++m)
#pragma unroll
      for (int c = 0; c < E_SETS; ++c) {
        const bool inside = key0 + value_key(m) < end && (g + 8 * c) * 8 < E;
        const @type* from = v_rows + (inside ? (key0 + value_key(m)) * @v_pitch + (g + 8 * c) * 8 : 0);
        copy_vector(to + (K_VECTORS + m * E_SETS + c) * THREADS, from, inside);
      }
  }
  asm volatile("cp.async.commit_group;" ::: "memory");
};
#pragma unroll
for (int s = 0; s < STAGES - 1; ++s) fetch(s);

uint4 query[2][D_PIECES];  // rows g and g + 8
#pragma unroll
for (int h = 0; h < 2; ++h)
#pragma unroll
  for (int i = 0; i < D_PIECES; ++i) {
    const int shared_row = first_row + g + h * 8, d = (t + 4 * i) * 8;
    query[h][i] = make_uint4(0, 0, 0, 0);
    if (shared_row < shared_rows && d < D) query[h][i] = *reinterpret_cast<const uint4*>(query_of(shared_row) + d);
  }
float sums[E_SETS][8][4] = {}, greatest[2] = {-INFINITY, -INFINITY}, total[2] = {};

#pragma unroll 1
for (int step = 0; step < steps; ++step) {
  fetch(step + STAGES - 1);
  asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 1) : "memory");
  const uint4* slot = ring + step % STAGES * (VECTORS * THREADS);
  const int key0 = begin + step * (WARPS * STEP);
  float score[STEP / 8][4] = {};
#pragma unroll
  for (int n = 0; n < STEP / 8; ++n) {
#pragma unroll
    for (int i = 0; i < D_PIECES; ++i) {
      const uint4 key = slot[(n * D_PIECES + i) * THREADS];
      const uint32_t low[4] = {query[0][i].x, query[1][i].x, query[0][i].y, query[1][i].y};
      const uint32_t high[4] = {query[0][i].z, query[1][i].z, query[0][i].w, query[1][i].w};
      mma(score[n], low, key.x, key.y);
      mma(score[n], high, key.z, key.w);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int key = key0 + n * 8 + t * 2 + e % 2, shared_row = first_row + g + e / 2 * 8;
      @masked
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float top = greatest[r];
#pragma unroll
    for (int n = 0; n < STEP / 8; ++n) top = fmaxf(top, fmaxf(score[n][2 * r], score[n][2 * r + 1]));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    const float base = top == -INFINITY ? 0.0f : top;  // so far every key may be masked
    const float less = power_of_two(greatest[r] - base);
    greatest[r] = top, total[r] *= less;
#pragma unroll
    for (int n = 0; n < STEP / 8; ++n)
#pragma unroll
      for (int e = 2 * r; e < 2 * r + 2; ++e) total[r] += score[n][e] = power_of_two(score[n][e] - base);
#pragma unroll
    for (int c = 0; c < E_SETS; ++c)
#pragma unroll
      for (int j = 0; j < 8; ++j) sums[c][j][2 * r] *= less, sums[c][j][2 * r + 1] *= less;
  }
#pragma unroll
  for (int s = 0; s < STEP / 16; ++s) {
    const float (&a)[4] = score[2 * s], (&b)[4] = score[2 * s + 1];
    const uint32_t weight[4] = {pair(a[0], a[1]), pair(a[2], a[3]), pair(b[0], b[1]), pair(b[2], b[3])};
#pragma unroll
    for (int c = 0; c < E_SETS; ++c) {
      uint4 value[4];
#pragma unroll
      for (int m = 0; m < 4; ++m) value[m] = slot[(K_VECTORS + (s * 4 + m) * E_SETS + c) * THREADS];
#pragma unroll
      for (int j = 0; j < 8; ++j) {  // column n of this product is element 8 n + j of the set
        const uint32_t take = j % 2 ? 0x7632 : 0x5410;
        mma(sums[c][j], weight, __byte_perm(word(value[0], j / 2), word(value[1], j / 2), take),
            __byte_perm(word(value[2], j / 2), word(value[3], j / 2), take));
      }
    }
  }
}

// What the warps have found, put together.
#pragma unroll
for (int r = 0; r < 2; ++r) {
  total[r] += __shfl_xor_sync(~0u, total[r], 1);
  total[r] += __shfl_xor_sync(~0u, total[r], 2);
  if (t == 0) tops[warp][g + r * 8] = greatest[r], totals[warp][g + r * 8] = total[r];
}
asm volatile("cp.async.wait_all;" ::: "memory");
__syncthreads();  // and the ring is free
auto* gathered = reinterpret_cast<float*>(shared);  // [WARPS][16][E_PITCH]
#pragma unroll
for (int r = 0; r < 2; ++r) {
  float top = tops[0][g + r * 8];
#pragma unroll
  for (int w = 1; w < WARPS; ++w) top = fmaxf(top, tops[w][g + r * 8]);
  const float less = power_of_two(greatest[r] - (top == -INFINITY ? 0.0f : top));
#pragma unroll
  for (int c = 0; c < E_SETS; ++c)
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e)
        gathered[(warp * 16 + g + r * 8) * E_PITCH + c * 64 + (t * 2 + e) * 8 + j] = sums[c][j][2 * r + e] * less;
}
__syncthreads();
const int live = min(16, shared_rows - first_row);
const long long out_row = (long long)unit * shared_rows + first_row;
for (int i = threadIdx.x; i < live * E; i += THREADS) {
  float sum = 0.0f;
#pragma unroll
  for (int w = 0; w < WARPS; ++w) sum += gathered[(w * 16 + i / E) * E_PITCH + i % E];
  part[((out_row + i / E) * pieces + piece_at) * E + i % E] = sum;
}
if (threadIdx.x < live) {
  float top = tops[0][threadIdx.x], sum = 0.0f;
#pragma unroll
  for (int w = 1; w < WARPS; ++w) top = fmaxf(top, tops[w][threadIdx.x]);
  const float base = top == -INFINITY ? 0.0f : top;
#pragma unroll
  for (int w = 0; w < WARPS; ++w) sum += totals[w][threadIdx.x] * power_of_two(tops[w][threadIdx.x] - base);
  float* to = stat + ((out_row + threadIdx.x) * pieces + piece_at) * 2;
  to[0] = top, to[1] = sum;
}
"""

_TOGETHER = """\
const float* stats = stat + (long long)blockIdx.x * pieces * 2;
const float* parts = part + (long long)blockIdx.x * pieces * E;
@split
float top = -INFINITY;
for (int p = 0; p < pieces; ++p) top = fmaxf(top, stats[2 * p]);
const float base = top == -INFINITY ? 0.0f : top;
for (int @column = threadIdx.x; @column < E; @column += 128) {
  float total = 0.0f, sum = 0.0f;
#pragma unroll 8
  for (int p = 0; p < pieces; ++p) {
    const float less = power_of_two(stats[2 * p] - base);
    total += stats[2 * p + 1] * less;
    sum += parts[p * E + @column] * less;
  }
  @inverse
  @store
}
"""


def _pieces_kernel(kernel: AttentionKernel, plan: PlanLines, names: dict[str, str]) -> list[str]:
    made = kernel.made
    query = kernel.at(made.query.tensor, made.query.place, {})
    depth = f" + {kernel.variable(made.depth)}"
    split = _rows_of(kernel, (), "shared_row")
    parts = {
        "type": [made.element.cpp],
        "units": kernel.split(made.units, "unit"),
        **{f"{name}_{what}": [text] for name, what, text in kernel.places() if name != "q"},
        "scored": kernel.scored(split),
        "split": split,
        "q_row": [f"{query[0]} + {_without(query[1], depth, kernel.variable(made.depth))}"],
        "masked": _masked(kernel, split),
    }
    body = filled(_BODY, parts)
    written = {"part": plan.name("part"), "stat": plan.name("stat")}
    more = [(f"float* __restrict__ {name}", given) for name, given in written.items()]
    more += [("int keys", names["keys"]), ("int shared_rows", plan.name("shared_rows"))]
    more += [(f"int {word}", plan.name(word)) for word in ("tiles", "piece", "pieces")]
    more.append(scale_argument(made))
    grid = f"{plan.name('units')} * {plan.name('tiles')} * {plan.name('pieces')}"
    return kernel.launched("pieces", grid, f"WARPS * 32, {plan.name('smem')}", "WARPS * 32", body, more, ())


def _rows_of(kernel: AttentionKernel, units: tuple[Variable, ...], number: str) -> list[str]:
    """The row and the head that has it, and the unit's variables too where they are asked for, from a number."""
    made = kernel.made
    if not made.row.size.is_always(1):
        return kernel.split((*units, *made.sharing, made.row), number)
    return [f"const int {kernel.variable(made.row)} = 0;", *kernel.split((*units, *made.sharing), number)]


def _without(place: str, more: str, alone: str) -> str:
    """A place without the element of a row in it."""
    return place.replace(more, "", 1) if more in place else place.replace(f"{alone} + ", "", 1)


def _masked(kernel: AttentionKernel, split: list[str]) -> list[str]:
    made = kernel.made
    row = kernel.variable(made.row)
    if made.scores.value is not None:
        scored = f"{LOG2_E}f * scored(score[n][e] * scale, shared_row, key)"
        return [f"score[n][e] = shared_row < shared_rows && key < end ? {scored} : -INFINITY;"]
    causal = kernel.outside(row, "key").partition(" || ")[2]
    lines = split if causal else []
    test = f"key < end && !({causal})" if causal else "key < end"
    return [*lines, f"score[n][e] = {test} ? score[n][e] * scale : -INFINITY;"]


def _together_kernel(kernel: AttentionKernel, plan: PlanLines, names: dict[str, str]) -> list[str]:
    made = kernel.made
    parts = {
        "split": _rows_of(kernel, made.units, "blockIdx.x"),
        "column": [kernel.variable(made.column)],
        "inverse": [inverse_line(made, "total")],
        "store": kernel.stored_lines("sum * inverse"),
    }
    body = filled(_TOGETHER, parts)
    more = [(f"const float* __restrict__ {name}", plan.name(name)) for name in ("part", "stat")]
    more.append(("int pieces", plan.name("pieces")))
    grid = f"{plan.name('units')} * {plan.name('shared_rows')}"
    return kernel.launched("together", grid, "128", "128", body, more)
