//! op      mmlock(a, b) -> c
//! need    a.ndim == 2 and b.ndim == 2 and a.shape[1] == b.shape[0] and a.dtype == f32 and b.dtype == f32
//! let     M = a.shape[0], K = a.shape[1], N = b.shape[1]
//! out     c: f32[M, N]
//! let     tn = ceil_div(N, 32), tm = ceil_div(M, 32), splits = max(1, min(8, K / 64)), piece = ceil_div(K, splits)
//! scratch turn: i32[tm * tn] zeroed
//! launch  k<<<tm * tn * splits, dim3(32, 8)>>>(a, b, c, turn, M, N, K, tm * tn, tn, piece, splits)

// HONEST: split-K without atomics on c: the blocks of a tile take turns by a semaphore, in the order of their pieces. Block numbers
// put piece 0 of all tiles first, so a block waits only for earlier ones.
#include <cuda/atomic>
using Flag = cuda::atomic_ref<int, cuda::thread_scope_device>;
__global__ void k(const float* __restrict__ a, const float* __restrict__ b, float* c, int* turn, int M, int N, int K, int tiles, int tn, int piece, int splits) {
  __shared__ float as[32][33], bs[32][32];
  const int part = blockIdx.x / tiles, tile = blockIdx.x % tiles;
  const int row0 = tile / tn * 32, col = tile % tn * 32 + threadIdx.x;
  const int begin = part * piece, end = min(K, begin + piece);
  float s[4] = {};
  for (int k0 = begin; k0 < end; k0 += 32) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int r = threadIdx.y + j * 8;
      as[r][threadIdx.x] = row0 + r < M && k0 + threadIdx.x < end ? a[(long long)(row0 + r) * K + k0 + threadIdx.x] : 0.0f;
      bs[r][threadIdx.x] = col < N && k0 + r < end ? b[(long long)(k0 + r) * N + col] : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 32; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) s[j] = fmaf(as[threadIdx.y + j * 8][i], bs[i][threadIdx.x], s[j]);
    __syncthreads();
  }
  if (threadIdx.x + threadIdx.y == 0)
    while (Flag(turn[tile]).load(cuda::memory_order_acquire) != part) {}
  __syncthreads();
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int row = row0 + threadIdx.y + j * 8;
    if (row < M && col < N) c[(long long)row * N + col] = part ? c[(long long)row * N + col] + s[j] : s[j];
  }
  __syncthreads();
  if (threadIdx.x + threadIdx.y == 0) Flag(turn[tile]).store(part + 1, cuda::memory_order_release);
}
