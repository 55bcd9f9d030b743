//! op      row_quotient(x, s) -> y
//! out     y: f32[x.shape]
//! let     rows = x.shape[0], cols = x.shape[1]
//! launch  run<<<rows, 128>>>(x, s, y, cols)
__global__ void run(const float* x, const float* s, float* y, int cols) {
  float by = s[blockIdx.x];
  for (int i = threadIdx.x; i < cols; i += 128) {
    long long at = blockIdx.x * (long long)cols + i;
    y[at] = __fdividef(x[at], by);
  }
}
