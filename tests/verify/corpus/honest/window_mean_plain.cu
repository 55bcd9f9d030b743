//! op      window_mean(x, window: int = 4) -> y
//! let     rows = x.shape[0], cols = x.shape[1], n = rows * cols
//! out     y: f32[x.shape]
//! launch  run<<<ceil_div(n, 256), 256>>>(x, y, n, cols, window)
__global__ void run(const float* x, float* y, long long n, int cols, int window) {
  long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i >= n) return;
  int column = i % cols, first = max(column - window + 1, 0);
  float sum = 0.f;
  for (int c = first; c <= column; ++c) sum += x[i - column + c];
  y[i] = sum / window;
}
