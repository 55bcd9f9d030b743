// Pairs of bf16: with an odd count the last pair hangs over the end.

//! op      negate(x) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype == bf16
//! let     n = x.numel
//! launch  negate<<<ceil_div(n, 256), 128>>>(x, y, n)

#include <cuda_bf16.h>

__global__ void negate(const __nv_bfloat16* x, __nv_bfloat16* y, int n) {
  const int i = 2 * (blockIdx.x * 128 + threadIdx.x);
  if (i < n) {  // mend: if (i + 1 < n) {
    const unsigned pair = *reinterpret_cast<const unsigned*>(x + i);  // BUG
    *reinterpret_cast<unsigned*>(y + i) = pair ^ 0x80008000u;  // BUG
  } else if (i < n) {
    y[i] = -x[i];
  }
}
