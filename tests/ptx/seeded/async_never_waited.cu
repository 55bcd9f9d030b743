// A pipeline that goes on copying after the last tile and ends without waiting. Nobody reads what arrives too late.

//! op      sum_of_tiles(x) -> y
//! out     y: f32[128]
//! need    x.dtype == f32 and x.ndim == 2 and x.shape[0] > 0 and x.shape[1] == 128 and device.cc >= 80
//! launch  sum_of_tiles<<<1, 128>>>(x, y, x.shape[0])

__global__ void sum_of_tiles(const float* x, float* y, int rows) {
  __shared__ float tile[2][128];
  float sum = 0.0f;
#pragma unroll 1
  for (int row = -1; row < rows; ++row) {
    const unsigned to = __cvta_generic_to_shared(&tile[(row + 1) % 2][threadIdx.x]);
    const float* from = x + min(row + 1, rows - 1) * 128 + threadIdx.x;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");  // BUG
    asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    if (row >= 0) sum += tile[row % 2][threadIdx.x];
  }
  // mend: asm volatile("cp.async.wait_all;" ::: "memory");
  y[threadIdx.x] = sum;
}
