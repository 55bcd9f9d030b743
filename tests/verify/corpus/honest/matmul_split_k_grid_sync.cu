//! op      matmul(a, b) -> y
//! let     M = a.shape[0], K = a.shape[1], N = b.shape[1], tiles = ceil_div(M, 16) * ceil_div(N, 16), across = ceil_div(N, 16)
//! out     y: f32[M, N]
//! scratch part: f32[2, M, N]
//! launch  run<<<min(2 * tiles, 4 * device.sms), dim3(16, 16)>>>(a, b, part, y, M, N, K, tiles, across) cooperative
#include <cooperative_groups.h>
__global__ void __launch_bounds__(256, 4) run(const float* a, const float* b, float* part, float* y, int M, int N, int K, int tiles, int across) {
  long long size = (long long)M * N;
  int middle = (K + 1) / 2;
  for (int job = blockIdx.x; job < 2 * tiles; job += gridDim.x) {
    int half = job / tiles, tile = job % tiles, row = tile / across * 16 + threadIdx.y, column = tile % across * 16 + threadIdx.x;
    if (row >= M || column >= N) continue;
    float sum = 0.f;
    for (int k = half ? middle : 0; k < (half ? K : middle); ++k) sum += a[(long long)row * K + k] * b[(long long)k * N + column];
    part[half * size + (long long)row * N + column] = sum;
  }
  cooperative_groups::this_grid().sync();
  for (long long i = (blockIdx.x * 16ll + threadIdx.y) * 16 + threadIdx.x; i < size; i += gridDim.x * 256ll) y[i] = part[i] + part[size + i];
}
