//! op      log1p(x) -> y
//! out     y: f32[x.shape]
//! let     n = x.numel
//! launch  run<<<ceil_div(n, 256), 256>>>(x, y, n)
__global__ void run(const float* x, float* y, long long n) {
  long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i >= n) return;
  y[i] = logf(1.f + x[i]);
}
