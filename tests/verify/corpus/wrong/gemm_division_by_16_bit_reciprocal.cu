//! op      mmab(a, b) -> c
//! need    a.ndim == 2 and b.ndim == 2 and a.shape[1] == b.shape[0] and a.dtype == f32 and b.dtype == f32
//! let     M = a.shape[0], K = a.shape[1], N = b.shape[1]
//! out     c: f32[M, N]
//! let     tn = ceil_div(N, 16), tm = ceil_div(M, 16)
//! launch  k<<<tm * tn, dim3(16, 16)>>>(a, b, c, M, N, K, tn, 65536 / max(tn, 1))

// WRONG at its own call: the reciprocal of 63 tiles a row has 16 bits. For blocks 63 k with k >= 10 the quotient is one too
// small, the column lies behind the matrix and the block leaves: 54 tiles of 4032 (13,824 elements) are never written.
__global__ void k(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int M, int N, int K, int tn, unsigned reciprocal) {
  __shared__ float as[16][17], bs[16][16];
  const int tr = (blockIdx.x * reciprocal + 150u) >> 16, tc = blockIdx.x - tr * tn;
  const int row = tr * 16 + threadIdx.y, col = tc * 16 + threadIdx.x;
  float s = 0.0f;
  for (int k0 = 0; k0 < K; k0 += 16) {
    as[threadIdx.y][threadIdx.x] = row < M && k0 + threadIdx.x < K ? a[(long long)row * K + k0 + threadIdx.x] : 0.0f;
    bs[threadIdx.y][threadIdx.x] = col < N && k0 + threadIdx.y < K ? b[(long long)(k0 + threadIdx.y) * N + col] : 0.0f;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 16; ++i) s = fmaf(as[threadIdx.y][i], bs[i][threadIdx.x], s);
    __syncthreads();
  }
  if (row < M && col < N) c[(long long)row * N + col] = s;
}
