// Copies of 16 bytes from the middle of a row whose length is no multiple of 16 bytes.

//! op      first_of_rows(x) -> y
//! out     y: f32[x.shape[0], 4]
//! need    x.dtype == f32 and x.ndim == 2 and x.shape[0] == 32 and x.shape[1] >= 4 and device.cc >= 80
//! launch  first_of_rows<<<1, 32>>>(x, y, x.shape[1])

__global__ void first_of_rows(const float* x, float* y, int cols) {
  __shared__ __align__(16) float tile[32][4];
  const unsigned to = __cvta_generic_to_shared(tile[threadIdx.x]);
  const float* from = x + threadIdx.x * cols;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");  // BUG mend: for (int i = 0; i < 4; ++i) tile[threadIdx.x][i] = from[i];
  asm volatile("cp.async.wait_all;" ::: "memory");
  for (int i = 0; i < 4; ++i) y[threadIdx.x * 4 + i] = tile[threadIdx.x][i];
}
