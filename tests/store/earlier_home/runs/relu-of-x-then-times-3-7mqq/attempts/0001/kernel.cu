// relu_scale, a first version: simple, and right at any size.
//
// One thread computes one element, in f32.

//! op      relu_scale(x) -> y
//! out     y: f16[x.shape]
//! need    x.dtype == f16 and x.ndim == 2
//! let     cols = x.numel, rows = 1
//! const   THREADS = 256
//! launch  relu_scale_elements<<<ceil_div(rows * cols, THREADS), THREADS>>>(x, y, rows * cols, cols)

#include <cuda_fp16.h>

// A NaN stays one: it is not below zero.
template <typename T>
__device__ __forceinline__ T relu_of(T v) {
  return v < T(0) ? T(0) : v;
}

__global__ void __launch_bounds__(THREADS)
    relu_scale_elements(const __half* __restrict__ x, __half* __restrict__ y, long long n, long long cols) {
  const long long element = blockIdx.x * static_cast<long long>(THREADS) + threadIdx.x;
  if (element >= n) return;
  y[element] = static_cast<__half>(relu_of(static_cast<float>(x[element])) * 3.0f);
}
