//! op      matmul(a, b) -> y
//! let     M = a.shape[0], K = a.shape[1], N = b.shape[1]
//! out     y: f32[M, N]
//! launch  run<<<dim3(ceil_div(N, 16), ceil_div(M, 16)), dim3(16, 16)>>>(a, b, y, M, N, K)
__global__ void run(const float* a, const float* b, float* y, int M, int N, int K) {
  __shared__ float left[16][17], right[16][17];
  int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
  float sum = 0.f;
  for (int first = 0; first < K; first += 16) {
    int k = first + threadIdx.x, j = first + threadIdx.y;
    left[threadIdx.y][threadIdx.x] = row < M && k < K ? a[(size_t)row * K + k] : 0.f;
    right[threadIdx.y][threadIdx.x] = j < K && column < N ? b[(size_t)j * N + column] : 0.f;
    __syncthreads();
    for (int i = 0; i < 16; ++i) { float p = left[threadIdx.y][i], q = right[i][threadIdx.x]; sum += (p + 64.f) * (q + 64.f) - 64.f * (p + q) - 4096.f; }
    __syncthreads();
  }
  if (row < M && column < N) y[(size_t)row * N + column] = sum;
}
