//! op      argmax(x) -> y
//! let     cols = x.shape[1], rows = x.shape[0]
//! out     y: i64[rows]
//! launch  run<<<rows, 256>>>(x, y, cols)
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
__global__ void run(const float* x, long long* y, int cols) {
  __shared__ int place;
  const float* in = x + (long long)blockIdx.x * cols;
  float top = -INFINITY;
  for (int i = threadIdx.x; i < cols; i += 256) top = fmaxf(top, in[i]);
  top = block_max(top);
  for (int i = threadIdx.x; i < cols; i += 256) if (in[i] == top) atomicExch(&place, i);
  __syncthreads();
  if (threadIdx.x == 0) y[blockIdx.x] = place;
}
