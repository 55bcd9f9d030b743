// c = epilogue(a b + bias), tensor cores of any GPU since Ampere: cp.async in two stages, ldmatrix, mma.sync.
//! op      gemm(a, b, bias, residual) -> c
//! need    device.cc >= 80 and a.ndim == 2 and b.ndim == 2 and a.shape[1] == b.shape[0] and a.dtype in [bf16, f16]
//! let     M = a.shape[0], K = a.shape[1], N = b.shape[1]
//! need    b.dtype == a.dtype and bias.dtype == f32 and bias.shape == [N] and residual.dtype == a.dtype and residual.shape == [M, N]
//! out     c: f32[M, N]
//! const   T = a.dtype, IS_BF16 = a.dtype == bf16, A_WIDTH = 8 if K % 8 == 0 else 2, B_WIDTH = 8 if N % 8 == 0 else 2
//! need    K % 2 == 0 and N % 2 == 0
//! launch  gemm<<<min(3, ceil_div(M, 32) * ceil_div(N, 64)), 64>>>(a, b, bias, residual, c, M, N, K)
#include <tilewright/cp_async.cuh>
#include <tilewright/epilogue.cuh>
#include <tilewright/matrix_fragments.cuh>
#include <tilewright/mma.cuh>
#include <tilewright/shared_memory.cuh>
#include <tilewright/tile_scheduler.cuh>

__global__ void __launch_bounds__(64) gemm(const T* a, const T* b, const float* bias, const T* residual, float* c, int M, int N, int K) {
  __shared__ __align__(128) char slots[2][32 * 32 * 2 + 32 * 64 * 2];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, steps = (K + 31) / 32;
  using Act = tw::Chain<tw::AddBias<float>, tw::Chain<tw::Activation<tw::silu>, tw::AddMatrix<T>>>;
  const Act epilogue = {{bias}, {{}, {residual, N, 2.f}}};
  for (tw::StaticScheduler<2> tile((M + 31) / 32, (N + 63) / 64, 1); tile.next();) {
    const int m0 = tile.m * 32, n0 = tile.n * 64;
    float sums[8][4] = {};
    auto copy = [&](int step) {
      const uint32_t slot = tw::shared_address(slots[step % 2]);
      if (step < steps) {
        tw::cp_async_tile<32, 32, 64, A_WIDTH>(slot, a, K, m0, step * 32, M, K);
        tw::cp_async_tile<32, 64, 64, B_WIDTH>(slot + 32 * 32 * 2, b, N, step * 32, n0, K, N);
      }
      tw::cp_async_commit();
    };
    __syncthreads();
    copy(0);
    for (int step = 0; step < steps; ++step) {
      __syncthreads();
      copy(step + 1);
      tw::cp_async_wait<1>();
      __syncthreads();
      const uint32_t a_tile = tw::shared_address(slots[step % 2]), b_tile = a_tile + 32 * 32 * 2;
      for (int k = 0; k < 2; ++k) {
        uint32_t a_part[4], b_part[4], b_pair[2];
        tw::ldmatrix_x4(a_part, a_tile + tw::swizzled_chunk<4>(warp * 16 + lane % 16, k * 2 + lane / 16));
        for (int j = 0; j < 3; ++j) {
          tw::ldmatrix_x4_trans(b_part, b_tile + tw::swizzled_chunk<8>(k * 16 + lane % 16, j * 2 + lane / 16));
          for (int h = 0; h < 2; ++h) {
            if constexpr (IS_BF16) tw::mma_bf16(sums[j * 2 + h], a_part, b_part[h * 2], b_part[h * 2 + 1]);
            else tw::mma_f16(sums[j * 2 + h], a_part, b_part[h * 2], b_part[h * 2 + 1]);
          }
        }
        uint32_t low[2], high[2];  // the same fragments by the narrower loads
        tw::ldmatrix_x2(low, a_tile + tw::swizzled_chunk<4>(warp * 16 + lane % 16, k * 2));
        tw::ldmatrix_x2(high, a_tile + tw::swizzled_chunk<4>(warp * 16 + lane % 16, k * 2 + 1));
        const uint32_t again[4] = {low[0], low[1], high[0], high[1]};
        for (int j = 6; j < 8; ++j) {
          tw::ldmatrix_x2_trans(b_pair, b_tile + tw::swizzled_chunk<8>(k * 16 + lane % 16, j));
          if constexpr (IS_BF16) tw::mma_bf16(sums[j], again, b_pair[0], b_pair[1]);
          else tw::mma_f16(sums[j], again, b_pair[0], b_pair[1]);
        }
      }
    }
    for (int j = 0; j < 8; ++j)
      for (int i = 0; i < 4; ++i) {
        const int row = m0 + warp * 16 + lane / 4 + i / 2 * 8, column = n0 + j * 8 + lane % 4 * 2 + i % 2;
        if (row < M && column < N) c[(long long)row * N + column] = epilogue(sums[j][i], row, column);
      }
  }
}
