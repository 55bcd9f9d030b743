//! op      doubled(x) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype == bf16 and x.numel % 8 == 0
//! launch  doubled<<<ceil_div(x.numel / 8, 256), 256>>>(x, y, x.numel / 8)
#include <cuda_bf16.h>
__global__ void doubled(const __nv_bfloat16* x, __nv_bfloat16* y, long long vectors) {
  long long i = blockIdx.x * 256LL + threadIdx.x;
  if (i >= vectors) return;
  uint4 held = reinterpret_cast<const uint4*>(x)[i];
  __nv_bfloat162* pairs = reinterpret_cast<__nv_bfloat162*>(&held);
  for (int k = 0; k < 4; ++k) pairs[k] = __hadd2(pairs[k], pairs[k]);
  reinterpret_cast<uint4*>(y)[i] = held;
}
