//! op      best_thirds(x) -> y
//! let     rows = x.shape[0], cols = x.shape[1]
//! out     y: i64[rows, 2]
//! launch  run<<<ceil_div(rows, 64), 64>>>(x, y, rows, cols)
__global__ void run(const float* x, long long* y, int rows, int cols) {
  int row = blockIdx.x * 64 + threadIdx.x;
  if (row >= rows) return;
  const float* in = x + (long long)row * cols;
  int best = -1, next = -1;
  for (int i = 0; i < cols; ++i) {
    if (best < 0 || in[i] >= in[best]) next = best, best = i;
    else if (next < 0 || in[i] >= in[next]) next = i;
  }
  y[row * 2ll] = best / 3, y[row * 2ll + 1] = next / 3;
}
