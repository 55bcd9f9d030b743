//! op      matmul(a, b) -> y
//! let     M = a.shape[0], K = a.shape[1], N = b.shape[1]
//! out     y: f16[M, N] zeroed
//! launch  run<<<dim3(ceil_div(N, 16), ceil_div(M, 16), 32), dim3(16, 16)>>>(a, b, y, M, N, K)
__global__ void run(const __half* a, const __half* b, __half* y, int M, int N, int K) {
  int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
  if (row >= M || column >= N) return;
  float sum = 0.f;
  for (int k = blockIdx.z; k < K; k += 32) sum += float(a[(size_t)row * K + k]) * float(b[(size_t)k * N + column]);
  atomicAdd(&y[(size_t)row * N + column], __float2half(sum));
}
