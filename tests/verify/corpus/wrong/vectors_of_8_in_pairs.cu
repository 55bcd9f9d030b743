//! op      rmsnorm(x, weight, eps: float = 1e-06) -> y
//! let     cols = x.shape[1], rows = x.shape[0]
//! out     y: bf16[x.shape]
//! const   WIDE = cols % 8 == 0
//! launch  run<<<rows, 128>>>(x, weight, y, cols, eps)
using bf16 = __nv_bfloat16;
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
struct __align__(16) Eight { bf16 at[8]; };
__global__ void run(const bf16* x, const bf16* weight, bf16* y, int cols, float eps) {
  const bf16* in = x + (long long)blockIdx.x * cols;
  bf16* out = y + (long long)blockIdx.x * cols;
  float squares = 0.f;
  if constexpr (WIDE) {
    for (int i = threadIdx.x; i < cols / 16; i += 128) {
      Eight p = ((const Eight*)in)[2 * i], q = ((const Eight*)in)[2 * i + 1];
      for (int k = 0; k < 8; ++k) squares += float(p.at[k]) * float(p.at[k]) + float(q.at[k]) * float(q.at[k]);
    }
  } else for (int i = threadIdx.x; i < cols; i += 128) squares += float(in[i]) * float(in[i]);
  float scale = rsqrtf(block_sum(squares) / cols + eps);
  for (int i = threadIdx.x; i < cols; i += 128) out[i] = __float2bfloat16(float(in[i]) * scale * float(weight[i]));
}
