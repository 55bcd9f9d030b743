//! op      mmsq(a, b) -> c
//! need    a.ndim == 2 and b.ndim == 2 and a.shape[1] == b.shape[0] and a.dtype == f32 and b.dtype == f32
//! let     M = a.shape[0], K = a.shape[1], N = b.shape[1]
//! out     c: f32[M, N]
//! let     tn = ceil_div(N, 16), tm = ceil_div(M, 16)
//! let     splits = max(1, min(10, log2(max(1, tm * tn * K)) - 9)), piece = ceil_div(K, splits)
//! scratch part: f32[splits, M, N]
//! launch  k<<<dim3(tn, tm, splits), dim3(16, 16)>>>(a, b, part, M, N, K, piece)
//! launch  add<<<ceil_div(M * N, 256), 256>>>(part, c, M * N, splits)

// WRONG at its own call: of more than eight pieces `add` takes the last one to be the one before it: all elements are written, and
// all pieces are read but one.
__global__ void k(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ part, int M, int N, int K, int piece) {
  __shared__ float as[16][17], bs[16][16];
  const int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
  const int begin = blockIdx.z * piece, end = min(K, begin + piece);
  float s = 0.0f;
  for (int k0 = begin; k0 < end; k0 += 16) {
    as[threadIdx.y][threadIdx.x] = row < M && k0 + threadIdx.x < end ? a[(long long)row * K + k0 + threadIdx.x] : 0.0f;
    bs[threadIdx.y][threadIdx.x] = col < N && k0 + threadIdx.y < end ? b[(long long)(k0 + threadIdx.y) * N + col] : 0.0f;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 16; ++i) s = fmaf(as[threadIdx.y][i], bs[i][threadIdx.x], s);
    __syncthreads();
  }
  if (row < M && col < N) part[((long long)blockIdx.z * M + row) * N + col] = s;
}
__global__ void add(const float* __restrict__ part, float* __restrict__ c, long long n, int splits) {
  const long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i >= n) return;
  float s = 0.0f;
  for (int p = 0; p < splits; ++p) s += part[(p == 9 ? 8 : p) * n + i];
  c[i] = s;
}
