//! op      mmasync(a, b) -> c
//! need    a.ndim == 2 and b.ndim == 2 and a.shape[1] == b.shape[0] and a.dtype == f32 and b.dtype == f32
//! let     M = a.shape[0], K = a.shape[1], N = b.shape[1]
//! out     c: f32[M, N]
//! launch  k<<<dim3(ceil_div(N, 32), ceil_div(M, 32)), dim3(32, 8)>>>(a, b, c, M, N, K)

// HONEST: two buffers filled by cp.async of four bytes, the next step's while this one is used; what lies outside is filled with zeros.
__device__ __forceinline__ void copy(float* to, const float* from, bool inside) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from), "r"(inside ? 4 : 0) : "memory");
}
__global__ void k(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int M, int N, int K) {
  __shared__ float as[2][32][33], bs[2][32][32];
  const int row0 = blockIdx.y * 32, col = blockIdx.x * 32 + threadIdx.x;
  auto fetch = [&](int step) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int r = threadIdx.y + j * 8, ka = step * 32 + threadIdx.x, kb = step * 32 + r;
      const bool in_a = row0 + r < M && ka < K, in_b = col < N && kb < K;
      copy(&as[step & 1][r][threadIdx.x], in_a ? a + (long long)(row0 + r) * K + ka : a, in_a);
      copy(&bs[step & 1][r][threadIdx.x], in_b ? b + (long long)kb * N + col : b, in_b);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  const int steps = (K + 31) / 32;
  float s[4] = {};
  if (steps) fetch(0);
  for (int step = 0; step < steps; ++step) {
    if (step + 1 < steps) {
      fetch(step + 1);
      asm volatile("cp.async.wait_group 1;" ::: "memory");
    } else {
      asm volatile("cp.async.wait_group 0;" ::: "memory");
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 32; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) s[j] = fmaf(as[step & 1][threadIdx.y + j * 8][i], bs[step & 1][i][threadIdx.x], s[j]);
    __syncthreads();
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int row = row0 + threadIdx.y + j * 8;
    if (row < M && col < N) c[(long long)row * N + col] = s[j];
  }
}
