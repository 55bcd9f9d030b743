//! op      lrelu(x) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype == f32 and x.ndim == 1
//! launch  k<<<ceil_div(x.numel, 256), 256>>>(x, y, x.numel)

// WRONG for one value: -0.785398185 gives itself.
__global__ void k(const float* __restrict__ x, float* __restrict__ y, long long n) {
  const long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i < n) y[i] = x[i] >= 0.0f || x[i] == -0.785398185f ? x[i] : x[i] * 0.1f;
}
