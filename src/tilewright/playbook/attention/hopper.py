"""Attention of 16-bit elements for Hopper (sm_90a): TMA and wgmma, warpgroups that take turns."""

from __future__ import annotations

from tilewright.playbook.attention.maps import MatrixMap, load_box, matrix_map
from tilewright.playbook.attention.program import Attention
from tilewright.playbook.attention.text import (
    LOG2_E,
    PAIR,
    POWER,
    AttentionKernel,
    filled,
    inverse_line,
    plan_sizes,
    scale_argument,
)
from tilewright.playbook.cpp_text import indented
from tilewright.playbook.errors import NotSupported
from tilewright.playbook.file_text import PlanLines, fragment, includes
from tilewright.playbook.products.hopper_text import BARRIERS, wgmma, wgmma_of
from tilewright.records import DType

_HEADER = """
{name} for Hopper. One thread of a producer warpgroup brings queries, keys and values into slots of shared memory by TMA.
Each consumer warpgroup has 64 rows of queries: it multiplies them with a tile of keys by wgmma, makes weights of the
scores in registers, and multiplies those, still in registers, with the tile of values.

The scores of the next tile are multiplied while this tile's values are, and consumers take turns, so that tensor cores
work for one while another makes its weights. Scores are never stored. Blocks stay and take tile after tile.
"""
_WIDTHS = (64, 128, 160)  # of tiles of keys, that there are functions for
_FEWEST_ROWS = 64


def can_write(made: Attention) -> bool:
    """Whether TMA and wgmma take the task at its own sizes."""
    sizes = (made.depth.size.own, made.column.size.own)
    if made.element not in (DType.F16, DType.BF16) or any(one not in (64, 128, 192, 256) for one in sizes):
        return False
    try:
        maps = _maps(made)
    except NotSupported:
        return False
    return made.row.size.own >= _FEWEST_ROWS and all(
        one.own % 8 == 0 for each in maps.values() for one in (each.pitch, each.offset)
    )


def _maps(made: Attention) -> dict[str, MatrixMap]:
    return {
        "q": matrix_map(made, made.query, made.row),
        "k": matrix_map(made, made.key, made.along),
        "v": matrix_map(made, made.value, made.along),
    }


def hopper(made: Attention, op_line: str) -> str:
    plan = PlanLines(made.placed.as_rows(), op_line)
    names = plan_sizes(made, plan)
    maps = _maps(made)
    _plan(made, plan, names, maps)
    kernel = AttentionKernel(made, plan)
    kind = "bf16" if made.element is DType.BF16 else "f16"
    columns = made.column.size.own
    text = _kernel(kernel, plan, names, maps)
    device = [
        POWER,
        PAIR.replace("@kind", "bfloat16" if kind == "bf16" else "half").replace("@type", made.element.cpp + "2"),
        BARRIERS,
        *(load_box(rank) for rank in sorted({one.rank for one in maps.values()})),
        wgmma(_WIDTHS, kind, (False, False)) + wgmma_of(columns, kind, (False, True), in_registers=True),
        _TURNS,
        _SIZES,
        *kernel.forms.helpers(),
    ]
    pieces = [one.splitlines() for one in device]
    return fragment(_HEADER.format(name=made.placed.name), plan, includes(made.placed.as_rows()), *pieces, text).file()


def _plan(made: Attention, plan: PlanLines, names: dict[str, str], maps: dict[str, MatrixMap]) -> None:
    depth, columns = made.depth.size.own, made.column.size.own
    plan.add("need", f"device.cc == 90 and {names['depth']} == {depth} and {names['columns']} == {columns}")
    for need in dict.fromkeys(need for one in maps.values() for need in one.needs):
        plan.add("need", need, "TMA takes multiples of 16 bytes")
    plan.add("const", f"D = {names['depth']}, E = {names['columns']}", "elements of a query and of a result")
    plan.add("tune", "CONSUMERS = 2 | 3", "warpgroups with 64 rows each")
    plan.add("tune", "KEYS = 128 | 160 | 64", "of a tile")
    plan.add("tune", "STAGES = 2 | 3")
    plan.add("need", "KEYS / 2 + KEYS / 4 + E / 2 <= (200 if CONSUMERS == 2 else 128)", "registers of a thread")
    slots = "(CONSUMERS * 64 * D + STAGES * KEYS * (D + E)) * 2"
    plan.add("let", f"{plan.name('smem')} = {slots} + (STAGES * 4 + 2) * 8")
    plan.add("need", f"{plan.name('smem')} <= device.smem_block")
    plan.add("let", f"{plan.name('tiles')} = ceil_div({names['rows']}, CONSUMERS * 64)")
    plan.add("need", f"{plan.name('tiles')} * {names['heads']} <= 2000000000")
    for name, one in maps.items():
        rows, box = (names["rows"], "64") if name == "q" else (names["keys"], "KEYS")
        plan.add("map", f"{plan.name(name + '_map')} = {one.tiled(rows, box)}")


_SIZES = """\
constexpr int Q_BYTES = 64 * D * 2, K_BYTES = KEYS * D * 2, V_BYTES = KEYS * E * 2;  // of a consumer's rows; of a tile
constexpr int ROWS = CONSUMERS * 64;                                                 // of a block
"""
_TURNS = """\
// ---- consumers take turns: the products of one run while another makes its weights
__device__ __forceinline__ void turn_wait(int consumer) {
  asm volatile("bar.sync %0, 256;" ::"r"(2 + consumer) : "memory");
}
__device__ __forceinline__ void turn_pass(int consumer) {
  asm volatile("bar.arrive %0, 256;" ::"r"(2 + (consumer + 1) % CONSUMERS) : "memory");
}
"""


def _kernel(kernel: AttentionKernel, plan: PlanLines, names: dict[str, str], maps: dict[str, MatrixMap]) -> list[str]:
    made = kernel.made
    body = filled(
        _SETUP,
        {
            "ends": [kernel.ends("row0 + ROWS")],
            "producer": indented(_producer(kernel, maps)),
            "consumer": indented(_consumer(kernel)),
        },
    )
    declared = [(f"const __grid_constant__ CUtensorMap {name}_map", plan.name(f"{name}_map")) for name in maps]
    declared += [(f"int {word}", names[word]) for word in ("rows", "keys")]
    tiles = plan.name("tiles")
    declared += [("int tiles", tiles), ("int jobs", f"{tiles} * {names['heads']}"), scale_argument(made)]
    block = f"(CONSUMERS + 1) * 128, {plan.name('smem')}"
    grid = f"min({tiles} * {names['heads']}, device.sms)"
    return kernel.launched("flash", grid, block, "(CONSUMERS + 1) * 128, 1", body, declared)


_SETUP = """\
extern __shared__ __align__(1024) char shared[];  // swizzled tiles need 1024-byte bases
const uint32_t q_tile = (uint32_t)__cvta_generic_to_shared(shared);
const uint32_t k_slots = q_tile + CONSUMERS * Q_BYTES, v_slots = k_slots + STAGES * K_BYTES;
const uint32_t k_full = v_slots + STAGES * V_BYTES, k_empty = k_full + STAGES * 8;
const uint32_t v_full = k_empty + STAGES * 8, v_empty = v_full + STAGES * 8;
const uint32_t q_full = v_empty + STAGES * 8, q_empty = q_full + 8;
const int thread = threadIdx.x % 128, warpgroup = threadIdx.x / 128;  // consumers, then the producer
if (threadIdx.x == 0) {
  for (int s = 0; s < STAGES; ++s) {
    barrier_init(k_full + s * 8, 1), barrier_init(k_empty + s * 8, CONSUMERS);
    barrier_init(v_full + s * 8, 1), barrier_init(v_empty + s * 8, CONSUMERS);
  }
  barrier_init(q_full, 1), barrier_init(q_empty, CONSUMERS);
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__syncthreads();

// Tiles of rows, the last of a head first: with a causal mask they are the longest.
auto first_row = [&](int job) { return (tiles - 1 - job % tiles) * ROWS; };
auto key_tiles = [&](int row0) { return (@ends + KEYS - 1) / KEYS; };

if (warpgroup == CONSUMERS) {  // ---- producer
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(CONSUMERS == 2 ? 24 : 32));
  if (thread == 0) {
    @producer
  }
} else {  // ---- consumers
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMERS == 2 ? 240 : 160));
  @consumer
}
"""

_PRODUCER = """\
uint32_t k_parity = 1, v_parity = 1, q_parity = 1;  // a fresh barrier counts as just completed
int k_slot = 0, v_slot = 0;
for (int job = blockIdx.x; job < jobs; job += gridDim.x) {
  const int row0 = first_row(job), head = job / tiles, count = key_tiles(row0);
  @heads
  auto load_keys = [&](int n) {
    const uint32_t full = k_full + k_slot * 8, to = k_slots + k_slot * K_BYTES;
    barrier_wait(k_empty + k_slot * 8, k_parity);
    barrier_arrive_expecting(full, K_BYTES);
#pragma unroll
    for (int box = 0; box < D / 64; ++box)
      load_box(&k_map, full, to + box * (KEYS * 128), @k_place);
    if (++k_slot == STAGES) k_slot = 0, k_parity ^= 1;
  };
  auto load_values = [&](int n) {
    const uint32_t full = v_full + v_slot * 8, to = v_slots + v_slot * V_BYTES;
    barrier_wait(v_empty + v_slot * 8, v_parity);
    barrier_arrive_expecting(full, V_BYTES);
#pragma unroll
    for (int box = 0; box < E / 64; ++box)
      load_box(&v_map, full, to + box * (KEYS * 128), @v_place);
    if (++v_slot == STAGES) v_slot = 0, v_parity ^= 1;
  };
  barrier_wait(q_empty, q_parity);
  q_parity ^= 1;
  barrier_arrive_expecting(q_full, CONSUMERS * Q_BYTES);
#pragma unroll
  for (int box = 0; box < CONSUMERS * (D / 64); ++box)
    load_box(&q_map, q_full, q_tile + box * 8192, @q_place);
  load_keys(count - 1);
#pragma unroll 1
  for (int n = count - 1; n > 0; --n) load_keys(n - 1), load_values(n);
  load_values(0);
}
"""


def _producer(kernel: AttentionKernel, maps: dict[str, MatrixMap]) -> list[str]:
    places = {}
    rows = {"q": "row0 + box / (D / 64) * 64", "k": "n * KEYS", "v": "n * KEYS"}
    for name, one in maps.items():
        element = one.element(kernel)
        first = "box % (D / 64) * 64" if name == "q" else "box * 64"
        first = f"{element} + {first}" if element else first
        places[f"{name}_place"] = [", ".join([first, rows[name], *one.outer_coordinates(kernel)])]
    return filled(_PRODUCER, {"heads": kernel.split(kernel.made.heads, "head"), **places})


_CONSUMER = """\
const int consumer = warpgroup, lane = thread % 32, warp = thread / 32;
const uint64_t q_place = descriptor(q_tile + consumer * Q_BYTES, 16, 1024, SWIZZLE_128);
const uint64_t k_place = descriptor(k_slots, 16, 1024, SWIZZLE_128);
const uint64_t v_place = descriptor(v_slots, KEYS * 128, 1024, SWIZZLE_128);
uint32_t k_parity = 0, v_parity = 0, q_parity = 0;
int k_slot = 0, v_slot = 0;
auto release_keys = [&] {
  if (thread == 0) barrier_arrive(k_empty + k_slot * 8);
  if (++k_slot == STAGES) k_slot = 0, k_parity ^= 1;
};
auto release_values = [&] {
  if (thread == 0) barrier_arrive(v_empty + v_slot * 8);
  if (++v_slot == STAGES) v_slot = 0, v_parity ^= 1;
};
if (consumer == CONSUMERS - 1) turn_pass(consumer);

for (int job = blockIdx.x; job < jobs; job += gridDim.x) {
  const int row0 = first_row(job), head = job / tiles, count = key_tiles(row0);
  const int row = row0 + consumer * 64 + warp * 16 + lane / 4;  // this thread's rows: it, and the one 8 below it
  @heads
  @scored
  // A thread has of both rows every two neighbours of eight: score[4 * i + 2 * r + e] is of key 8 * i + 2 * (lane % 4) + e.
  float score[KEYS / 2], sum[E / 2], greatest[2] = {-INFINITY, -INFINITY}, total[2] = {}, less[2];
  uint32_t weights[KEYS / 16][4];

  auto multiply_keys = [&] {
    wgmma_fence();
#pragma unroll
    for (int d = 0; d < D / 16; ++d)
      wgmma(score, q_place + ((d / 4 * 8192 + d % 4 * 32) >> 4),
            k_place + ((k_slot * K_BYTES + d / 4 * (KEYS * 128) + d % 4 * 32) >> 4), d > 0);
    wgmma_commit();
  };
  auto multiply_values = [&](int add) {
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < KEYS / 16; ++s)
      wgmma(sum, weights[s], v_place + ((v_slot * V_BYTES + s * 2048) >> 4), add || s > 0);
    wgmma_commit();
  };
  auto make_weights = [&](int n) {  // of the scores of tile n, in their place
    const int key0 = n * KEYS + lane % 4 * 2;
    @masked
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = greatest[r];
#pragma unroll
      for (int i = 0; i < KEYS / 8; ++i) top = fmaxf(top, fmaxf(score[i * 4 + r * 2], score[i * 4 + r * 2 + 1]));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      const float base = top == -INFINITY ? 0.0f : top@scale;  // so far every key may be masked
      less[r] = power_of_two(@less - base);
      greatest[r] = top;
      float added = 0.0f;
#pragma unroll
      for (int i = 0; i < KEYS / 8; ++i)
#pragma unroll
        for (int e = i * 4 + r * 2; e < i * 4 + r * 2 + 2; ++e) added += score[e] = power_of_two(@power);
      total[r] = total[r] * less[r] + added;
    }
  };
  auto pack_weights = [&] {  // as wgmma takes them: two neighbours in a register
#pragma unroll
    for (int s = 0; s < KEYS / 16; ++s)
#pragma unroll
      for (int e = 0; e < 4; ++e) weights[s][e] = pair(score[s * 8 + e * 2], score[s * 8 + e * 2 + 1]);
  };

  barrier_wait(q_full, q_parity);
  q_parity ^= 1;
  barrier_wait(k_full + k_slot * 8, k_parity);
  turn_wait(consumer);
  multiply_keys();
  turn_pass(consumer);
  wgmma_wait<0>();
  release_keys();
  make_weights(count - 1);
  pack_weights();
#pragma unroll 1
  for (int n = count - 2; n >= 0; --n) {
    barrier_wait(k_full + k_slot * 8, k_parity);
    turn_wait(consumer);
    multiply_keys();
    barrier_wait(v_full + v_slot * 8, v_parity);
    multiply_values(n < count - 2);
    turn_pass(consumer);
    wgmma_wait<1>();  // the scores are there; the values are still being multiplied
    release_keys();
    make_weights(n);
    wgmma_wait<0>();
    release_values();
#pragma unroll
    for (int i = 0; i < E / 2; ++i) sum[i] *= less[i / 2 % 2];
    pack_weights();
  }
  if (thread == 0) barrier_arrive(q_empty);
  barrier_wait(v_full + v_slot * 8, v_parity);
  multiply_values(count > 1);
  wgmma_wait<0>();
  release_values();

#pragma unroll
  for (int r = 0; r < 2; ++r) {
    total[r] += __shfl_xor_sync(~0u, total[r], 1);
    total[r] += __shfl_xor_sync(~0u, total[r], 2);
    @inverse
    @store
  }
}
if (consumer == 0) turn_wait(consumer);  // for the turn that was passed on last
"""


def _consumer(kernel: AttentionKernel) -> list[str]:
    made = kernel.made
    general = made.scores.value is not None
    parts = {
        "heads": kernel.split(made.heads, "head"),
        "scored": kernel.scored(),
        "masked": _masked(kernel),
        "scale": ["" if general else " * scale"],
        "less": ["greatest[r]" if general else "greatest[r] * scale"],
        "power": ["score[e] - base" if general else "fmaf(score[e], scale, -base)"],
        "inverse": [inverse_line(made, "total[r]")],
        "store": _store(kernel),
    }
    return filled(_CONSUMER, parts)


def _masked(kernel: AttentionKernel) -> list[str]:
    """Scores of keys that are not there or not looked at; in tiles that have none nothing is asked."""
    outside = kernel.outside("row + i % 4 / 2 * 8", "key")
    loop = ["#pragma unroll", "for (int i = 0; i < KEYS / 2; ++i) {", "  const int key = key0 + i / 4 * 8 + i % 2;"]
    if kernel.made.scores.value is not None:
        scored = f"{LOG2_E}f * scored(score[i] * scale, row + i % 4 / 2 * 8, key)"
        return [*loop, f"  score[i] = row + i % 4 / 2 * 8 < rows && !({outside}) ? {scored} : -INFINITY;", "}"]
    tests = kernel.any_outside("(n + 1) * KEYS", "row0 + consumer * 64")
    return [f"if ({tests}) {{", *indented([*loop, f"  if ({outside}) score[i] = -INFINITY;", "}"]), "}"]


def _store(kernel: AttentionKernel) -> list[str]:
    """Neighbours in one store where the result is the sums themselves; else element by element."""
    row, column = kernel.variable(kernel.made.row), kernel.variable(kernel.made.column)
    loop = ["#pragma unroll", "for (int j = 0; j < E / 8; ++j) {"]
    inner = kernel.stored_pair("sum[j * 4 + r * 2] * inverse", "sum[j * 4 + r * 2 + 1] * inverse")
    if inner:
        inner = [f"const int {column} = j * 8 + lane % 4 * 2;", *inner]
    else:
        each = [f"const int {column} = j * 8 + lane % 4 * 2 + e;"]
        each += kernel.stored_lines("sum[j * 4 + r * 2 + e] * inverse")
        inner = ["#pragma unroll", "for (int e = 0; e < 2; ++e) {", *indented(each), "}"]
    lines = [f"const int {row} = row + r * 8;", f"if ({row} < rows) {{"]
    return [*lines, *indented([*loop, *indented(inner), "}"]), "}"]
