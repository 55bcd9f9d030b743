//! op      row_quotient(x, s) -> y
//! out     y: f32[x.shape]
//! let     rows = x.shape[0], cols = x.shape[1]
//! launch  run<<<rows, 128>>>(x, s, y, cols)
__global__ void run(const float* x, const float* s, float* y, int cols) {
  float by = s[blockIdx.x];
  float scale = fabsf(by) > 0x1p100f ? 0x1p-64f : fabsf(by) < 0x1p-100f ? 0x1p64f : 1.f;
  float divisor = by * scale, inverse = 1.f / divisor;
  for (int i = threadIdx.x; i < cols; i += 128) {
    long long at = blockIdx.x * (long long)cols + i;
    float v = x[at] * scale, near = v * inverse, better = fmaf(fmaf(-near, divisor, v), inverse, near);
    y[at] = better == better ? better : near;
  }
}
