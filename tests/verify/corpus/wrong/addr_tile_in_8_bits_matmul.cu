//! op      matmul(a, b) -> y
//! let     m = a.shape[0], k = a.shape[1], n = b.shape[1]
//! let     across = ceil_div(n, 32), tiles = ceil_div(m, 32) * across
//! out     y: f32[m, n]
//! launch  run<<<tiles, dim3(32, 32)>>>(a, b, y, m, n, k, across, tiles)
__global__ void run(const float* a, const float* b, float* y, int m, int n, int k, int across, int tiles) {
  {
    const int packed = (blockIdx.x / across) << 6 | (blockIdx.x % across);
    const int row = (packed >> 6) * 32 + threadIdx.y, col = (packed & 63) * 32 + threadIdx.x;
    float sum = 0.f;
    if (row < m && col < n) {
      for (int i = 0; i < k; ++i) sum += a[(size_t)row * k + i] * b[(size_t)i * n + col];
      y[(size_t)row * n + col] = sum;
    }
  }
}
