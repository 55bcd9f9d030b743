"""A product of f32 matrices whose operands are split into f16 parts by the kernel that multiplies them, as text.

Nothing is written but the result: each operand is read once by every tile that it meets. That is what counts where
operands are large beside the work on them: k is long and the results are few, or matrices of a batch are small. The
scale of a row is found from the first 32 of k, with room above; whatever turns out not to fit it is left to f32.
"""

from __future__ import annotations

import re

from tilewright.playbook.cpp_text import indented
from tilewright.playbook.products.hopper_form import Form, kernel_parameters, signature, walk_arguments
from tilewright.playbook.products.hopper_kernel import walk
from tilewright.playbook.products.hopper_store import epilogue, pack, pair_functions
from tilewright.playbook.products.hopper_text import BARRIERS, SHOW, tma, wgmma
from tilewright.records import DType

SLOTS = 3
PART_SLOTS = 2
SMEM_BYTES = SLOTS * (128 + 256) * 32 * 4 + PART_SLOTS * 2 * 256 * 32 * 2 + (128 + 256) * 12 + 2 * 256 * 4 + 256

_CONSTANTS = f"""\
constexpr int BM = 128, BN = 256, BK = 32;  // a tile of the result is BM x BN; a slot holds BK of k
constexpr int A_BYTES = BM * BK * 4, B_BYTES = BN * BK * 4, SLOT_BYTES = A_BYTES + B_BYTES, SLOTS = {SLOTS};  // f32
constexpr int PART_BYTES = BN * BK * 2, PART_SLOTS = {PART_SLOTS};  // b as two f16 parts; a is split in registers
@boxes
constexpr int WIDTH = 128;  // columns of one wgmma
constexpr int SPLITTERS = @splitters;  // threads
constexpr int SPLITTER_REGISTERS = @splitter_registers, CONSUMER_REGISTERS = @consumer_registers;
constexpr int TILE_GROUP = 8;  // rows of tiles walked together, so that blocks share operands in L2
"""

_SPLITTING = """\
// ---- f32 as two f16 parts
// A row is scaled by a power of two so that the largest of its first BK magnitudes is in [2^12, 2^13): 2^3 times that
// fits. An element x is then high + low to 2^-23 of x; one that is below 2^-5 keeps fewer than 20 bits, because low has
// no smaller steps than 2^-24, and one below 2^-11 fewer than 14. Left to f32 are tiles with a row of which one element
// in 16 is below the first, or one in 1024 below the second: the rest of such a row may be the result, where what is
// large in it meets zeros. So are tiles with a number that does not fit: its parts are infinities, its sums no numbers.
__device__ __forceinline__ uint32_t magnitude_bits(float x) { return __float_as_uint(x) & 0x7FFFFFFF; }
__device__ __forceinline__ uint32_t largest_of(float4 x) {
  return max(max(magnitude_bits(x.x), magnitude_bits(x.y)), max(magnitude_bits(x.z), magnitude_bits(x.w)));
}
__device__ __forceinline__ float scale_of(uint32_t largest_bits) {
  const int exponent = largest_bits ? (int)(largest_bits >> 23) - 127 : 0;
  return __uint_as_float((uint32_t)(127 + 12 - min(max(exponent, -60), 60)) << 23);
}
// Two scaled numbers as the parts that hold them: the first in the low 16 bits.
__device__ __forceinline__ void split(float x, float y, uint32_t& high, uint32_t& low) {
  high = pack(x, y);
  const float2 held = __half22float2(*reinterpret_cast<const __half2*>(&high));
  low = pack(x - held.x, y - held.y);
}
constexpr float LOSING = 0x1p-5f, FEW = 0x1p-11f;
// The least magnitude of high parts, of two rows of numbers side by side.
__device__ __forceinline__ void take_least(__half2& least, uint32_t high) {
  least = __hmin2(least, __habs2(*reinterpret_cast<const __half2*>(&high)));
}
__device__ __forceinline__ bool is_losing(__half2 least) {
  return fminf(__low2float(least), __high2float(least)) < LOSING;
}
// What is known of a row: elements that lose bits, that keep few, and zeros. Only what is below LOSING is counted, and
// ordinary rows have next to nothing there.
struct Counts {
  int losing, few, zeros;
  __device__ __forceinline__ void add(float scaled) {
    if (scaled == 0.f) atomicAdd(&zeros, 1);
    else if (fabsf(scaled) < LOSING) {
      atomicAdd(&losing, 1);
      if (fabsf(scaled) < FEW) atomicAdd(&few, 1);
    }
  }
  __device__ __forceinline__ bool is_too_wide(int length) const {
    return losing > 1 + (length - zeros) / 16 || few > (length - zeros) / 1024;
  }
};
__device__ __forceinline__ float4 shared_float4(uint32_t at) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(at));
  return v;
}
"""

_STORE_PAIR = """\
__device__ __forceinline__ void store_pair(uint32_t to, uint32_t x, uint32_t y) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), "r"(x), "r"(y) : "memory");
}
"""
_STORE_FOUR = """\
__device__ __forceinline__ void store_four(uint32_t to, const uint32_t* x) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
               ::"r"(to), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]) : "memory");
}
"""
_SYNC = """\
__device__ __forceinline__ void splitters_sync() { asm volatile("bar.sync 3, %0;" ::"n"(SPLITTERS) : "memory"); }
"""

_SPLITTER = """\
asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(SPLITTER_REGISTERS));
const int splitter = threadIdx.x - 256;
// The first thread loads a few steps ahead, of the next tile too. Where it is stands in shared memory: registers are
// few.
Walk* ahead = reinterpret_cast<Walk*>(shared + (walks - slots));
int* ahead_step = reinterpret_cast<int*>(ahead + 1);
auto load = [&](int number) {
  if (ahead->steps == 0) return;  // nothing is left
  const uint32_t at = slots + number % SLOTS * SLOT_BYTES, arrived = full + number % SLOTS * 8;
  barrier_wait(empty + number % SLOTS * 8, number / SLOTS % 2 ^ 1);
  barrier_arrive_expecting(arrived, SLOT_BYTES);
  load_box(&a_map, arrived, at, @along, ahead->m0, ahead->z);
  load_box(&b_map, arrived, at + A_BYTES, @b_place, ahead->z);
  if (++*ahead_step < ahead->steps) return;
  *ahead_step = 0;
  if (!ahead->next()) ahead->steps = 0;
};
if (splitter == 0) {
  *ahead = tile, *ahead_step = 0;
  ahead->next();
#pragma unroll 1
  for (int number = 0; number < SLOTS; ++number) load(number);
}

Counts* of_columns = reinterpret_cast<Counts*>(shared + (counts - slots)) + BM;
@place
int done = 0;  // steps, of all tiles
for (int turn = 0; tile.next(); ++turn) {
  // Tiles take turns with two places for scales: the tile before last has been stored.
  float* column_scales = reinterpret_cast<float*>(shared + (scales - slots)) + turn % 2 * BN;
  barrier_wait(finished + turn % 2 * 8, turn / 2 % 2 ^ 1);
  for (int i = splitter; i < BN; i += SPLITTERS) of_columns[i] = {}, column_scales[i] = 0.f;
  splitters_sync();
  for (int step = 0; step < tile.steps; ++step, ++done) {
    const uint32_t from = slots + done % SLOTS * SLOT_BYTES + A_BYTES@from;
    barrier_wait(full + done % SLOTS * 8, done / SLOTS % 2);
@ask
@scales
    const uint32_t parts = part_slots + done % PART_SLOTS * 2 * PART_BYTES@to;
    barrier_wait(used + done % PART_SLOTS * 8, done / PART_SLOTS % 2 ^ 1);
    // The slot of the step before is filled again once the consumers have what they need of it, which is soon.
    auto load_more = [&] {
      if (splitter == 0 && done > 0) load(done + SLOTS - 1);
    };
@split
    if (step == tile.steps - 1) {
      splitters_sync();
      for (int i = splitter; i < BN; i += SPLITTERS)
        if (of_columns[i].is_too_wide(tile.steps * BK)) wide[0] = 1, wide[1 + tile.number()] = 1;
    }
    show_to_tma();
    __syncwarp();
    if (thread % 32 == 0) barrier_arrive(split_done + done % PART_SLOTS * 8), barrier_arrive(empty + done % SLOTS * 8);
  }
}
"""
# Rows that are contiguous along k lie far apart where k is long, and a slot has only 128 bytes of each: so four slots
# of them are brought to L2 at once.
_ASK = """\
    if (step % 4 == 0 && step + 4 < tile.steps) {
@rows
    }"""
_ASK_A = """\
      if (splitter < BM && tile.m0 + splitter < M)
        ask_for(a + tile.z * a_matrix_pitch + (tile.m0 + splitter) * a_pitch, tile.k0 + (step + 4) * BK, K);"""
_ASK_B = """\
      if (tile.n0 + splitter < N)
        ask_for(b + tile.z * b_matrix_pitch + (tile.n0 + splitter) * b_pitch, tile.k0 + (step + 4) * BK, K);"""
_ASK_FOR = """\
// Brings a run of four slots' k of a row to L2.
__device__ __forceinline__ void ask_for(const float* row, int k, int K) {
  const int bytes = min(4 * BK, K - k) * 4;
  if (bytes > 0) asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(row + k), "r"(bytes) : "memory");
}
"""

# The second operand as it lies: what a splitter does with a slot of it. Consumers hold k in an order of their own.
_ALONG_N = {
    "splitters": "128",
    "splitter_registers": "56",  # 40 spill: 0.52 against 0.50 ms at 256 x 256 x 524288
    "consumer_registers": "224",
    "k_step": "16 * 128",
    "strides": "BOX_BYTES, 1024, SWIZZLE_128",
    "width": "WIDTH / 64 * BOX_BYTES",
    "boxes": "constexpr int BOX_BYTES = BK * 64 * 2;  // of a part: BK rows of 64 columns",
    "place": """\
// Four columns, and half of a slot's k.
const int column = splitter % (BN / 4) * 4, first = splitter / (BN / 4) * 16;
float4 scale;""",
    "from": " + (first * BN + column) * 4",
    "to": " + column / 64 * BOX_BYTES + first * 128 + column % 64 * 2",
    "scales": """\
  if (step == 0) {  // the scales of the columns, by way of the place where the consumers will find them
    uint32_t* largest = reinterpret_cast<uint32_t*>(column_scales) + column;
    uint32_t of_half[4] = {};
#pragma unroll 4
    for (int k = 0; k < 16; ++k) {
      const float4 x = shared_float4(from + k * BN * 4);
      of_half[0] = max(of_half[0], magnitude_bits(x.x)), of_half[1] = max(of_half[1], magnitude_bits(x.y));
      of_half[2] = max(of_half[2], magnitude_bits(x.z)), of_half[3] = max(of_half[3], magnitude_bits(x.w));
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) atomicMax(largest + j, of_half[j]);
    splitters_sync();
    scale = make_float4(scale_of(largest[0]), scale_of(largest[1]), scale_of(largest[2]), scale_of(largest[3]));
    splitters_sync();
    float4* inverse = reinterpret_cast<float4*>(largest);
    if (first == 0) *inverse = make_float4(1.f / scale.x, 1.f / scale.y, 1.f / scale.z, 1.f / scale.w);
  }""",
    "split": """\
  __half2 least = __float2half2_rn(LOSING);
#pragma unroll
  for (int four = 0; four < 4; ++four) {
    float4 s[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) s[i] = shared_float4(from + (four * 4 + i) * BN * 4);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      s[i] = make_float4(s[i].x * scale.x, s[i].y * scale.y, s[i].z * scale.z, s[i].w * scale.w);
      uint32_t high[2], low[2];
      split(s[i].x, s[i].y, high[0], low[0]);
      split(s[i].z, s[i].w, high[1], low[1]);
      const int k = four * 2 + i % 2 + i / 2 * 8;  // in the order in which lanes hold a
      const uint32_t to = (parts ^ k % 8 * 16) + k * 128;  // the swizzle, with a register for each k % 8 at most
      store_pair(to, high[0], high[1]);
      store_pair(to + PART_BYTES, low[0], low[1]);
      take_least(least, high[0]), take_least(least, high[1]);
    }
    if (four == 1) load_more();
  }
  if (is_losing(least)) {
#pragma unroll 1
    for (int k = 0; k < 16; ++k) {
      const float4 x = shared_float4(from + k * BN * 4);
      of_columns[column].add(x.x * scale.x), of_columns[column + 1].add(x.y * scale.y);
      of_columns[column + 2].add(x.z * scale.z), of_columns[column + 3].add(x.w * scale.w);
    }
  }""",
}
_ALONG_K = {
    "splitters": "256",  # 128 take 5 % longer at 128 x 32768 x 32768
    "splitter_registers": "40",
    "consumer_registers": "216",
    "k_step": "32",
    "strides": "16, 8 * BK * 2, SWIZZLE_64",
    "width": "WIDTH * BK * 2",
    "boxes": "",
    "place": """\
constexpr int COLUMNS = BN / SPLITTERS;  // of a thread
float scale[COLUMNS];""",
    "from": " + splitter * BK * 4 + splitter % 8 * 16",
    "to": " + splitter * BK * 2 + splitter / 2 % 4 * 16",
    "scales": """\
  if (step == 0) {
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
      uint32_t largest = 0;
      for (int i = 0; i < 8; ++i)
        largest = max(largest, largest_of(shared_float4((from ^ i * 16) + c * SPLITTERS * BK * 4)));
      scale[c] = scale_of(largest), column_scales[splitter + c * SPLITTERS] = 1.f / scale[c];
    }
  }""",
    "split": """\
#pragma unroll
  for (int c = 0; c < COLUMNS; ++c) {
    __half2 least = __float2half2_rn(LOSING);
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // 16 of k
      uint32_t high[8], low[8];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float4 x = shared_float4((from ^ (half * 4 + i) * 16) + c * SPLITTERS * BK * 4);
        x = make_float4(x.x * scale[c], x.y * scale[c], x.z * scale[c], x.w * scale[c]);
        split(x.x, x.y, high[i], low[i]);  // in the order in which lanes hold a
        split(x.z, x.w, high[i + 4], low[i + 4]);
        take_least(least, high[i]), take_least(least, high[i + 4]);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t to = (parts ^ (half * 2 + i) * 16) + c * SPLITTERS * BK * 2;  // as wgmma expects it
        store_four(to, high + i * 4);
        store_four(to + PART_BYTES, low + i * 4);
      }
      if (c == 0 && half == 0) load_more();
    }
    if (is_losing(least)) {
#pragma unroll 1
      for (int i = 0; i < 8; ++i) {
        const float4 x = shared_float4((from ^ i * 16) + c * SPLITTERS * BK * 4);
        Counts& mine = of_columns[splitter + c * SPLITTERS];
        mine.add(x.x * scale[c]), mine.add(x.y * scale[c]), mine.add(x.z * scale[c]), mine.add(x.w * scale[c]);
      }
    }
  }""",
}

_CONSUMER = """\
asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
const int consumer = warpgroup, lane = thread % 32, warp = thread / 32;
// A lane holds rows `row` and `row` + 8 of a, and of each 16 of k the four at lane % 4 * 4. Rows are taken in the order
// 0 4 1 5 2 6 3 7, and b has k in the order in which wgmma takes what lanes hold: so 16 bytes at a time are read, by
// lanes that meet all banks.
const int row = warp * 16 + lane / 8 + lane / 4 % 2 * 4;
const uint64_t b_slots = descriptor(part_slots, @strides);
Counts* of_rows = reinterpret_cast<Counts*>(shared + (counts - slots)) + consumer * 64;
int done = 0;  // steps, of all tiles
"""
_TILE = """\
const uint32_t my_columns = scales + turn % 2 * BN * 4;
if (thread < 64) of_rows[thread] = {};
consumer_sync(consumer);
float sum[BN / 2] = {}, scale[2] = {};
for (int step = 0; step < tile.steps; ++step, ++done) {
  const uint32_t from = slots + done % SLOTS * SLOT_BYTES + (consumer * 64 + row) * 128;
  barrier_wait(full + done % SLOTS * 8, done / SLOTS % 2);
  float4 x[2][2];  // of two rows: two times 16 of k
#pragma unroll
  for (int i = 0; i < 4; ++i)
    x[i / 2][i % 2] = shared_float4(from + i / 2 * 8 * 128 + ((i % 2 * 4 + lane % 4) ^ row % 8) * 16);
  if (step == 0) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      uint32_t largest = max(largest_of(x[r][0]), largest_of(x[r][1]));
      largest = max(largest, __shfl_xor_sync(~0u, largest, 1));
      scale[r] = scale_of(max(largest, __shfl_xor_sync(~0u, largest, 2)));
    }
  }
  uint32_t high[2][4], low[2][4];  // for two times 16 of k: what wgmma takes of a
  __half2 least = __float2half2_rn(LOSING);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int r = i / 2, h = i % 2;
    x[r][h] = make_float4(x[r][h].x * scale[r], x[r][h].y * scale[r], x[r][h].z * scale[r], x[r][h].w * scale[r]);
    split(x[r][h].x, x[r][h].y, high[h][r], low[h][r]);
    split(x[r][h].z, x[r][h].w, high[h][r + 2], low[h][r + 2]);
    take_least(least, high[h][r]), take_least(least, high[h][r + 2]);
  }
  if (is_losing(least)) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float4 s = x[i / 2][i % 2];
      Counts& mine = of_rows[row + i / 2 * 8];
      mine.add(s.x), mine.add(s.y), mine.add(s.z), mine.add(s.w);
    }
  }
  __syncwarp();
  if (lane == 0) barrier_arrive(empty + done % SLOTS * 8);

  // low * high + high * low + high * high, the small products first; low * low is below the last bit. Tensor cores cut
  // off bits where they add, so only BK of k are summed there; the sums are added up in f32 registers.
  barrier_wait(split_done + done % PART_SLOTS * 8, done / PART_SLOTS % 2);
  const uint64_t b_slot = b_slots + (done % PART_SLOTS * 2 * PART_BYTES >> 4);
#pragma unroll
  for (int half = 0; half < BN / WIDTH; ++half) {
    float some[WIDTH / 2];
    const uint64_t b_half = b_slot + (half * @width >> 4);
    wgmma_fence();
    wgmma(some, low[0], b_half, 0);
    wgmma(some, low[1], b_half + (@k_step >> 4), 1);
    wgmma(some, high[0], b_half + (PART_BYTES >> 4), 1);
    wgmma(some, high[1], b_half + ((PART_BYTES + @k_step) >> 4), 1);
    wgmma(some, high[0], b_half, 1);
    wgmma(some, high[1], b_half + (@k_step >> 4), 1);
    wgmma_commit();
    wgmma_wait<0>();
    if (half == BN / WIDTH - 1 && thread == 0) barrier_arrive(used + done % PART_SLOTS * 8);
#pragma unroll
    for (int i = 0; i < WIDTH / 2; ++i) sum[half * (WIDTH / 2) + i] += some[i];
  }
}

consumer_sync(consumer);
bool too_wide = thread < 64 && of_rows[thread].is_too_wide(tile.steps * BK);
float not_a_number = 0.f;
#pragma unroll
for (int i = 0; i < BN / 2; ++i) not_a_number = fmaf(sum[i], 0.f, not_a_number);
too_wide = too_wide || not_a_number != 0.f;
if (too_wide) wide[0] = 1, wide[1 + tile.number()] = 1;
const float row_scale[2] = {1.f / scale[0], 1.f / scale[1]};
"""


def fused_threads(form: Form) -> int:
    """Of a block: two warpgroups that multiply, and those that split the second operand."""
    return 256 + int((_ALONG_K if form.product.b.along_k else _ALONG_N)["splitters"])


def fused_text(form: Form) -> list[str]:
    """All of the file's code that the product itself needs."""
    along_k = form.product.b.along_k
    code = [*_as_b_lies(form, _CONSTANTS), "", *BARRIERS.splitlines(), *_SYNC.splitlines()]
    code += [*tma(boxes=False).splitlines(), *SHOW.splitlines(), ""]
    swizzles = (64,) if along_k else (128,)
    code += [*wgmma((128,), "f16", (False, not along_k), swizzles, in_registers=True).splitlines(), ""]
    code += [*pack(DType.F16), *_SPLITTING.splitlines(), *(_STORE_FOUR if along_k else _STORE_PAIR).splitlines(), ""]
    if form.pieces:
        code += [*_ASK_FOR.splitlines(), ""]
    else:
        code += [*pair_functions(form), *form.finish_function, ""]
    return [*code, *walk(form), "", *_kernel(form)]


def _as_b_lies(form: Form, text: str) -> list[str]:
    """A text in which @word stands for what depends on how the second operand lies."""
    k = "ahead->k0 + *ahead_step * BK" if form.pieces else "*ahead_step * BK"
    words = _ALONG_K if form.product.b.along_k else _ALONG_N
    words = {name: indent(one, "  ") if name in ("scales", "split") else one for name, one in words.items()}
    words = {**words, "along": k, "b_place": f"{k}, ahead->n0" if form.product.b.along_k else f"ahead->n0, {k}"}
    rows = _ASK_A + ("\n" + _ASK_B if form.product.b.along_k else "")
    words["ask"] = _ASK.replace("@rows", rows) if form.pieces else ""
    return [line for line in re.sub(r"@(\w+)", lambda found: words[found[1]], text).splitlines() if line]


def indent(text: str, by: str) -> str:
    """The lines of a text further in; the preprocessor's stay."""
    return "\n".join(line if line.startswith("#") else by + line for line in text.splitlines())


def _kernel(form: Form) -> list[str]:
    body = [
        "extern __shared__ __align__(1024) char shared[];  // swizzled tiles need 1024-byte bases",
        "const uint32_t slots = (uint32_t)__cvta_generic_to_shared(shared), part_slots = slots + SLOTS * SLOT_BYTES;",
        "const uint32_t counts = part_slots + PART_SLOTS * 2 * PART_BYTES;",
        "const uint32_t scales = counts + (BM + BN) * sizeof(Counts);",
        "const uint32_t full = scales + 2 * BN * 4, empty = full + SLOTS * 8, split_done = empty + SLOTS * 8;",
        "const uint32_t used = split_done + PART_SLOTS * 8, finished = used + PART_SLOTS * 8, walks = finished + 16;",
        "const int thread = threadIdx.x % 128, warpgroup = threadIdx.x / 128;  // two consumers, then the splitter",
        "if (threadIdx.x == 0) {",
        "  if (slots % 1024) __trap();",
        "  prefetch(&a_map), prefetch(&b_map);",
        "  for (int s = 0; s < SLOTS; ++s)",
        "    barrier_init(full + s * 8, 1), barrier_init(empty + s * 8, 8 + SPLITTERS / 32);",
        "  for (int s = 0; s < PART_SLOTS; ++s)",
        "    barrier_init(split_done + s * 8, SPLITTERS / 32), barrier_init(used + s * 8, 2);",
        "  barrier_init(finished, 8), barrier_init(finished + 8, 8);",
        '  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");',
        "}",
        "__syncthreads();",
        "cudaTriggerProgrammaticLaunchCompletion();",
        f"Walk tile({walk_arguments(form)});",
        "",
        "if (warpgroup >= 2) {  // ---- splitters: load slots, and split b",
        *indented(_as_b_lies(form, _SPLITTER)),
        "} else {  // ---- consumers: split a, and multiply",
        *indented(_as_b_lies(form, _CONSUMER)),
        "  for (int turn = 0; tile.next(); ++turn) {",
        *indented([*_as_b_lies(form, _TILE), *epilogue(form)], 2),
        "    __syncwarp();",
        "    if (lane == 0) barrier_arrive(finished + turn % 2 * 8);",
        "  }",
        "}",
    ]
    declared = [declaration for declaration, _ in kernel_parameters(form)]
    return [*signature(f"__launch_bounds__({fused_threads(form)}, 1) ", "product", declared), *indented(body), "}"]
