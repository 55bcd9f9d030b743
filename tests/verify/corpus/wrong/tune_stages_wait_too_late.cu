//! op      matmul(a, b) -> y
//! let     M = a.shape[0], K = a.shape[1], N = b.shape[1]
//! out     y: f32[M, N]
//! tune    STAGES = 2 | 3
//! launch  run<<<dim3(ceil_div(N, 16), ceil_div(M, 16)), dim3(16, 16)>>>(a, b, y, M, N, K)
#include <cuda_pipeline.h>
__global__ void run(const float* a, const float* b, float* y, int M, int N, int K) {
  __shared__ float left[STAGES][16][17], right[STAGES][16][17];
  int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x, steps = (K + 15) / 16;
  auto load = [&](int step) {
    int k = step * 16 + threadIdx.x, j = step * 16 + threadIdx.y, stage = step % STAGES;
    bool of_a = row < M && k < K, of_b = j < K && column < N;
    __pipeline_memcpy_async(&left[stage][threadIdx.y][threadIdx.x], of_a ? a + (size_t)row * K + k : a, 4, of_a ? 0 : 4);
    __pipeline_memcpy_async(&right[stage][threadIdx.y][threadIdx.x], of_b ? b + (size_t)j * N + column : b, 4, of_b ? 0 : 4);
    __pipeline_commit();
  };
  load(0);
  float sum = 0.f;
  for (int step = 0; step < steps; ++step) {
    if (step + 1 < steps) load(step + 1); else __pipeline_commit();
    __pipeline_wait_prior(STAGES - 1);
    __syncthreads();
    for (int i = 0; i < 16; ++i) sum += left[step % STAGES][threadIdx.y][i] * right[step % STAGES][i][threadIdx.x];
    __syncthreads();
  }
  if (row < M && column < N) y[(size_t)row * N + column] = sum;
}
