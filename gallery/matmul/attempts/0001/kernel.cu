//! op      matmul(a, b) -> y
//! out     y: f16[a.shape[0], b.shape[1]]
//! let     M = a.shape[0], K = a.shape[1], N = b.shape[1]
//! need    device.cc >= 80 and a.ndim == 2 and b.ndim == 2 and a.dtype == f16 and b.dtype == f16 and b.shape[0] == K
//! tune    STAGES = 3 | 2
//! const   BM = 128, BN = 128, BK = 64
//! const   ALIGNED_K = K % 8 == 0, ALIGNED_N = N % 8 == 0      # else rows do not start on 16 bytes
//! let     smem = STAGES * (BM + BN) * BK * 2
//! need    smem <= device.smem_block
//! launch  matmul<<<dim3(ceil_div(M, BM), ceil_div(N, BN)), 128, smem>>>(a, b, y, M, N, K)
#include <cuda_fp16.h>
#include <cute/tensor.hpp>
using namespace cute;
using T = half_t;

__global__ void __launch_bounds__(128, 2) matmul(const __half* __restrict__ a, const __half* __restrict__ b, __half* __restrict__ y, int M, int N, int K) {
  extern __shared__ __align__(1024) char shared[];
  auto ma = make_tensor(make_gmem_ptr(reinterpret_cast<const T*>(a)), make_shape(M, K), make_stride((long long)K, _1{}));
  auto mb = make_tensor(make_gmem_ptr(reinterpret_cast<const T*>(b)), make_shape(K, N), make_stride((long long)N, _1{}));
  auto ga = local_tile(ma, Shape<Int<BM>, Int<BK>>{}, make_coord(blockIdx.x, _));   // (m, k, step)
  auto gb = local_tile(mb, Shape<Int<BK>, Int<BN>>{}, make_coord(_, blockIdx.y));   // (k, n, step): b stays as it lies, ldmatrix transposes
  using Atom = decltype(composition(Swizzle<3, 3, 3>{}, Layout<Shape<_8, _64>, Stride<_64, _1>>{}));
  auto layout_a = tile_to_shape(Atom{}, Shape<Int<BM>, Int<BK>, Int<STAGES>>{});
  auto layout_b = tile_to_shape(Atom{}, Shape<Int<BK>, Int<BN>, Int<STAGES>>{});
  auto layout_y = tile_to_shape(Atom{}, Shape<Int<BM>, Int<BN>>{});
  auto sa = make_tensor(make_smem_ptr(reinterpret_cast<T*>(shared)), layout_a);
  auto sb = make_tensor(make_smem_ptr(reinterpret_cast<T*>(shared) + STAGES * BM * BK), layout_b);
  auto sy = make_tensor(make_smem_ptr(reinterpret_cast<T*>(shared)), layout_y);

  using CopyAtom = Copy_Atom<SM80_CP_ASYNC_CACHEGLOBAL_ZFILL<uint128_t>, T>;
  auto copier = make_tiled_copy(CopyAtom{}, Layout<Shape<_16, _8>, Stride<_8, _1>>{}, Layout<Shape<_1, _8>>{}).get_slice(threadIdx.x);
  auto from_a = copier.partition_S(ga);
  auto from_b = copier.partition_S(gb);
  auto to_a = copier.partition_D(sa);
  auto to_b = copier.partition_D(sb);
  auto at_a = copier.partition_S(make_identity_tensor(Shape<Int<BM>, Int<BK>>{}));
  auto at_b = copier.partition_S(make_identity_tensor(Shape<Int<BK>, Int<BN>>{}));
  const int rows = M - blockIdx.x * BM, columns = N - blockIdx.y * BN, steps = (K + BK - 1) / BK;

  auto copy_step = [&](int step, int slot) {
    if (step < steps) {
      const int left = K - step * BK;
      CUTE_UNROLL
      for (int i = 0; i < size<1>(from_a); ++i) {
        const int row = get<0>(at_a(0, i, 0)), k = get<1>(at_a(0, i, 0));
        if constexpr (ALIGNED_K) {
          copy(CopyAtom{}.with(row < rows && k < left), from_a(_, i, 0, step), to_a(_, i, 0, slot));
        } else {
          const __half* from = a + (long long)(blockIdx.x * BM + row) * K + step * BK + k;
          __half* to = reinterpret_cast<__half*>(&sa(row, k, slot));
          for (int e = 0; e < 8; ++e) to[e] = row < rows && k + e < left ? from[e] : __half(0.0f);
        }
      }
      CUTE_UNROLL
      for (int i = 0; i < size<1>(from_b); ++i) {
        CUTE_UNROLL
        for (int j = 0; j < size<2>(from_b); ++j) {
          const int k = get<0>(at_b(0, i, j)), n = get<1>(at_b(0, i, j));
          if constexpr (ALIGNED_N) {
            copy(CopyAtom{}.with(k < left && n < columns), from_b(_, i, j, step), to_b(_, i, j, slot));
          } else {
            const __half* from = b + (long long)(step * BK + k) * N + blockIdx.y * BN + n;
            __half* to = reinterpret_cast<__half*>(&sb(k, n, slot));
            for (int e = 0; e < 8; ++e) to[e] = k < left && n + e < columns ? from[e] : __half(0.0f);
          }
        }
      }
    }
    cp_async_fence();
  };

  // 2 x 2 warps of m16n8k16: warp (m, n) has rows 16 m + 32 i and columns 8 n + 16 j.
  auto mma = make_tiled_mma(MMA_Atom<SM80_16x8x16_F32F16F16F32_TN>{}, Layout<Shape<_2, _2, _1>>{});
  auto ra = make_tensor<T>(Shape<_8, Int<BM / 32>, Int<BK / 16>>{});
  auto rb = make_tensor<T>(Shape<_4, Int<BN / 16>, Int<BK / 16>>{});
  auto sums = partition_fragment_C(mma, Shape<Int<BM>, Int<BN>>{});
  clear(sums);
  auto chunks_a = recast<uint128_t>(sa);   // (m, k / 8, slot)
  auto chunks_b = recast<uint128_t>(sb);   // (k, n / 8, slot)
  auto words_a = recast<uint32_t>(ra);
  auto words_b = recast<uint32_t>(rb);
  const int lane = threadIdx.x % 32, warp_m = threadIdx.x / 32 % 2, warp_n = threadIdx.x / 64;
  auto load_operands = [&](int slot, int k) {
    CUTE_UNROLL
    for (int i = 0; i < BM / 32; ++i)
      SM75_U32x4_LDSM_N::copy(chunks_a(warp_m * 16 + i * 32 + lane % 16, k * 2 + lane / 16, slot),
                              words_a(0, i, k), words_a(1, i, k), words_a(2, i, k), words_a(3, i, k));
    CUTE_UNROLL
    for (int j = 0; j < BN / 16; j += 2)
      SM75_U16x8_LDSM_T::copy(chunks_b(k * 16 + lane % 16, warp_n + (j + lane / 16) * 2, slot),
                              words_b(0, j, k), words_b(1, j, k), words_b(0, j + 1, k), words_b(1, j + 1, k));
  };

  CUTE_UNROLL
  for (int s = 0; s < STAGES - 1; ++s) copy_step(s, s);
  int slot = 0, next = STAGES - 1;
  CUTE_NO_UNROLL
  for (int step = 0; step < steps; ++step) {
    cp_async_wait<STAGES - 2>();
    __syncthreads();
    load_operands(slot, 0);
    copy_step(step + STAGES - 1, next);
    CUTE_UNROLL
    for (int k = 0; k < BK / 16; ++k) {
      if (k + 1 < BK / 16) load_operands(slot, k + 1);
      gemm(mma, ra(_, _, k), rb(_, _, k), sums);
    }
    next = slot;
    slot = slot + 1 == STAGES ? 0 : slot + 1;
  }

  cp_async_wait<0>();
  __syncthreads();   // the slots are free: the tile of y goes there, so that its stores are 16 bytes wide
  auto words_y = recast<uint32_t>(sy);
  CUTE_UNROLL
  for (int i = 0; i < BM / 32; ++i) {
    CUTE_UNROLL
    for (int j = 0; j < BN / 16; ++j) {
      CUTE_UNROLL
      for (int h = 0; h < 2; ++h) {
        const __half2 two = __floats2half2_rn(sums(h * 2, i, j), sums(h * 2 + 1, i, j));
        words_y(warp_m * 16 + i * 32 + h * 8 + lane / 4, warp_n * 4 + j * 8 + lane % 4) = *reinterpret_cast<const uint32_t*>(&two);
      }
    }
  }
  __syncthreads();
  CUTE_UNROLL
  for (int pass = 0; pass < BM * BN / 8 / 128; ++pass) {
    const int id = pass * 128 + threadIdx.x, row = id / (BN / 8), column = id % (BN / 8) * 8;
    if (row < rows && column < columns) {
      const __half* from = reinterpret_cast<const __half*>(&sy(row, column));
      __half* to = y + (long long)(blockIdx.x * BM + row) * N + blockIdx.y * BN + column;
      if constexpr (ALIGNED_N) {
        *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
      } else {
        for (int e = 0; e < 8; ++e)
          if (column + e < columns) to[e] = from[e];
      }
    }
  }
}
