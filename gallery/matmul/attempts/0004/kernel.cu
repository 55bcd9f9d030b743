//! op      matmul(a, b) -> y
//! out     y: f16[a.shape[0], b.shape[1]]
//! let     M = a.shape[0], K = a.shape[1], N = b.shape[1]
//! need    device.cc >= 80 and a.ndim == 2 and b.ndim == 2 and a.dtype == f16 and b.dtype == f16 and b.shape[0] == K
//! tune    STAGES = 4 | 3
//! const   BM = 256, BN = 192, BK = 64
//! const   ALIGNED_K = K % 8 == 0, ALIGNED_N = N % 8 == 0      # else rows do not start on 16 bytes
//! let     smem = STAGES * (BM + BN) * BK * 2
//! need    smem <= device.smem_block
//! launch  matmul<<<dim3(ceil_div(M, BM), ceil_div(N, BN)), 256, smem>>>(a, b, y, M, N, K)
#include <cuda_fp16.h>
#include <cute/tensor.hpp>
using namespace cute;
using T = half_t;
constexpr int CHUNKS_A = BM * BK / 8, CHUNKS_B = BK * BN / 8, SLICES = BK / 16, PAIRS = BN / 32;   // chunks of 16 bytes in a slot

__global__ void __launch_bounds__(256, 1) matmul(const __half* __restrict__ a, const __half* __restrict__ b, __half* __restrict__ y, int M, int N, int K) {
  extern __shared__ __align__(1024) char shared[];
  // Tiles of 64-column atoms: 8 rows x 8 chunks, atoms first along the rows, chunk ^ row % 8 inside. b stays (k, n): ldmatrix transposes.
  uint128_t* const slots_a = reinterpret_cast<uint128_t*>(shared);
  uint128_t* const slots_b = slots_a + STAGES * CHUNKS_A;
  const int rows = M - blockIdx.x * BM, columns = N - blockIdx.y * BN, steps = (K + BK - 1) / BK;

  // One copy takes 32 rows x 8 chunks: 8 of them for a tile of a, 2 x BN / 64 for one of b.
  const int row = threadIdx.x / 8, column = threadIdx.x % 8 * 8, place = row * 8 + (threadIdx.x % 8 ^ row % 8);
  const __half* from_a = a + (long long)(blockIdx.x * BM + row) * K + column;
  const __half* from_b = b + (long long)row * N + blockIdx.y * BN + column;
  const long long stride_a = 32ll * K, stride_b = 32ll * N;
  int left = K;   // of k, for the step that is copied
  auto copy_chunk = [&](auto aligned, const __half* from, uint128_t* to, bool inside, int valid) {
    if constexpr (decltype(aligned)::value) {
      SM80_CP_ASYNC_CACHEGLOBAL_ZFILL<uint128_t>::copy(*reinterpret_cast<const uint128_t*>(from), *to, inside && valid > 0);
    } else {
      __half* at = reinterpret_cast<__half*>(to);
      for (int e = 0; e < 8; ++e) at[e] = inside && e < valid ? from[e] : __half(0.0f);
    }
  };
  auto copy_part = [&](int part, int slot) {   // a quarter of a step; beyond K it writes zeros
    CUTE_UNROLL
    for (int i = part * 2; i < part * 2 + 2; ++i) {
      copy_chunk(bool_constant<ALIGNED_K>{}, from_a, slots_a + slot * CHUNKS_A + place + i * 256, row + i * 32 < rows, left - column);
      from_a += stride_a;
    }
    CUTE_UNROLL
    for (int q = part * PAIRS / 4; q < (part + 1) * PAIRS / 4; ++q) {
      const int i = q % 2, j = q / 2;
      copy_chunk(bool_constant<ALIGNED_N>{}, from_b + i * stride_b + j * 64, slots_b + slot * CHUNKS_B + place + i * 256 + j * (BK * 8),
                 row + i * 32 < left, columns - column - j * 64);
    }
    if (part == 3) {
      from_a += BK - 8 * stride_a;
      from_b += 2 * stride_b;
      left -= BK;
      cp_async_fence();
    }
  };

  // 4 x 2 warps of m16n8k16: warp (m, n) has rows 16 m + 64 i and columns 8 n + 16 j.
  const int lane = threadIdx.x % 32, warp_m = threadIdx.x / 32 % 4, warp_n = threadIdx.x / 128;
  const int row_a = (warp_m * 16 + lane % 16) * 8, chunk_a = lane / 16 ^ lane % 8;
  const int row_b = lane % 16 * 8, chunk_b = (warp_n + lane / 16 * 2) ^ lane % 8;
  auto sums = make_tensor<float>(Shape<_4, Int<BM / 64>, Int<BN / 16>>{});
  clear(sums);
  uint32_t fa[BM / 64][4], fb[2][4];
  auto load_a = [&](int slot, int k, int i) {
    SM75_U32x4_LDSM_N::copy(slots_a[slot * CHUNKS_A + row_a + i * 512 + (chunk_a ^ k * 2)], fa[i][0], fa[i][1], fa[i][2], fa[i][3]);
  };
  auto load_b = [&](int slot, int k, int pair) {   // column chunks 2 pair and 2 pair + 1
    uint32_t(&f)[4] = fb[pair % 2];
    SM75_U16x8_LDSM_T::copy(slots_b[slot * CHUNKS_B + row_b + pair / 2 * (BK * 8) + k * 128 + (chunk_b ^ pair % 2 * 4)], f[0], f[1], f[2], f[3]);
  };
  auto multiply = [&](int i, int pair, int h) {
    const int j = pair * 2 + h;
    SM80_16x8x16_F32F16F16F32_TN::fma(sums(0, i, j), sums(1, i, j), sums(2, i, j), sums(3, i, j),
                                      fa[i][0], fa[i][1], fa[i][2], fa[i][3], fb[pair % 2][h * 2], fb[pair % 2][h * 2 + 1],
                                      sums(0, i, j), sums(1, i, j), sums(2, i, j), sums(3, i, j));
  };

  CUTE_UNROLL
  for (int s = 0; s < STAGES - 1; ++s) {
    CUTE_UNROLL
    for (int part = 0; part < 4; ++part) copy_part(part, s);
  }
  cp_async_wait<STAGES - 2>();
  __syncthreads();
  CUTE_UNROLL
  for (int i = 0; i < BM / 64; ++i) load_a(0, 0, i);
  load_b(0, 0, 0);
  int slot = 0, filled = STAGES - 1;
  CUTE_NO_UNROLL
  for (int step = 0; step < steps; ++step) {
    const int next = slot + 1 == STAGES ? 0 : slot + 1;
    CUTE_UNROLL
    for (int k = 0; k < SLICES; ++k) {
      copy_part(k, filled);
      CUTE_UNROLL
      for (int pair = 0; pair < PAIRS - 1; ++pair) {
        load_b(slot, k, pair + 1);
        CUTE_UNROLL
        for (int h = 0; h < 2; ++h) {
          CUTE_UNROLL
          for (int i = 0; i < BM / 64; ++i) multiply(i, pair, h);
        }
      }
      if (k == SLICES - 1) {   // nothing more is read from this slot, and the next one has arrived
        cp_async_wait<STAGES - 2>();
        __syncthreads();
      }
      const int slot_after = k == SLICES - 1 ? next : slot, k_after = (k + 1) % SLICES;
      load_b(slot_after, k_after, 0);
      CUTE_UNROLL
      for (int i = 0; i < BM / 64; ++i) {
        multiply(i, PAIRS - 1, 0);
        multiply(i, PAIRS - 1, 1);
        load_a(slot_after, k_after, i);
      }
    }
    filled = slot;
    slot = next;
  }

  cp_async_wait<0>();
  __syncthreads();   // the slots are free: the tile of y goes there, so that its stores are 16 bytes wide
  using Atom = decltype(composition(Swizzle<3, 3, 3>{}, Layout<Shape<_8, _64>, Stride<_64, _1>>{}));
  auto sy = make_tensor(make_smem_ptr(reinterpret_cast<T*>(shared)), tile_to_shape(Atom{}, Shape<Int<BM>, Int<BN>>{}));
  auto words_y = recast<uint32_t>(sy);
  CUTE_UNROLL
  for (int i = 0; i < BM / 64; ++i) {
    CUTE_UNROLL
    for (int j = 0; j < BN / 16; ++j) {
      CUTE_UNROLL
      for (int h = 0; h < 2; ++h) {
        const __half2 two = __floats2half2_rn(sums(h * 2, i, j), sums(h * 2 + 1, i, j));
        words_y(warp_m * 16 + i * 64 + h * 8 + lane / 4, warp_n * 4 + j * 8 + lane % 4) = *reinterpret_cast<const uint32_t*>(&two);
      }
    }
  }
  __syncthreads();
  CUTE_UNROLL
  for (int pass = 0; pass < BM * BN / 8 / 256; ++pass) {
    const int id = pass * 256 + threadIdx.x, m = id / (BN / 8), n = id % (BN / 8) * 8;
    if (m < rows && n < columns) {
      const __half* from = reinterpret_cast<const __half*>(&sy(m, n));
      __half* to = y + (long long)(blockIdx.x * BM + m) * N + blockIdx.y * BN + n;
      if constexpr (ALIGNED_N) {
        *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
      } else {
        for (int e = 0; e < 8; ++e)
          if (n + e < columns) to[e] = from[e];
      }
    }
  }
}
