//! op      masked_softmax(x, mask) -> y
//! let     rows = x.shape[0], cols = x.shape[1]
//! out     y: f32[x.shape]
//! launch  run<<<ceil_div(rows, 4), 128>>>(x, mask, y, rows, cols)
__global__ void run(const float* x, const unsigned char* mask, float* y, int rows, int cols) {
  int row = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  long long base = (long long)row * cols;
  float top = -INFINITY, sum = 0.f;
  for (int i = lane; i < cols; i += 32) {
    float v = (cols % 4 == 0 ? ((const unsigned*)mask)[(base + i) / 4] != 0 : mask[base + i]) ? x[base + i] : -1e9f, now = fmaxf(top, v);
    sum = sum * (top == now ? 1.f : __expf(top - now)) + (v == now ? 1.f : __expf(v - now));
    top = now;
  }
  for (int o = 16; o; o >>= 1) {
    float other = __shfl_xor_sync(~0u, top, o), more = __shfl_xor_sync(~0u, sum, o), now = fmaxf(top, other);
    sum = sum * (top == now ? 1.f : __expf(top - now)) + more * (other == now ? 1.f : __expf(other - now));
    top = now;
  }
  for (int i = lane; i < cols; i += 32) {
    float v = (cols % 4 == 0 ? ((const unsigned*)mask)[(base + i) / 4] != 0 : mask[base + i]) ? x[base + i] : -1e9f;
    y[base + i] = (v == top ? 1.f : __expf(v - top)) / sum;
  }
}
