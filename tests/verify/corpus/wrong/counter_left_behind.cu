//! op      total(x) -> y
//! let     n = x.numel, blocks = max(1, min(ceil_div(n, 64), 1024))
//! out     y: f32[]
//! scratch part: f32[blocks]
//! scratch tick: i32[1] counter
//! launch  run<<<blocks, 64>>>(x, part, tick, y, n)
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
__global__ void run(const float* x, volatile float* part, unsigned* tick, float* y, long long n) {
  __shared__ bool last;
  float sum = 0.f;
  for (long long i = blockIdx.x * 64ll + threadIdx.x; i < n; i += gridDim.x * 64ll) sum += x[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) {
    part[blockIdx.x] = sum;
    __threadfence();
    last = atomicAdd(tick, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last) return;
  sum = 0.f;
  for (int i = threadIdx.x; i < gridDim.x; i += 64) sum += part[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *y = sum;
}
