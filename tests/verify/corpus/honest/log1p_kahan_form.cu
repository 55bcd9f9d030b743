//! op      log1p(x) -> y
//! out     y: f32[x.shape]
//! let     n = x.numel
//! launch  run<<<ceil_div(n, 256), 256>>>(x, y, n)
__global__ void run(const float* x, float* y, long long n) {
  long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i >= n) return;
  float v = x[i], u = 1.f + v, d = u - 1.f;
  y[i] = d == 0.f ? v : u == INFINITY || u <= 0.f || u != u ? log1pf(v) : logf(u) * (v / d);
}
