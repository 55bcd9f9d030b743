// Each thread waits for its own copies, and then reads another thread's: a barrier must lie between.

//! op      reverse_blocks(x) -> y
//! out     y: f32[x.shape]
//! need    x.dtype == f32 and x.numel % 128 == 0 and device.cc >= 80
//! launch  reverse_blocks<<<x.numel / 128, 128>>>(x, y)

__global__ void reverse_blocks(const float* x, float* y) {
  __shared__ float tile[128];
  const int start = blockIdx.x * 128;
  const unsigned to = __cvta_generic_to_shared(&tile[threadIdx.x]);
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(x + start + threadIdx.x) : "memory");  // BUG
  asm volatile("cp.async.wait_all;" ::: "memory");
  // mend: __syncthreads();
  y[start + threadIdx.x] = tile[127 - threadIdx.x];  // BUG
}
