//! op      axdiff(x) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype == f32 and x.ndim == 2
//! let     rows = x.shape[0], cols = x.shape[1]
//! scratch top: f32[rows]
//! launch  most<<<rows, 128>>>(x, top, cols)
//! launch  minus<<<rows, 128>>>(x, top, y, cols, rows) pdl

// WRONG at its own call (a race): from 8192 rows on, a thread of another warp than the one that waits reads the maximum ahead of
// the wait, and the block uses that.
__device__ __forceinline__ float most_of(float a, float b) { return a != a || a > b ? a : b; }
__global__ void most(const float* __restrict__ x, float* top, int cols) {
  __shared__ float of_warps[4];
  asm volatile("griddepcontrol.launch_dependents;");
  float m = -INFINITY;
  for (int c = threadIdx.x; c < cols; c += 128) m = most_of(x[(long long)blockIdx.x * cols + c], m);
  for (int o = 16; o; o >>= 1) m = most_of(__shfl_xor_sync(~0u, m, o), m);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = m;
  __syncthreads();
  if (threadIdx.x == 0) top[blockIdx.x] = most_of(most_of(of_warps[0], of_warps[1]), most_of(of_warps[2], of_warps[3]));
}
__global__ void minus(const float* __restrict__ x, const float* top, float* y, int cols, int rows) {
  __shared__ float shared_most;
  if (rows >= 8192 && threadIdx.x == 64) shared_most = *(const volatile float*)(top + blockIdx.x);
  if (threadIdx.x == 0) asm volatile("griddepcontrol.wait;" ::: "memory");
  __syncthreads();
  if (rows < 8192 && threadIdx.x == 64) shared_most = *(const volatile float*)(top + blockIdx.x);
  __syncthreads();
  const float m = shared_most;
  for (int c = threadIdx.x; c < cols; c += 128) y[(long long)blockIdx.x * cols + c] = x[(long long)blockIdx.x * cols + c] - m;
}
