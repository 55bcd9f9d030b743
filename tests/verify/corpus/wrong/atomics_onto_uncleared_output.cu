//! op      column_mean(x) -> y
//! let     rows = x.shape[0], cols = x.shape[1]
//! out     y: f32[cols]
//! launch  run<<<dim3(ceil_div(cols, 64), max(min(rows, 64), 1)), 64>>>(x, y, rows, cols)
__global__ void run(const float* x, float* y, int rows, int cols) {
  int c = blockIdx.x * 64 + threadIdx.x;
  if (c >= cols) return;
  float sum = 0.f;
  for (int r = blockIdx.y; r < rows; r += gridDim.y) sum += x[(long long)r * cols + c];
  atomicAdd(&y[c], sum / rows);
}
