//! op      decode_attention(q, k, v) -> y
//! let     B = q.shape[0], H = q.shape[1], D = q.shape[2], G = k.shape[1], S = k.shape[2]
//! out     y: f16[q.shape]
//! need    D == 128
//! launch  run<<<dim3(H, B), 128>>>(q, k, v, y, H, G, S, 1.0 / sqrt(D))
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
__global__ void run(const __half* q, const __half* k, const __half* v, __half* y, int H, int G, int S, float scale) {
  long long at = ((long long)blockIdx.y * H + blockIdx.x) * 128 + threadIdx.x, from = ((long long)blockIdx.y * G + blockIdx.x % G) * S * 128 + threadIdx.x;
  float mine = float(q[at]), top = -INFINITY, sum = 0.f, acc = 0.f;
  for (int s = 0; s < S; ++s) {
    float dot = block_sum(mine * float(k[from + s * 128ll])) * scale, now = fmaxf(top, dot), keep = __expf(top - now), p = __expf(dot - now);
    sum = sum * keep + p; acc = acc * keep + p * float(v[from + s * 128ll]); top = now;
  }
  y[at] = __float2half(acc / sum);
}
