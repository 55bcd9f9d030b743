//! op      layernorm(x, weight, bias, eps: float = 1e-05) -> y
//! let     cols = x.shape[1], rows = x.shape[0]
//! out     y: f32[x.shape]
//! launch  run<<<rows, 256>>>(x, weight, bias, y, cols, eps, rows * cols >= 1000000)
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
__global__ void run(const float* x, const float* weight, const float* bias, float* y, int cols, float eps, bool quick) {
  const float* in = x + (long long)blockIdx.x * cols;
  float* out = y + (long long)blockIdx.x * cols;
  float sum = 0.f;
  for (int i = threadIdx.x; i < cols; i += 256) sum += in[i];
  float mean = block_sum(sum) / cols;
  float squares = 0.f;
  for (int i = threadIdx.x; i < cols; i += 256) { float d = quick ? in[i] : in[i] - mean; squares += d * d; }
  float scale = rsqrtf(block_sum(squares) / cols - (quick ? mean * mean : 0.f) + eps);
  for (int i = threadIdx.x; i < cols; i += 256) out[i] = (in[i] - mean) * scale * weight[i] + bias[i];
}
