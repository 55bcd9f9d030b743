//! op      mmswz(a, b) -> c
//! need    a.ndim == 2 and b.ndim == 2 and a.shape[1] == b.shape[0] and a.dtype == f32 and b.dtype == f32
//! let     M = a.shape[0], K = a.shape[1], N = b.shape[1]
//! out     c: f32[M, N]
//! let     tn = ceil_div(N, 32), tm = ceil_div(M, 32)
//! launch  k<<<tm * tn, dim3(32, 8)>>>(a, b, c, M, N, K, tm, tn)

// HONEST: tiles are walked in groups of 8 rows of tiles, column by column; the last group has as many rows as are left (33 = 4 * 8 + 1).
__global__ void k(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int M, int N, int K, int tm, int tn) {
  __shared__ float as[32][33], bs[32][32];
  const int group = blockIdx.x / (8 * tn), in_group = blockIdx.x % (8 * tn), rows = min(8, tm - group * 8);
  const int row0 = (group * 8 + in_group % rows) * 32, col = in_group / rows * 32 + threadIdx.x;
  float s[4] = {};
  for (int k0 = 0; k0 < K; k0 += 32) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int r = threadIdx.y + j * 8;
      as[r][threadIdx.x] = row0 + r < M && k0 + threadIdx.x < K ? a[(long long)(row0 + r) * K + k0 + threadIdx.x] : 0.0f;
      bs[r][threadIdx.x] = col < N && k0 + r < K ? b[(long long)(k0 + r) * N + col] : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 32; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) s[j] = fmaf(as[threadIdx.y + j * 8][i], bs[i][threadIdx.x], s[j]);
    __syncthreads();
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int row = row0 + threadIdx.y + j * 8;
    if (row < M && col < N) c[(long long)row * N + col] = s[j];
  }
}
