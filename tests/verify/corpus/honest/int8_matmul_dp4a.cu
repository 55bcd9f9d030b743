//! op      int8_matmul(a, b) -> y
//! let     M = a.shape[0], K = a.shape[1], N = b.shape[1]
//! out     y: i32[M, N]
//! launch  run<<<dim3(ceil_div(N, 16), ceil_div(M, 16)), dim3(16, 16)>>>(a, b, y, M, N, K)
__device__ __forceinline__ int packed(int p, int q, int r, int s) { return (p & 255) | (q & 255) << 8 | (r & 255) << 16 | (s & 255) << 24; }
__global__ void run(const signed char* a, const signed char* b, int* y, int M, int N, int K) {
  int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x, sum = 0;
  if (row >= M || column >= N) return;
  for (int k = 0; k < K; k += 4) {
    int p[4], q[4];
    for (int i = 0; i < 4; ++i) {
      bool in = k + i < K;
      p[i] = in ? a[(long long)row * K + k + i] : 0;
      q[i] = in ? b[(long long)(k + i) * N + column] : 0;
    }
    sum = __dp4a(packed(p[0], p[1], p[2], p[3]), packed(q[0], q[1], q[2], q[3]), sum);
  }
  y[(long long)row * N + column] = sum;
}
