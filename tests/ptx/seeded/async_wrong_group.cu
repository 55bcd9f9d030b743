// A pipeline of two stages that always leaves one group pending, also in the last step, when it is the one needed.

//! op      sum_of_tiles(x) -> y
//! out     y: f32[128]
//! need    x.dtype == f32 and x.ndim == 2 and x.shape[1] == 128 and device.cc >= 80
//! launch  sum_of_tiles<<<1, 128>>>(x, y, x.shape[0])

__device__ void copy_row(float* to, const float* from) {
  const unsigned at = __cvta_generic_to_shared(to);
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(from) : "memory");  // OTHER SIDE
  asm volatile("cp.async.commit_group;" ::: "memory");
}

__global__ void sum_of_tiles(const float* x, float* y, int rows) {
  __shared__ float tile[2][128];
  float sum = 0.0f;
  copy_row(&tile[0][threadIdx.x], x + threadIdx.x);
#pragma unroll 1
  for (int row = 0; row < rows; ++row) {
    if (row + 1 < rows) copy_row(&tile[(row + 1) % 2][threadIdx.x], x + (row + 1) * 128 + threadIdx.x);
    // mend: else asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    sum += tile[row % 2][threadIdx.x];  // BUG
  }
  y[threadIdx.x] = sum;
}
