// An assertion that does not hold for every input.

//! op      root(x) -> y
//! out     y: f32[x.shape]
//! need    x.dtype == f32
//! let     n = x.numel
//! launch  root<<<ceil_div(n, 128), 128>>>(x, y, n)

#include <cuda/std/cassert>

__global__ void root(const float* x, float* y, int n) {
  const int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= n) return;
  assert(x[i] > 0.0f);  // BUG mend: assert(x[i] >= 0.0f);
  y[i] = sqrtf(x[i]);
}
