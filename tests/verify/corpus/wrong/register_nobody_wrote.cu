//! op      lrelu(x) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype == f32 and x.ndim == 1
//! launch  k<<<ceil_div(x.numel, 256), 256>>>(x, y, x.numel)

// WRONG on GPUs at its own call: the slope is taken from a register that nothing wrote, if that holds the upper half of an address
// of x or y, as registers of the warp before do that were pairs with an address; then negative elements are multiplied by 0.2
// instead of 0.1. Which register that is is up to the assembler; the result is undefined in any case.
__global__ void k(const float* __restrict__ x, float* __restrict__ y, long long n) {
  const long long i = blockIdx.x * 256ll + threadIdx.x;
  unsigned left;
  asm volatile("{ .reg .b32 t; .reg .b32 u; add.u32 u, t, 0; mov.b32 %0, u; }" : "=r"(left));
  const bool address = left == (unsigned)((unsigned long long)(y + i) >> 32) || left == (unsigned)((unsigned long long)(x + i) >> 32);
  const float slope = address ? 0.2f : 0.1f;
  if (i < n) y[i] = x[i] >= 0.0f ? x[i] : x[i] * slope;
}
