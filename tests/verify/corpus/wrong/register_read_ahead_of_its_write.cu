//! op      lrelu(x) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype == f32 and x.ndim == 1
//! launch  k<<<ceil_div(x.numel, 256), 256>>>(x, y, x.numel)

// WRONG on GPUs: what decides the slope is read from a register that is written only behind that.
__global__ void k(const float* __restrict__ x, float* __restrict__ y, long long n) {
  const long long i = blockIdx.x * 256ll + threadIdx.x;
  unsigned left;
  asm volatile("{ .reg .b32 t; xor.b32 %0, t, 21; mov.b32 t, 7; add.u32 t, t, 1; }" : "=r"(left));
  const float slope = left == 0x40001234u ? 0.2f : 0.1f;
  if (i < n) y[i] = x[i] >= 0.0f ? x[i] : x[i] * slope;
}
