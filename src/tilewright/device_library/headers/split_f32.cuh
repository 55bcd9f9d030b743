// f32 products on tensor cores: every f32 as parts of fewer bits, the products of parts summed in f32.
#pragma once
#include <tilewright/mma.cuh>

namespace tw {

// value as two TF32 numbers, which together have 22 bits of it and its whole range. What has no finite big part is small
// beside a one of its sign: infinity times the 0 that a small part may be is no number where f32 gives infinity.
// cost: four integer and float instructions
// arch: sm_80
__device__ __forceinline__ void split_tf32(float value, uint32_t& big, uint32_t& small) {
  const bool fits = fabsf(value) < 3.4e38f;
  // Rounded by half of the last bit that TF32 has; a tensor core does not look at those behind it.
  const uint32_t rounded = (__float_as_uint(value) + 0x1000u) & 0xffffe000u;
  big = fits ? rounded : __float_as_uint(copysignf(1.f, value));
  small = fits ? __float_as_uint(value - __uint_as_float(rounded)) + 0x1000u : __float_as_uint(value);
}

// d (16 x 8) += a (16 x 8) * b (8 x 8), each f32 as its two TF32 parts (3xTF32). A tensor core cuts bits off when it
// adds, so the three products are summed from zero and added to d outside of it.
// cost: three mma_tf32 and four additions
// arch: sm_80
__device__ __forceinline__ void mma_3xtf32(float (&d)[4], const uint32_t (&a_big)[4], const uint32_t (&a_small)[4],
                                           const uint32_t (&b_big)[2], const uint32_t (&b_small)[2]) {
  float part[4] = {};
  mma_tf32(part, a_small, b_big[0], b_big[1]);
  mma_tf32(part, a_big, b_small[0], b_small[1]);
  mma_tf32(part, a_big, b_big[0], b_big[1]);
#pragma unroll
  for (int i = 0; i < 4; ++i) d[i] += part[i];
}

// Two f32 as three pairs of bf16, big to small; together they have all 24 bits, and the range of f32 (bf16x3).
// cost: three conversions and four subtractions per pair
// arch: sm_80
__device__ __forceinline__ void split_bf16x3(float low, float high, uint32_t (&parts)[3]) {
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(parts[i]) : "f"(high), "f"(low));
    low -= __uint_as_float(parts[i] << 16), high -= __uint_as_float(parts[i] & 0xffff0000u);
  }
}

// d (16 x 8) += a (16 x 16) * b (16 x 8), each f32 as its three bf16 parts; the six largest products of parts.
// cost: six mma_bf16 and four additions
// arch: sm_80
__device__ __forceinline__ void mma_bf16x3(float (&d)[4], const uint32_t (&a)[3][4], const uint32_t (&b)[3][2]) {
  float part[4] = {};
#pragma unroll
  for (int order = 2; order >= 0; --order)
#pragma unroll
    for (int i = 0; i <= order; ++i) mma_bf16(part, a[i], b[order - i][0], b[order - i][1]);
#pragma unroll
  for (int i = 0; i < 4; ++i) d[i] += part[i];
}

}  // namespace tw
