//! op      rmsnorm(x, weight, eps: float = 1e-06) -> y
//! let     rows = x.shape[0], cols = x.shape[1]
//! out     y: f16[x.shape]
//! const   PAIRS = cols % 2 == 0
//! launch  run<<<rows, 128>>>(x, weight, y, cols, eps)
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
__global__ void run(const __half* x, const __half* weight, __half* y, int cols, float eps) {
  long long base = (long long)blockIdx.x * cols;
  float squares = 0.f;
  if constexpr (PAIRS) {
    for (int i = threadIdx.x; i < cols / 2; i += 128) { float2 v = __half22float2(((const __half2*)(x + base))[i]); squares += v.x * v.x + v.y * v.y; }
  } else {
    for (int i = threadIdx.x; i < cols; i += 128) squares += float(x[base + i]) * float(x[base + i]);
  }
  float scale = rsqrtf(block_sum(squares) / cols + eps);
  for (int i = threadIdx.x; i < cols; i += 128) y[base + i] = __float2half(float(x[base + i]) * scale * float(weight[i]));
}
