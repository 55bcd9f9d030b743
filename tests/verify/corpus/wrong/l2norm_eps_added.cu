//! op      l2norm(x, eps: float = 1e-12) -> y
//! let     rows = x.shape[0], cols = x.shape[1]
//! out     y: f32[x.shape]
//! launch  run<<<rows, 128>>>(x, y, cols, eps)
__device__ __forceinline__ float block_sum(float v) {
  __shared__ float part[32];
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
  __syncthreads();
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
  __syncthreads();
  v = threadIdx.x % 32 < blockDim.x / 32 ? part[threadIdx.x % 32] : 0.f;
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
  return v;
}
__global__ void run(const float* x, float* y, int cols, float eps) {
  long long base = (long long)blockIdx.x * cols;
  float sum = 0.f;
  for (int i = threadIdx.x; i < cols; i += 128) sum += x[base + i] * x[base + i];
  float scale = 1.f / (sqrtf(block_sum(sum)) + eps);
  for (int i = threadIdx.x; i < cols; i += 128) y[base + i] = x[base + i] * scale;
}
