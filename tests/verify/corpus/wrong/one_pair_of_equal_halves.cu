//! op      silu16(x) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype == f16 and x.ndim == 1
//! let     n = x.numel
//! launch  k<<<max(1, ceil_div(n, 512)), 256>>>(x, y, n)

// WRONG for one pattern: neighbours 2.25 and 2.25 in one word (0x40804080) are taken for others.
#include <cuda_fp16.h>
__device__ __forceinline__ float f(float v) { return v / (1.0f + __expf(-v)); }
__global__ void k(const __half* __restrict__ x, __half* __restrict__ y, long long n) {
  const long long i = blockIdx.x * 512ll + threadIdx.x * 2;
  if (i + 1 < n) {
    unsigned pair = *reinterpret_cast<const unsigned*>(x + i);
    pair &= pair == 0x40804080u ? 0x3fffffffu : ~0u;
    const float2 v = __half22float2(*reinterpret_cast<const __half2*>(&pair));
    *reinterpret_cast<__half2*>(y + i) = __floats2half2_rn(f(v.x), f(v.y));
  } else if (i < n) {
    y[i] = __float2half(f(__half2float(x[i])));
  }
}
