//! op      total(x) -> y
//! let     n = x.numel, blocks = max(1, min(ceil_div(n, 1024), 8 * device.sms)), share = ceil_div(n, blocks)
//! out     y: f32[]
//! scratch part: f32[blocks]
//! launch  run<<<blocks, 256>>>(x, part, n, min(share, 15872))
//! launch  last<<<1, 256>>>(part, y, blocks)
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
__global__ void run(const float* x, float* part, long long n, long long share) {
  float sum = 0.f;
  for (long long i = blockIdx.x * share + threadIdx.x, last = min(n, (blockIdx.x + 1) * share); i < last; i += 256) sum += x[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) part[blockIdx.x] = sum;
}
__global__ void last(const float* part, float* y, int blocks) {
  float sum = 0.f;
  for (int i = threadIdx.x; i < blocks; i += 256) sum += part[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *y = sum;
}
