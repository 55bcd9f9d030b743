// 64 x N = 64 x 16 (f32: 8) times its transpose's rows, one wgmma each: a in registers, and TF32. Operands lie as TMA puts them.
//! op      forms(a, b, f, g) -> brains, halves, singles
//! need    device.cc == 90 and a.dtype == f16 and a.shape == [64, 64] and b.dtype == f16 and b.ndim == 2 and b.shape[1] == 64
//! const   N = b.shape[0]
//! need    f.dtype == f32 and f.shape == [64, 32] and g.dtype == f32 and g.shape == [b.shape[0], 32]
//! out     brains: f32[64, b.shape[0]]
//! out     halves: f32[64, b.shape[0]]
//! out     singles: f32[64, b.shape[0]]
//! map     a_map = tiled(a, box=[64, 64], swizzle=128)
//! map     b_map = tiled(b, box=[N, 64], swizzle=128)
//! map     f_map = tiled(f, box=[64, 32], swizzle=128)
//! map     g_map = tiled(g, box=[N, 32], swizzle=128)
//! launch  forms<<<1, 128, 16384 + 256 * N + 8>>>(a_map, b_map, f_map, g_map, brains, halves, singles)
#include <tilewright/matrix_fragments.cuh>
#include <tilewright/mbarrier.cuh>
#include <tilewright/shared_memory.cuh>
#include <tilewright/tma.cuh>
#include <tilewright/vector_access.cuh>
#include <tilewright/wgmma.cuh>

template <int SUMS> __device__ __forceinline__ void f16(float (&d)[SUMS], const uint32_t (&a)[4], uint64_t b, int add) {
  if constexpr (SUMS == 16) tw::wgmma_n32_f16_rs(d, a, b, add);
  else if constexpr (SUMS == 32) tw::wgmma_n64_f16_rs(d, a, b, add);
  else if constexpr (SUMS == 64) tw::wgmma_n128_f16_rs(d, a, b, add);
  else if constexpr (SUMS == 96) tw::wgmma_n192_f16_rs(d, a, b, add);
  else if constexpr (SUMS == 128) tw::wgmma_n256_f16_rs(d, a, b, add);
}
template <int SUMS> __device__ __forceinline__ void bf16(float (&d)[SUMS], const uint32_t (&a)[4], uint64_t b, int add) {
  if constexpr (SUMS == 16) tw::wgmma_n32_bf16_rs(d, a, b, add);
  else if constexpr (SUMS == 32) tw::wgmma_n64_bf16_rs(d, a, b, add);
  else if constexpr (SUMS == 64) tw::wgmma_n128_bf16_rs(d, a, b, add);
  else if constexpr (SUMS == 96) tw::wgmma_n192_bf16_rs(d, a, b, add);
  else if constexpr (SUMS == 128) tw::wgmma_n256_bf16_rs(d, a, b, add);
}
template <int SUMS> __device__ __forceinline__ void tf32(float (&d)[SUMS], uint64_t a, uint64_t b, int add) {
  if constexpr (SUMS == 16) tw::wgmma_n32_tf32(d, a, b, add);
  else if constexpr (SUMS == 32) tw::wgmma_n64_tf32(d, a, b, add);
  else if constexpr (SUMS == 64) tw::wgmma_n128_tf32(d, a, b, add);
  else if constexpr (SUMS == 96) tw::wgmma_n192_tf32(d, a, b, add);
  else if constexpr (SUMS == 128) tw::wgmma_n256_tf32(d, a, b, add);
}

__device__ uint32_t f16_to_bf16(uint32_t pair) {
  const float2 both = __half22float2(*reinterpret_cast<__half2*>(&pair));
  return tw::pack_bf16(both.x, both.y);
}

__device__ void store_sums(float* to, const float (&sums)[N / 2]) {
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < N / 2; ++i) to[(row + i / 2 % 2 * 8) * N + i / 4 * 8 + lane % 4 * 2 + i % 2] = sums[i];
}

__global__ void __launch_bounds__(128, 1) forms(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
                                                const __grid_constant__ CUtensorMap f_map, const __grid_constant__ CUtensorMap g_map,
                                                float* brains, float* halves, float* singles) {
  extern __shared__ __align__(1024) char shared[];
  const uint32_t a = tw::shared_address(shared), f = a + 8192, b = f + 8192, g = b + N * 128, arrived = g + N * 128;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (threadIdx.x == 0) {
    tw::mbarrier_init(arrived, 1);
    tw::mbarrier_init_fence();
    tw::mbarrier_arrive_expect_tx(arrived, 2 * (8192 + N * 128));
    tw::tma_load_2d(&a_map, arrived, a, 0, 0), tw::tma_load_2d(&b_map, arrived, b, 0, 0);
    tw::tma_load_2d(&f_map, arrived, f, 0, 0), tw::tma_load_2d(&g_map, arrived, g, 0, 0);
  }
  __syncthreads();
  tw::mbarrier_wait(arrived, 0);
  float of_bf16[N / 2], of_f16[N / 2], of_tf32[N / 2];
  uint32_t half[4][4], brain[4][4];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    tw::ldmatrix_x4(half[k], a + (warp * 16 + lane % 16) * 128 + ((k * 2 + lane / 16) ^ lane % 8) * 16);
#pragma unroll
    for (int i = 0; i < 4; ++i) brain[k][i] = f16_to_bf16(half[k][i]);
  }
  tw::wgmma_fence();
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const uint64_t b_step = tw::wgmma_descriptor_k(b) + k * 2;
    const uint64_t f_step = tw::wgmma_descriptor_k(f) + k * 2, g_step = tw::wgmma_descriptor_k(g) + k * 2;
    f16(of_f16, half[k], b_step, k > 0);
    tf32(of_tf32, f_step, g_step, k > 0);
  }
  tw::wgmma_commit();
  tw::wgmma_wait<0>();
  store_sums(halves, of_f16), store_sums(singles, of_tf32);
  __syncthreads();
  for (int i = threadIdx.x; i < N * 64 / 2; i += 128) {
    uint32_t* at = reinterpret_cast<uint32_t*>(shared + 16384) + i;
    *at = f16_to_bf16(*at);
  }
  tw::fence_proxy_async();
  __syncthreads();
  tw::wgmma_fence();
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const uint64_t b_step = tw::wgmma_descriptor_k(b) + k * 2;
    bf16(of_bf16, brain[k], b_step, k > 0);
  }
  tw::wgmma_commit();
  tw::wgmma_wait<0>();
  store_sums(brains, of_bf16);
}
