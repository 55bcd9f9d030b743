"""A product of f32 matrices whose operands are split into f16 parts by the kernel that multiplies them, as text.

Nothing is written but the result: each operand is read once by every tile that it meets. That is what counts where
operands are large beside the work on them: k is long and the results are few, or matrices of a batch are small. The
scale of a row is found from the first 32 of k, with room above; whatever turns out not to fit it is left to f32.
"""

from __future__ import annotations

from tilewright.playbook.cpp_text import indented
from tilewright.playbook.products.hopper_form import Form, kernel_parameters, signature, walk_arguments
from tilewright.playbook.products.hopper_kernel import walk
from tilewright.playbook.products.hopper_store import epilogue, pack
from tilewright.playbook.products.hopper_text import BARRIERS, tma, wgmma
from tilewright.records import DType

SLOTS = 3
PART_SLOTS = 2
SMEM_BYTES = SLOTS * (128 + 256) * 32 * 4 + PART_SLOTS * 2 * 256 * 32 * 2 + 2 * 64 * 128 + 256 * 4 + 128

_CONSTANTS = f"""\
constexpr int BM = 128, BN = 256, BK = 32;  // a tile of the result is BM x BN; a slot holds BK of k
constexpr int A_BYTES = BM * BK * 4, B_BYTES = BN * BK * 4, SLOT_BYTES = A_BYTES + B_BYTES, SLOTS = {SLOTS};  // f32
constexpr int PART_BYTES = BN * BK * 2, PART_SLOTS = {PART_SLOTS};  // b as two f16 parts; a is split in registers
constexpr int BOX_BYTES = BK * 64 * 2;  // of a part: BK rows of 64 columns
constexpr int C_BYTES = 64 * 128, C_BUFFERS = 1;  // per consumer
constexpr int WIDTH = 128;  // columns of one wgmma
constexpr int SPLITTER_REGISTERS = 40, CONSUMER_REGISTERS = 232;  // 128 * 40 + 256 * 232 fit
constexpr int TILE_GROUP = 8;  // rows of tiles walked together, so that blocks share operands in L2
"""

_SPLITTING = """\
// ---- f32 as two f16 parts
// A row is scaled by a power of two so that the largest of its first BK magnitudes is in [2^11, 2^12): 2^4 times that
// fits. An element x is then high + low to 2^-23 of x; one that is below 2^-3 loses bits, because low has no smaller
// steps than 2^-24, and one below 2^-11 keeps fewer than 14. Left to f32 are tiles with a row of which one element in
// 16 loses bits, or one in 1024 keeps few: the rest of such a row may be the result, where what is large in it meets
// zeros. So are tiles with a number that does not fit.
__device__ __forceinline__ uint32_t magnitude_bits(float x) { return __float_as_uint(x) & 0x7FFFFFFF; }
__device__ __forceinline__ float scale_of(uint32_t largest_bits) {
  const int exponent = largest_bits ? (int)(largest_bits >> 23) - 127 : 0;
  return __uint_as_float((uint32_t)(127 + 11 - min(max(exponent, -60), 60)) << 23);
}
// Two scaled numbers as the parts that hold them: the first in the low 16 bits.
__device__ __forceinline__ void split(float x, float y, uint32_t& high, uint32_t& low) {
  high = pack(x, y);
  const float2 held = __half22float2(*reinterpret_cast<const __half2*>(&high));
  low = pack(x - held.x, y - held.y);
}
// Elements that lose bits, and, 16 bits higher, those that do not; zeros are neither. A thread sees fewer than 2^16.
__device__ __forceinline__ uint32_t counted(float scaled) {
  return scaled == 0.f ? 0 : fabsf(scaled) < 0x1p-3f ? 1 : 1 << 16;
}
__device__ __forceinline__ uint32_t keeps_few(float scaled) { return scaled != 0.f && fabsf(scaled) < 0x1p-11f; }
__device__ __forceinline__ bool fits(float scaled) { return fabsf(scaled) <= 65504.f; }  // NaN does not
__device__ __forceinline__ bool is_too_wide(uint32_t losing, uint32_t others, uint32_t few) {
  return losing > 1 + (losing + others) / 16 || few > (losing + others) / 1024;
}
__device__ __forceinline__ float4 shared_float4(uint32_t at) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(at));
  return v;
}
"""

_SPLITTER = """\
asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(SPLITTER_REGISTERS));
auto load = [&](int step) {
  const uint32_t at = slots + step % SLOTS * SLOT_BYTES, arrived = full + step % SLOTS * 8;
  barrier_wait(empty + step % SLOTS * 8, step / SLOTS % 2 ^ 1);
  barrier_arrive_expecting(arrived, SLOT_BYTES);
  load_box(&a_map, arrived, at, @k, tile.m0, tile.z);
  load_box(&b_map, arrived, at + A_BYTES, tile.n0, @k, tile.z);
};
if (thread == 0)
  for (int step = 0; step < min(SLOTS - 1, tile.steps); ++step) load(step);

// Four columns of half of the slot's k.
const int column = thread % 64 * 4, first = thread / 64 * 16;
const uint32_t to_column = column / 64 * BOX_BYTES + column % 8 * 2;
float scale[4];
uint32_t counts[4] = {}, few[2] = {};  // few: two columns in one number, the second 16 bits higher
bool all_fit = true;
for (int step = 0; step < tile.steps; ++step) {
  const uint32_t from = slots + step % SLOTS * SLOT_BYTES + A_BYTES + (first * BN + column) * 4;
  barrier_wait(full + step % SLOTS * 8, step / SLOTS % 2);
  if (step == 0) {  // the scales of the columns, by way of the place where the consumers will find them
    uint32_t largest[4] = {};
    for (int i = 0; i < 16; ++i) {
      const float4 x = shared_float4(from + i * BN * 4);
      largest[0] = max(largest[0], magnitude_bits(x.x)), largest[1] = max(largest[1], magnitude_bits(x.y));
      largest[2] = max(largest[2], magnitude_bits(x.z)), largest[3] = max(largest[3], magnitude_bits(x.w));
    }
    uint32_t* found = reinterpret_cast<uint32_t*>(column_scales) + column;
    if (first > 0)
      for (int j = 0; j < 4; ++j) found[j] = largest[j];
    consumer_sync(2);
    if (first == 0)
      for (int j = 0; j < 4; ++j) found[j] = max(found[j], largest[j]);
    consumer_sync(2);
    for (int j = 0; j < 4; ++j) scale[j] = scale_of(found[j]);
    consumer_sync(2);
    if (first == 0)
      for (int j = 0; j < 4; ++j) column_scales[column + j] = 1.f / scale[j];
  }
  const uint32_t parts = part_slots + step % PART_SLOTS * 2 * PART_BYTES + to_column;
  barrier_wait(used + step % PART_SLOTS * 8, step / PART_SLOTS % 2 ^ 1);
#pragma unroll 2
  for (int i = 0; i < 16; ++i) {
    const float4 x = shared_float4(from + i * BN * 4);
    const float s[4] = {x.x * scale[0], x.y * scale[1], x.z * scale[2], x.w * scale[3]};
    uint32_t high[2], low[2];
    split(s[0], s[1], high[0], low[0]);
    split(s[2], s[3], high[1], low[1]);
    const int k = first + i / 4 * 2 + i % 2 + i % 4 / 2 * 8;  // in the order in which lanes hold a
    const uint32_t to = parts + k * 128 + ((column % 64 / 8) ^ k % 8) * 16;
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), "r"(high[0]), "r"(high[1]) : "memory");
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to + PART_BYTES), "r"(low[0]), "r"(low[1]) : "memory");
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      counts[j] += counted(s[j]), few[j / 2] += keeps_few(s[j]) << j % 2 * 16;
      all_fit = all_fit && fits(s[j]);
    }
  }
  show_to_tma();
  __syncwarp();
  if (thread % 32 == 0) barrier_arrive(split_done + step % PART_SLOTS * 8), barrier_arrive(empty + step % SLOTS * 8);
  if (thread == 0 && step + SLOTS - 1 < tile.steps) load(step + SLOTS - 1);
}
bool too_wide = !all_fit;
for (int j = 0; j < 4; ++j)
  too_wide = too_wide || is_too_wide(counts[j] & 0xFFFF, counts[j] >> 16, few[j / 2] >> j % 2 * 16 & 0xFFFF);
if (too_wide) wide[which] = 1;
"""

_CONSUMER = """\
asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
const int consumer = warpgroup, lane = thread % 32, warp = thread / 32;
// A lane holds rows `row` and `row` + 8 of a, and of each 16 of k the four at lane % 4 * 4. Rows are taken in the order
// 0 4 1 5 2 6 3 7, and b has k in the order in which wgmma takes what lanes hold: so 16 bytes at a time are read, by
// lanes that meet all banks.
const int row = warp * 16 + lane / 8 + lane / 4 % 2 * 4;
const uint32_t my_scales = scales;
const uint64_t b_slots = descriptor(part_slots, BOX_BYTES, 1024, SWIZZLE_128);
float sum[BN / 2] = {}, scale[2] = {};
uint32_t counts[2] = {}, few[2] = {};
bool all_fit = true;
for (int step = 0; step < tile.steps; ++step) {
  const uint32_t from = slots + step % SLOTS * SLOT_BYTES + (consumer * 64 + row) * 128;
  barrier_wait(full + step % SLOTS * 8, step / SLOTS % 2);
  float4 x[2][2];  // of two rows: two times 16 of k
#pragma unroll
  for (int i = 0; i < 4; ++i)
    x[i / 2][i % 2] = shared_float4(from + i / 2 * 8 * 128 + ((i % 2 * 4 + lane % 4) ^ row % 8) * 16);
  if (step == 0) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t largest = 0;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        largest = max(largest, max(magnitude_bits(x[i][h].x), magnitude_bits(x[i][h].y)));
        largest = max(largest, max(magnitude_bits(x[i][h].z), magnitude_bits(x[i][h].w)));
      }
      largest = max(largest, __shfl_xor_sync(~0u, largest, 1));
      scale[i] = scale_of(max(largest, __shfl_xor_sync(~0u, largest, 2)));
    }
  }
  uint32_t high[2][4], low[2][4];  // for two times 16 of k: what wgmma takes of a
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int r = i / 2, h = i % 2;
    const float s[4] = {x[r][h].x * scale[r], x[r][h].y * scale[r], x[r][h].z * scale[r], x[r][h].w * scale[r]};
    split(s[0], s[1], high[h][r], low[h][r]);
    split(s[2], s[3], high[h][r + 2], low[h][r + 2]);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      counts[r] += counted(s[j]), few[r] += keeps_few(s[j]);
      all_fit = all_fit && fits(s[j]);
    }
  }
  __syncwarp();
  if (lane == 0) barrier_arrive(empty + step % SLOTS * 8);

  // low * high + high * low + high * high, the small products first; low * low is below the last bit. Tensor cores cut
  // off bits where they add, so only BK of k are summed there; the sums are added up in f32 registers.
  barrier_wait(split_done + step % PART_SLOTS * 8, step / PART_SLOTS % 2);
  const uint64_t b_slot = b_slots + (step % PART_SLOTS * 2 * PART_BYTES >> 4);
#pragma unroll
  for (int half = 0; half < BN / WIDTH; ++half) {
    float some[WIDTH / 2];
    const uint64_t b_half = b_slot + (half * (WIDTH / 64) * BOX_BYTES >> 4);
    wgmma_fence();
    wgmma(some, low[0], b_half, 0);
    wgmma(some, low[1], b_half + (16 * 128 >> 4), 1);
    wgmma(some, high[0], b_half + (PART_BYTES >> 4), 1);
    wgmma(some, high[1], b_half + ((PART_BYTES + 16 * 128) >> 4), 1);
    wgmma(some, high[0], b_half, 1);
    wgmma(some, high[1], b_half + (16 * 128 >> 4), 1);
    wgmma_commit();
    wgmma_wait<0>();
    if (half == BN / WIDTH - 1 && thread == 0) barrier_arrive(used + step % PART_SLOTS * 8);
#pragma unroll
    for (int i = 0; i < WIDTH / 2; ++i) sum[half * (WIDTH / 2) + i] += some[i];
  }
}

bool too_wide = !all_fit;
#pragma unroll
for (int r = 0; r < 2; ++r) {  // the four lanes of a row
  uint32_t losing = counts[r] & 0xFFFF, others = counts[r] >> 16;
#pragma unroll
  for (int o = 1; o < 4; o *= 2) {
    losing += __shfl_xor_sync(~0u, losing, o), others += __shfl_xor_sync(~0u, others, o);
    few[r] += __shfl_xor_sync(~0u, few[r], o);
  }
  too_wide = too_wide || is_too_wide(losing, others, few[r]);
}
if (too_wide) wide[which] = 1;
const float row_scale[2] = {1.f / scale[0], 1.f / scale[1]};
"""


def fused_text(form: Form) -> list[str]:
    """All of the file's code that the product itself needs."""
    finish = form.finish
    code = [*_CONSTANTS.splitlines(), "", *BARRIERS.splitlines(), *tma(form.tma_store).splitlines(), ""]
    code += [*wgmma((128,), "f16", (False, True), in_registers=True).splitlines(), ""]
    code += [*pack(DType.F16), *_SPLITTING.splitlines(), ""]
    if not form.pieces:
        code += [*finish.pair_functions(form.tma_store), *finish.text, ""]
    return [*code, *walk(form), "", *_kernel(form)]


def _kernel(form: Form) -> list[str]:
    k = "tile.k0 + step * BK" if form.pieces else "step * BK"
    matrix = "(tile.z * pieces + tile.piece)" if form.pieces else "tile.z"
    body = [
        "extern __shared__ __align__(1024) char shared[];  // swizzled tiles need 1024-byte bases",
        "const uint32_t slots = (uint32_t)__cvta_generic_to_shared(shared), part_slots = slots + SLOTS * SLOT_BYTES;",
        "const uint32_t c_buffers = part_slots + PART_SLOTS * 2 * PART_BYTES;",
        "const uint32_t scales = c_buffers + 2 * C_BUFFERS * C_BYTES;",
        "const uint32_t full = scales + BN * 4, empty = full + SLOTS * 8, split_done = empty + SLOTS * 8;",
        "const uint32_t used = split_done + PART_SLOTS * 8;",
        "float* column_scales = reinterpret_cast<float*>(shared + (scales - slots));",
        "const int thread = threadIdx.x % 128, warpgroup = threadIdx.x / 128;  // two consumers, then the splitter",
        "if (threadIdx.x == 0) {",
        "  if (slots % 1024) __trap();",
        f"  prefetch(&a_map), prefetch(&b_map){', prefetch(&c_map)' if form.tma_store else ''};",
        "  for (int s = 0; s < SLOTS; ++s) barrier_init(full + s * 8, 1), barrier_init(empty + s * 8, 12);",
        "  for (int s = 0; s < PART_SLOTS; ++s) barrier_init(split_done + s * 8, 4), barrier_init(used + s * 8, 2);",
        '  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");',
        "}",
        "__syncthreads();",
        f"Walk tile({walk_arguments(form)});",
        "tile.next();",
        f"const long long which = ((long long){matrix} * tile.tiles_m + tile.m0 / BM) * tile.tiles_n + tile.n0 / BN;",
        "",
        "if (warpgroup == 2) {  // ---- splitter: loads slots, and splits b",
        *indented(_SPLITTER.replace("@k", k).splitlines()),
        "} else {  // ---- consumers: split a, and multiply",
        *indented([*_CONSUMER.splitlines(), *epilogue(form)]),
        *(["  if (thread == 0) wait_until_stored();"] if form.tma_store else []),
        "}",
    ]
    declared = [declaration for declaration, _ in kernel_parameters(form)]
    return [*signature("__launch_bounds__(384, 1) ", "product", declared), *indented(body), "}"]
