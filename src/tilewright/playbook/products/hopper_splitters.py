"""The warpgroups that load slots of f32 and split the second operand in shared memory, as text."""

from __future__ import annotations

from tilewright.playbook.products.hopper_form import Form

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

SPLITTER = """\
asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(SPLITTER_REGISTERS));
auto load = [&](int step) {
  const uint32_t at = slots + step % SLOTS * SLOT_BYTES, arrived = full + step % SLOTS * 8;
  barrier_wait(empty + step % SLOTS * 8, step / SLOTS % 2 ^ 1);
  barrier_arrive_expecting(arrived, SLOT_BYTES);
  load_box(&a_map, arrived, at, @along, tile.m0, tile.z);
  load_box(&b_map, arrived, at + A_BYTES, @b_place, tile.z);
};
const int splitter = threadIdx.x - 256;
if (splitter == 0)
  for (int step = 0; step < min(SLOTS - 1, tile.steps); ++step) load(step);

SharedCounts* of_columns = reinterpret_cast<SharedCounts*>(shared + (counts - slots)) + BM;
for (int i = splitter; i < BN; i += SPLITTERS) of_columns[i] = {}, column_scales[i] = 0.f;
splitters_sync();
@place
for (int step = 0; step < tile.steps; ++step) {
  const uint32_t from = slots + step % SLOTS * SLOT_BYTES + A_BYTES@from;
  barrier_wait(full + step % SLOTS * 8, step / SLOTS % 2);
@scales
  const uint32_t parts = part_slots + step % PART_SLOTS * 2 * PART_BYTES@to;
  barrier_wait(used + step % PART_SLOTS * 8, step / PART_SLOTS % 2 ^ 1);
@split
  if (step == tile.steps - 1) {
    splitters_sync();
    for (int i = splitter; i < BN; i += SPLITTERS)
      if (of_columns[i].is_too_wide(tile.steps * BK)) wide[0] = 1, wide[1 + which] = 1;
  }
  show_to_tma();
  __syncwarp();
  if (thread % 32 == 0) barrier_arrive(split_done + step % PART_SLOTS * 8), barrier_arrive(empty + step % SLOTS * 8);
  if (splitter == 0 && step + SLOTS - 1 < tile.steps) load(step + SLOTS - 1);
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
    for (int k = 0; k < 16; ++k) {
      const float4 x = shared_float4(from + k * BN * 4);
      atomicMax(largest, magnitude_bits(x.x)), atomicMax(largest + 1, magnitude_bits(x.y));
      atomicMax(largest + 2, magnitude_bits(x.z)), atomicMax(largest + 3, magnitude_bits(x.w));
    }
    splitters_sync();
    scale.x = scale_with_room(largest[0]), scale.y = scale_with_room(largest[1]);
    scale.z = scale_with_room(largest[2]), scale.w = scale_with_room(largest[3]);
    splitters_sync();
    float4* inverse = reinterpret_cast<float4*>(largest);
    if (first == 0) *inverse = make_float4(1.f / scale.x, 1.f / scale.y, 1.f / scale.z, 1.f / scale.w);
  }""",
    "split": """\
  __half2 least = __float2half2_rn(LOSES_BITS);
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
      scale[c] = scale_with_room(largest), column_scales[splitter + c * SPLITTERS] = 1.f / scale[c];
    }
  }""",
    "split": """\
#pragma unroll
  for (int c = 0; c < COLUMNS; ++c) {
    __half2 least = __float2half2_rn(LOSES_BITS);
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
    }
    if (is_losing(least)) {
#pragma unroll 1
      for (int i = 0; i < 8; ++i) {
        const float4 x = shared_float4((from ^ i * 16) + c * SPLITTERS * BK * 4);
        SharedCounts& mine = of_columns[splitter + c * SPLITTERS];
        mine.add(x.x * scale[c]), mine.add(x.y * scale[c]), mine.add(x.z * scale[c]), mine.add(x.w * scale[c]);
      }
    }
  }""",
}


def splitters(form: Form) -> int:
    """How many threads split."""
    return int((_ALONG_K if form.product.b.along_k else _ALONG_N)["splitters"])


def splitter_words(form: Form) -> dict[str, str]:
    """What @words of the kernel's text stand for, as the second operand lies."""
    along_k = form.product.b.along_k
    k = "tile.k0 + step * BK" if form.pieces else "step * BK"
    words = _ALONG_K if along_k else _ALONG_N
    return {**words, "along": k, "b_place": f"{k}, tile.n0" if along_k else f"tile.n0, {k}"}


def splitter_functions(form: Form) -> str:
    """What the splitters call."""
    return _SYNC + (_STORE_FOUR if form.product.b.along_k else _STORE_PAIR)
