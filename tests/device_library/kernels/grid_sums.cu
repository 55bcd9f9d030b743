// The sum of all elements by the last block to come, twice in one call.
//! op      total(x) -> y
//! need    device.cc >= 80 and x.dtype == f32 and x.ndim == 1
//! out     y: f32[2]
//! scratch partials: f32[8]
//! scratch counter: i32[1] counter
//! launch  total<<<8, 64>>>(x, y, partials, counter, x.numel, 1.0)
//! launch  total<<<5, 64>>>(x, y, partials, counter, x.numel, 2.0)
#include <tilewright/reduce.cuh>

__global__ void total(const float* x, float* y, float* partials, unsigned* counter, long long n, float scale) {
  __shared__ float of_warp[2], of_block[2];
  float sum = 0.f;
  for (long long i = blockIdx.x * 64ll + threadIdx.x; i < n; i += gridDim.x * 64) sum += scale * x[i];
  sum = tw::team_reduce<64>(sum, tw::Sum{}, of_warp);
  if (tw::grid_reduce<64>(sum, tw::Sum{}, 0.f, of_block, partials, counter, gridDim.x) && threadIdx.x == 0) y[scale == 1.f ? 0 : 1] = sum;
}
