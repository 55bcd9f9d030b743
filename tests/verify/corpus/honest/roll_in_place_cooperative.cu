//! op      roll1(x!)
//! need    x.dtype == f32 and x.ndim == 1 and x.numel <= device.sms * 8192
//! let     n = x.numel, blocks = max(1, min(device.sms, ceil_div(n, 8192)))
//! launch  k<<<blocks, 1024>>>(x, n) cooperative

// HONEST: in place by registers: every thread reads up to eight elements, the whole grid meets, then all are written one place on.
#include <cooperative_groups.h>
__global__ void __launch_bounds__(1024, 1) k(float* x, int n) {
  float held[8];
  const int all = gridDim.x * 1024, me = blockIdx.x * 1024 + threadIdx.x;
#pragma unroll
  for (int j = 0; j < 8; ++j)
    if (me + j * all < n) held[j] = x[me + j * all];
  cooperative_groups::this_grid().sync();
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const int i = me + j * all;
    if (i < n) x[i + 1 == n ? 0 : i + 1] = held[j];
  }
}
