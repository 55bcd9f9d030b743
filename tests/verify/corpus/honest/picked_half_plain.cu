//! op      picked_half(x, i) -> y
//! let     rows = x.shape[0], cols = x.shape[1], n = i.shape[0]
//! out     y: f32[rows, n]
//! launch  run<<<dim3(ceil_div(n, 64), rows), 64>>>(x, i, y, cols, n)
__global__ void run(const float* x, const long long* i, float* y, int cols, int n) {
  int c = blockIdx.x * 64 + threadIdx.x;
  if (c < n) y[blockIdx.y * (long long)n + c] = x[blockIdx.y * (long long)cols + i[c]];
}
