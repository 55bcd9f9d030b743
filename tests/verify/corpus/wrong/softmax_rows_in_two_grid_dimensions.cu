//! op      smax64(x) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype == f32 and x.ndim == 2
//! let     rows = x.shape[0], cols = x.shape[1]
//! launch  k<<<dim3(min(rows, 65535), ceil_div(rows, 65535)), 32>>>(x, y, rows, cols)

// WRONG at its own call: rows are split over the grid by 65,535 and joined by 65,536; rows 65,535 and 131,071 of 150,000
// are never written.
__global__ void k(const float* __restrict__ x, float* __restrict__ y, int rows, int cols) {
  const int row = (blockIdx.y << 16) + blockIdx.x;
  if (row >= rows) return;
  const float* in = x + (long long)row * cols;
  float* out = y + (long long)row * cols;
  float top = -INFINITY;
  for (int i = threadIdx.x; i < cols; i += 32) top = fmaxf(top, in[i]);
  for (int o = 16; o; o >>= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, o));
  float sum = 0.0f;
  for (int i = threadIdx.x; i < cols; i += 32) sum += expf(in[i] - top);
  for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
  const float scale = 1.0f / sum;
  for (int i = threadIdx.x; i < cols; i += 32) out[i] = expf(in[i] - top) * scale;
}
