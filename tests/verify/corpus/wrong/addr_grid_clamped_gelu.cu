//! op      gelu(x) -> y
//! out     y: f32[x.shape]
//! let     n = x.numel
//! launch  run<<<min(ceil_div(n, 256), 65535), 256>>>(x, y, n)
__global__ void run(const float* x, float* y, int n) {
  int i = blockIdx.x * 256 + threadIdx.x;
  if (i >= n) return;
  float v = x[i];
  y[i] = 0.5f * v * (1.f + erff(v * 0.70710678f));
}
