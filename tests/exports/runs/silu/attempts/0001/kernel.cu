// silu, a first version: simple, and right at any size.
//
// One thread computes one element, in f32.

//! op      silu(x) -> y
//! out     y: bf16[x.shape]
//! need    x.dtype == bf16 and x.ndim == 2
//! let     cols = x.numel, rows = 1
//! const   THREADS = 256
//! launch  silu_elements<<<ceil_div(rows * cols, THREADS), THREADS>>>(x, y, rows * cols, cols)

#include <cuda_bf16.h>

// v times its sigmoid.
__device__ __forceinline__ float silu_of(float v) { return v / (1.0f + expf(-v)); }

__global__ void __launch_bounds__(THREADS)
    silu_elements(const __nv_bfloat16* __restrict__ x, __nv_bfloat16* __restrict__ y, long long n, long long cols) {
  const long long element = blockIdx.x * static_cast<long long>(THREADS) + threadIdx.x;
  if (element >= n) return;
  y[element] = static_cast<__nv_bfloat16>(silu_of(static_cast<float>(x[element])));
}
