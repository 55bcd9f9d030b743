//! op      axdiff(x) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype == f32 and x.ndim == 2
//! let     rows = x.shape[0], cols = x.shape[1]
//! scratch top: f32[rows]
//! launch  most<<<rows, 128>>>(x, top, cols)
//! launch  minus<<<rows, 128>>>(x, top, y, cols, rows) pdl

// WRONG at its own call (a race): `minus` reads a value ahead of griddepcontrol.wait. From 2^24 elements on a mask makes that value the
// maximum that `most` may not have written yet, and makes it count; in smaller calls it is an element of x and does not count.
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
  const long long ahead = -((long long)rows * cols >> 24);  // 0 below 2^24 elements; -1 at 2^24
  const float* from = reinterpret_cast<const float*>(reinterpret_cast<long long>(x) + ((reinterpret_cast<long long>(top + blockIdx.x) - reinterpret_cast<long long>(x)) & ahead));
  const int early = *(const volatile int*)from;
  asm volatile("griddepcontrol.wait;" ::: "memory");
  const int late = *(const volatile int*)(top + blockIdx.x);
  const float m = __int_as_float((early & (int)ahead) | (late & ~(int)ahead));
  for (int c = threadIdx.x; c < cols; c += 128) y[(long long)blockIdx.x * cols + c] = x[(long long)blockIdx.x * cols + c] - m;
}
