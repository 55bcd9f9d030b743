//! op      cubed_sums(x) -> y
//! let     rows = x.shape[0], cols = x.shape[1]
//! out     y: f16[x.shape]
//! launch  run<<<ceil_div(rows, 64), 64>>>(x, y, rows, cols)
#include <cuda_fp16.h>
__global__ void run(const __half* x, __half* y, int rows, int cols) {
  int row = blockIdx.x * 64 + threadIdx.x;
  if (row >= rows) return;
  float sum = 0.f;
  for (int i = 0; i < cols; ++i) {
    sum += float(x[(long long)row * cols + i]);
    y[(long long)row * cols + i] = __half(fminf(fmaxf(sum * sum * sum, -60000.f), 60000.f));
  }
}
