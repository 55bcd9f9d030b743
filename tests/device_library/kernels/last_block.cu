// The reversed input, put out by the last block from what all threads of all blocks have written to a scratch.
//! op      reversed(x) -> y
//! need    device.cc >= 80 and x.dtype == f32 and x.ndim == 1
//! let     blocks = ceil_div(x.numel, 64)
//! out     y: f32[x.shape]
//! scratch held: f32[x.shape]
//! scratch counter: i32[1] counter
//! launch  reversed<<<blocks, 64>>>(x, y, held, counter, x.numel)
#include <tilewright/reduce.cuh>

__global__ void reversed(const float* x, float* y, float* held, unsigned* counter, int n) {
  const int i = blockIdx.x * 64 + threadIdx.x;
  if (i < n) held[n - 1 - i] = x[i];
  if (!tw::is_last_block(counter, gridDim.x)) return;
  for (int i = threadIdx.x; i < n; i += 64) y[i] = held[i];
}
