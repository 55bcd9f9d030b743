// c = a b by one warpgroup and a producer warp: TMA, a ring, wgmma with both operands in shared memory, stmatrix, TMA stores.
//! op      gemm(a, b) -> c
//! need    device.cc == 90 and a.ndim == 2 and b.ndim == 2 and a.shape[1] == b.shape[0] and a.dtype in [bf16, f16] and b.dtype == a.dtype
//! let     M = a.shape[0], K = a.shape[1], N = b.shape[1]
//! need    K % 8 == 0 and N % 8 == 0
//! out     c: a.dtype[M, N]
//! tune    BN = 64 | 32 | 128 | 192 | 256
//! const   IS_BF16 = a.dtype == bf16, STAGES = 2
//! map     a_map = tiled(a, box=[64, 64], swizzle=128)
//! map     b_map = tiled(b, box=[64, 64], swizzle=128)
//! map     c_map = tiled(c, box=[64, 32])
//! let     slot = 8192 + 8192 * ceil_div(BN, 64)
//! launch  gemm<<<dim3(ceil_div(N, BN), ceil_div(M, 64)), 256, STAGES * slot + 4096 + STAGES * 16>>>(a_map, b_map, c_map, K)
#include <tilewright/matrix_fragments.cuh>
#include <tilewright/mbarrier.cuh>
#include <tilewright/registers.cuh>
#include <tilewright/shared_memory.cuh>
#include <tilewright/tma.cuh>
#include <tilewright/vector_access.cuh>
#include <tilewright/wgmma.cuh>

__global__ void __launch_bounds__(256, 1) gemm(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b, const __grid_constant__ CUtensorMap c, int K) {
  extern __shared__ __align__(1024) char shared[];
  constexpr int BOXES = (BN + 63) / 64, SLOT = 8192 + 8192 * BOXES;
  const uint32_t slots = tw::shared_address(shared), out = slots + STAGES * SLOT;
  const bool is_producer = threadIdx.x >= 128;
  const int m0 = blockIdx.y * 64, n0 = blockIdx.x * BN, steps = (K + 63) / 64;
  tw::Ring<STAGES> ring(out + 4096, is_producer);
  if (threadIdx.x == 0) ring.init(1, 1);
  __syncthreads();
  if (is_producer) {
    tw::register_decrease<40>();
    if (threadIdx.x == 128)
      for (int step = 0; step < steps; ++step, ring.advance()) {
        const uint32_t slot = slots + ring.slot * SLOT;
        ring.wait_empty();
        ring.expect(SLOT);
        tw::tma_load_2d(&a, ring.full(), slot, step * 64, m0);
        for (int i = 0; i < BOXES; ++i) tw::tma_load_2d(&b, ring.full(), slot + 8192 + i * 8192, n0 + i * 64, step * 64);
      }
  } else {
    tw::register_increase<216>();
    float sums[BN / 2];
    for (int step = 0; step < steps; ++step, ring.advance()) {
      const uint32_t slot = slots + ring.slot * SLOT;
      const uint64_t a_slot = tw::wgmma_descriptor_k(slot), b_slot = tw::wgmma_descriptor_mn(slot + 8192, 8192);
      ring.wait_full();
      tw::wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if constexpr (IS_BF16) tw::wgmma_bf16<0, 1>(sums, a_slot + k * 2, b_slot + k * 128, step + k > 0);
        else tw::wgmma_f16<0, 1>(sums, a_slot + k * 2, b_slot + k * 128, step + k > 0);
      }
      tw::wgmma_commit();
      tw::wgmma_wait<0>();
      if (threadIdx.x == 0) ring.release();
    }
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane % 16;
#pragma unroll
    for (int q = 0; q < BN / 32; ++q) {
      if (threadIdx.x == 0) tw::bulk_wait_read<0>();
      tw::named_barrier_sync(1, 128);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float* v = sums + q * 16 + j * 8;
        uint32_t r[4];
        for (int i = 0; i < 4; ++i) r[i] = IS_BF16 ? tw::pack_bf16(v[2 * i], v[2 * i + 1]) : tw::pack_f16(v[2 * i], v[2 * i + 1]);
        tw::stmatrix_x4(out + row * 64 + j * 32 + lane / 16 * 16, r[0], r[1], r[2], r[3]);
      }
      tw::fence_proxy_async();
      tw::named_barrier_sync(1, 128);
      if (threadIdx.x == 0) tw::tma_store_2d(&c, out, n0 + q * 32, m0), tw::bulk_commit();
    }
    if (threadIdx.x == 0) tw::bulk_wait<0>();
  }
}
