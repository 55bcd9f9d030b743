//! op      gelu_sigmoid_gate_l2norm(x, eps: float = 1e-12) -> y
//! out     y: bf16[x.shape[0], 1024]
//! let     rows = x.shape[0]
//! need    x.dtype == bf16 and x.ndim == 2 and x.shape[1] == 2048
//! tune    WARPS = 1 | 2 | 4          # that share a row
//! tune    BLOCK_WARPS = 4 | 8
//! const   HELD = 4 / WARPS           # 16-byte vectors of each half in a thread
//! launch  gate_norm<<<ceil_div(rows, BLOCK_WARPS / WARPS), BLOCK_WARPS * 32>>>(x, y, rows, eps)

constexpr int HALF = 128;              // vectors of half a row
constexpr int THREADS = WARPS * 32;    // of a row
constexpr int ROWS = BLOCK_WARPS / WARPS;

__device__ __forceinline__ float exp2_fast(float v) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
  return r;
}

__device__ __forceinline__ float reciprocal(float v) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
  return r;
}

__device__ __forceinline__ unsigned pack(float low, float high) {
  unsigned r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

// tanh-GELU is a * sigmoid(2u), so both sigmoids share one reciprocal and keep their relative accuracy in the tails.
__device__ __forceinline__ float gate(float a, float b) {
  const float e = exp2_fast(a * fmaf(a * a, -0.10294324f, -2.3022082f)) + 1.0f;
  const float s = exp2_fast(b * -1.44269504f) + 1.0f;
  return a * reciprocal(e * s);   // both are at least 1: no infinity times zero
}

__device__ __forceinline__ float low(unsigned v) { return __uint_as_float(v << 16); }
__device__ __forceinline__ float high(unsigned v) { return __uint_as_float(v & 0xffff0000u); }

__global__ void __launch_bounds__(BLOCK_WARPS * 32) gate_norm(const uint4* __restrict__ x, uint4* __restrict__ y,
    long long rows, float eps) {
  const int thread = threadIdx.x % THREADS;
  const long long row = blockIdx.x * (long long)ROWS + threadIdx.x / THREADS;
  const bool live = row < rows;        // uniform in a warp; all warps reach the barrier
  const uint4* from = x + row * (2 * HALF) + thread;
  uint4* to = y + row * HALF + thread;

  uint4 first[HELD], second[HELD];
#pragma unroll
  for (int k = 0; k < HELD; ++k) {
    first[k] = second[k] = make_uint4(0, 0, 0, 0);
    if (live) {
      first[k] = from[k * THREADS];
      second[k] = from[k * THREADS + HALF];
    }
  }
  float gated[HELD][8];
  float sum = 0.0f;
#pragma unroll
  for (int k = 0; k < HELD; ++k) {
    const unsigned a[4] = {first[k].x, first[k].y, first[k].z, first[k].w};
    const unsigned b[4] = {second[k].x, second[k].y, second[k].z, second[k].w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float g0 = gate(low(a[i]), low(b[i])), g1 = gate(high(a[i]), high(b[i]));
      gated[k][2 * i] = g0;
      gated[k][2 * i + 1] = g1;
      sum = fmaf(g0, g0, sum);
      sum = fmaf(g1, g1, sum);
    }
  }
#pragma unroll
  for (int offset = 16; offset; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
  if constexpr (WARPS > 1) {
    __shared__ float partial[BLOCK_WARPS];
    const int warp = threadIdx.x / 32;
    if (threadIdx.x % 32 == 0) partial[warp] = sum;
    __syncthreads();
    sum = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) sum += partial[warp / WARPS * WARPS + w];
  }
  const float length = sqrtf(sum);
  const float factor = 1.0f / (length < eps ? eps : length);   // a NaN stays
  if (!live) return;
#pragma unroll
  for (int k = 0; k < HELD; ++k) {
    const float* g = gated[k];
    to[k * THREADS] = make_uint4(pack(g[0] * factor, g[1] * factor), pack(g[2] * factor, g[3] * factor),
                                 pack(g[4] * factor, g[5] * factor), pack(g[6] * factor, g[7] * factor));
  }
}
