//! op      permcl(x, b) -> y
//! need    x.dtype == f32 and b.dtype == f32 and x.ndim == 4 and b.ndim == 1 and x.numel > 0
//! let     B = x.shape[0], C = x.shape[1], P = x.shape[2] * x.shape[3]
//! out     y: f32[B, x.shape[2], x.shape[3], C]
//! let     tc = ceil_div(C, 32), tp = ceil_div(P, 32), blocks = B * tc * tp
//! launch  k<<<next_pow2(blocks) * 2, dim3(32, 8)>>>(x, b, y, C, P, tc, tp, blocks)

// HONEST: a grid of more than twice the blocks that are needed; even ones work, odd ones leave at once, and so do those behind the end.
__global__ void k(const float* __restrict__ x, const float* __restrict__ b, float* __restrict__ y, int C, int P, int tc, int tp, int blocks) {
  __shared__ float held[32][33];
  const int block = blockIdx.x / 2;
  if (blockIdx.x % 2 || block >= blocks) return;
  const long long image = block / (tc * tp) * (long long)C * P;
  const int c0 = block / tp % tc * 32, p0 = block % tp * 32;
  for (int j = threadIdx.y; j < 32; j += 8)
    if (c0 + j < C && p0 + threadIdx.x < P) {
      const float v = x[image + (long long)(c0 + j) * P + p0 + threadIdx.x] + b[c0 + j];
      held[j][threadIdx.x] = v < 0.0f ? 0.0f : v;
    }
  __syncthreads();
  for (int j = threadIdx.y; j < 32; j += 8)
    if (c0 + threadIdx.x < C && p0 + j < P) y[image + (long long)(p0 + j) * C + c0 + threadIdx.x] = held[threadIdx.x][j];
}
