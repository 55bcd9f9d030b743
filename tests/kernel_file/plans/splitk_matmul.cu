//! op      matmul(a, b) -> c
//! need    a.ndim == 2 and b.ndim == 2 and a.shape[1] == b.shape[0]
//! let     M = a.shape[0], K = a.shape[1], N = b.shape[1]
//! out     c: f32[M, N]
//! need    a.dtype == f32 and b.dtype == f32 and K % 4 == 0 and N % 4 == 0
//! tune    TILE = 16 | 32
//! tune    SPLITS = 4 | 1 | 2 | 8
//! need    K / SPLITS >= 64
//! scratch partial: f32[SPLITS, M, N]
//! launch  part<TILE><<<dim3(ceil_div(N, TILE), ceil_div(M, TILE), SPLITS), dim3(TILE, TILE)>>>(
//!             a, b, partial, M, N, K,
//!             round_up(ceil_div(K, SPLITS), 4))
//! launch  add<<<ceil_div(M * N / 4, 256), 256>>>(partial, c, M * N / 4)

template <int T>
__global__ void part(const float* a, const float* b, float* partial, int M, int N, int K, int k_per_split) {
  int row = blockIdx.y * T + threadIdx.y, column = blockIdx.x * T + threadIdx.x;
  int first = blockIdx.z * k_per_split, last = min(K, first + k_per_split);
  if (row >= M || column >= N) return;
  float sum = 0.f;
  for (int k = first; k < last; ++k) sum += a[(size_t)row * K + k] * b[(size_t)k * N + column];
  partial[((size_t)blockIdx.z * M + row) * N + column] = sum;
}

__global__ void add(const float4* partial, float4* c, long long quads) {
  long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i >= quads) return;
  float4 sum = partial[i];
#pragma unroll
  for (int split = 1; split < SPLITS; ++split) {
    float4 more = partial[split * quads + i];
    sum.x += more.x; sum.y += more.y; sum.z += more.z; sum.w += more.w;
  }
  c[i] = sum;
}
