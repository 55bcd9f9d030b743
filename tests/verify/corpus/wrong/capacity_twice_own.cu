//! op      row_max(x) -> y
//! let     rows = x.shape[0], cols = x.shape[1]
//! out     y: f32[rows]
//! launch  run<<<rows, 1024>>>(x, y, cols)
__device__ __forceinline__ float block_max(float v) {
  __shared__ float top[32];
  for (int o = 16; o; o >>= 1) v = fmaxf(v, __shfl_xor_sync(~0u, v, o));
  __syncthreads();
  if (threadIdx.x % 32 == 0) top[threadIdx.x / 32] = v;
  __syncthreads();
  v = threadIdx.x % 32 < blockDim.x / 32 ? top[threadIdx.x % 32] : -INFINITY;
  for (int o = 16; o; o >>= 1) v = fmaxf(v, __shfl_xor_sync(~0u, v, o));
  return v;
}
__global__ void run(const float* x, float* y, int cols) {
  const float* in = x + (long long)blockIdx.x * cols;
  float top = -INFINITY;
#pragma unroll
  for (int k = 0; k < 16; ++k) { int i = k * 1024 + threadIdx.x; if (i < cols) top = top != top || in[i] != in[i] ? NAN : fmaxf(top, in[i]); }
  bool bad = __syncthreads_or(top != top);
  top = block_max(top);
  if (threadIdx.x == 0) y[blockIdx.x] = bad ? NAN : top;
}
