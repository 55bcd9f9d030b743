// Scans in one pass over memory: each tile adds up what the tiles before it come to while they are still at work.
#pragma once

namespace tw {

// Says what a tile comes to by itself (`is_prefix` false) or with all before it (true). Value and flag are one word, so no
// fence is needed. `words`: one i64 per tile of a scratch that is `zeroed`. One thread calls it.
// cost: one store
// arch: sm_80
template <typename T> __device__ __forceinline__ void look_back_publish(unsigned long long* words, int tile, T value, bool is_prefix) {
  static_assert(sizeof(T) == 4, "a word holds 32 bits of value");
  unsigned bits;
  memcpy(&bits, &value, 4);
  const unsigned long long word = (is_prefix ? 2ull : 1ull) << 32 | bits;
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(words + tile), "l"(word) : "memory");  // sync: the tiles behind wait for it
}

// The word of a tile as it is now: 0, or its flag and its value.
// cost: one read of L2
// arch: sm_80
__device__ __forceinline__ unsigned long long look_back_read(const unsigned long long* word) {
  unsigned long long read;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(read) : "l"(word) : "memory");
  return read;
}

// What all tiles before `tile` come to (decoupled look-back), `op` taking the earlier value first; says for the tiles
// behind what `tile` comes to. `value` is the tile's own, `identity` changes nothing. One whole
// warp calls it; tiles are taken in the order of `draw_tile`, so that those before a block's own belong to blocks that run.
// cost: a few microseconds of latency on the first tiles, then about one read of 32 words
// arch: sm_80
template <typename T, typename Op>
__device__ __forceinline__ T look_back(unsigned long long* words, int tile, T value, Op op, T identity) {
  const int lane = threadIdx.x % 32;
  if (lane == 0) look_back_publish(words, tile, value, tile == 0);
  T before = identity;
  for (int last = tile - 1; last >= 0; last -= 32) {
    const int mine = last - lane;  // lane 0 has the nearest
    unsigned long long word = 2ull << 32;
    if (mine >= 0) {
      word = look_back_read(words + mine);
      while (word >> 32 == 0) word = look_back_read(words + mine);  // sync: the tile has said something
    }
    const int whole = __ffs(__ballot_sync(0xffffffffu, word >> 32 == 2)) - 1;  // the nearest with all before it, or -1
    const unsigned bits = static_cast<unsigned>(word);
    T part = identity;
    if (mine >= 0 && (whole < 0 || lane <= whole)) memcpy(&part, &bits, 4);
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const T earlier = __shfl_down_sync(0xffffffffu, part, distance);
      if (lane + distance < 32) part = op(earlier, part);
    }
    before = op(__shfl_sync(0xffffffffu, part, 0), before);
    if (whole >= 0) break;
  }
  if (lane == 0 && tile > 0) look_back_publish(words, tile, op(before, value), true);
  return before;
}

}  // namespace tw
