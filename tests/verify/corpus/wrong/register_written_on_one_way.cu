//! op      lrelu(x) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype == f32 and x.ndim == 1
//! launch  k<<<ceil_div(x.numel, 256), 256>>>(x, y, x.numel)

// WRONG on GPUs: what decides the slope is a register that is written for a single thread only.
__global__ void k(const float* __restrict__ x, float* __restrict__ y, long long n) {
  const long long i = blockIdx.x * 256ll + threadIdx.x;
  unsigned left;
  asm volatile("{ .reg .b32 t; .reg .pred p; setp.lt.s64 p, %1, 0; @p mov.b32 t, 0; mov.b32 %0, t; }" : "=r"(left) : "l"(i));
  const float slope = left == (unsigned)((unsigned long long)(y + i) >> 32) ? 0.2f : 0.1f;
  if (i < n) y[i] = x[i] >= 0.0f ? x[i] : x[i] * slope;
}
