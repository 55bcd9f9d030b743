//! op      colsum(x) -> y
//! need    x.dtype == f32 and x.ndim == 2
//! let     rows = x.shape[0], cols = x.shape[1]
//! out     y: f32[cols] zeroed
//! launch  k<<<dim3(ceil_div(cols, 128), ceil_div(rows, 256)), 128>>>(x, y, rows, cols)

// HONEST: a cleared output and one atomic for each column and 256 rows.
__global__ void k(const float* __restrict__ x, float* y, int rows, int cols) {
  const int col = blockIdx.x * 128 + threadIdx.x, begin = blockIdx.y * 256, end = min(rows, begin + 256);
  if (col >= cols) return;
  float s = 0.0f;
  for (int r = begin; r < end; ++r) s += x[(long long)r * cols + col];
  atomicAdd(y + col, s);
}
