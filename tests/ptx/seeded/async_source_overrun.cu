// The last copy of 16 bytes reaches past the end of the tensor; the bytes too many are never looked at.

//! op      copy(x) -> y
//! out     y: f32[x.shape]
//! need    x.dtype == f32 and x.numel <= 512 and device.cc >= 80
//! let     n = x.numel
//! launch  copy<<<1, 128>>>(x, y, n)

__global__ void copy(const float* x, float* y, int n) {
  __shared__ __align__(16) float tile[512];
  const int first = 4 * threadIdx.x;
  const unsigned to = __cvta_generic_to_shared(tile + first);
  if (first < n) {
    const int bytes = 16;  // mend: const int bytes = 4 * min(4, n - first);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(x + first), "r"(bytes) : "memory");  // BUG
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
  for (int i = first; i < min(first + 4, n); ++i) y[i] = tile[i];
}
