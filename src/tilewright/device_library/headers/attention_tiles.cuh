// Attention on a warp's 16 rows in registers: a step of online softmax, and products of its terms with a tile of values.
#pragma once
#include <tilewright/mma_tiles.cuh>
#include <tilewright/vector_access.cuh>

namespace tw {

// 2^x to two units in the last place; what is below 2^-126 is 0.
// cost: one instruction
// arch: sm_80
__device__ __forceinline__ float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Makes scores, N blocks of 8 keys as mma leaves them, terms of the softmax about the largest score of each row so far, of
// which a lane has two (rows lane / 4 and lane / 4 + 8). `factor` is what sums made before are to be multiplied by; `total`
// is the lane's share of the row's.
// cost: an exponential per score, four shuffles
// arch: sm_80
template <int N>
__device__ __forceinline__ void softmax_rows(float (&scores)[N][4], float (&largest)[2], float (&total)[2], float (&factor)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float most = largest[half];
#pragma unroll
    for (int j = 0; j < N; ++j) most = fmaxf(most, fmaxf(scores[j][half * 2], scores[j][half * 2 + 1]));
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
    const float base = most == -INFINITY ? 0.f : most * 1.4426950408889634f;
    factor[half] = power_of_two(fmaf(largest[half], 1.4426950408889634f, -base));
    largest[half] = most, total[half] *= factor[half];
#pragma unroll
    for (int j = 0; j < N; ++j)
#pragma unroll
      for (int r = half * 2; r < half * 2 + 2; ++r) {
        scores[j][r] = power_of_two(fmaf(scores[j][r], 1.4426950408889634f, -base));
        total[half] += scores[j][r];
      }
  }
}

// The sum of four lanes' shares of a row.
// cost: two shuffles
// arch: sm_80
__device__ __forceinline__ float sum_of_quad(float value) {
  value += __shfl_xor_sync(0xffffffffu, value, 1);
  return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

// sums += terms * values: 16 rows of terms in registers, rounded to 16 bits, by a tile of values. IS_TURNED: keys go down
// the tile's lines.
// cost: one mma per block of 8 columns and 16 keys; half an ldmatrix
// arch: sm_80
template <bool IS_BF16, typename Tile, bool IS_TURNED, int KEYS, int N>
__device__ __forceinline__ void multiply_terms(float (&sums)[N][4], const float (&terms)[KEYS][4], const unsigned char* values) {
  static_assert(N % 2 == 0 && KEYS % 2 == 0, "columns and keys are taken 16 at a time");
#pragma unroll
  for (int k = 0; k < KEYS; k += 2) {
    uint32_t a[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const float low = terms[k + r / 2][r % 2 * 2], high = terms[k + r / 2][r % 2 * 2 + 1];
      a[r] = IS_BF16 ? pack_bf16(low, high) : pack_f16(low, high);
    }
#pragma unroll
    for (int j = 0; j < N; j += 2) {
      uint32_t b[4];
      load_block<Tile, IS_TURNED, true>(b, values, j * 8, k * 8);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if constexpr (IS_BF16) mma_bf16(sums[j + half], a, b[half * 2], b[half * 2 + 1]);
        else mma_f16(sums[j + half], a, b[half * 2], b[half * 2 + 1]);
      }
    }
  }
}

}  // namespace tw
