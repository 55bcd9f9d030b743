// Copies by N elements at once, the last of them fewer, and whole ones where they begin at a multiple of N.
//! op      packed(x, y) -> a, b
//! need    device.cc >= 80 and x.dtype == f32 and y.dtype == f16 and x.ndim == 1 and y.shape == x.shape
//! out     a: f32[x.shape]
//! out     b: f16[x.shape]
//! tune    N = 4 | 1 | 2 | 8
//! launch  packed<<<ceil_div(x.numel, N * 32), 32>>>(x, y, a, b, x.numel)
#include <tilewright/vector_access.cuh>

__global__ void packed(const float* x, const __half* y, float* a, __half* b, int n) {
  const int first = (blockIdx.x * 32 + threadIdx.x) * N, left = n - first;
  if (left <= 0) return;
  if (blockIdx.x == 0 && left >= N) {
    tw::store_packed(a + first, tw::load_packed<N>(x + first));
    tw::store_packed(b + first, tw::load_packed<N>(y + first));
  } else {
    tw::store_packed(a + first, tw::load_packed<N>(x + first, left), left);
    tw::store_packed(b + first, tw::load_packed<N>(y + first, left), left);
  }
}
