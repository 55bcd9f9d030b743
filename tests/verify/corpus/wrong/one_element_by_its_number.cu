//! op      lrelu(x) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype == f32 and x.ndim == 1
//! launch  k<<<ceil_div(x.numel, 256), 256>>>(x, y, x.numel)

// WRONG at its own size only: y[11111111] is 0.
__global__ void k(const float* __restrict__ x, float* __restrict__ y, long long n) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  const int alone = min(abs(i ^ 11111111), 1);
  if (i < n) y[i] = (x[i] >= 0.0f ? x[i] : x[i] * 0.1f) * (float)alone;
}
