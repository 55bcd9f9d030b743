//! op      signedsq(x) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype == f32 and x.ndim == 1
//! let     n = x.numel
//! launch  k<<<max(1, ceil_div(n, 4096)), 256>>>(x, y, n)

// WRONG at its own call: n = 2^26 + 4 is rounded to 2^26 by the conversion to float, and n % 4 = 0 leaves no tail: the last
// four of 67,108,868 elements are never written.
__global__ void k(const float* __restrict__ x, float* __restrict__ y, long long n) {
  const long long quads = (long long)((float)n * 0.25f);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const long long i = blockIdx.x * 1024ll + j * 256 + threadIdx.x;
    if (i < quads) {
      float4 v = reinterpret_cast<const float4*>(x)[i];
      v.x *= fabsf(v.x), v.y *= fabsf(v.y), v.z *= fabsf(v.z), v.w *= fabsf(v.w);
      reinterpret_cast<float4*>(y)[i] = v;
    }
  }
  if (blockIdx.x == 0 && threadIdx.x < n % 4) {
    const long long i = quads * 4 + threadIdx.x;
    y[i] = x[i] * fabsf(x[i]);
  }
}
