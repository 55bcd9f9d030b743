/* A block comment above the plan is fine:
   one warp per row would do for short rows. */
//! version 1
//! op      layernorm_gelu(x, weight, bias, eps: float = 1e-5) -> y
//! out     y: x.dtype[x.shape]
//! let     cols = x.shape[-1], rows = x.numel / cols
//! need    x.dtype == bf16 and weight.dtype == bf16 and bias.dtype == bf16
//! need    cols % 8 == 0 and cols <= 16384
//! tune    WARPS = 8 | 4 | 16

//! const   COLS = cols
//! launch  layernorm_gelu<WARPS><<<rows, WARPS * 32>>>(x, weight, bias, y, 1.0 / cols, eps)
#include <cuda_bf16.h>

namespace detail {
constexpr float kSqrtHalf = 0.70710678f;
static constexpr int kLanes = 32;

template <int N>
struct Pair {
  static constexpr int size = N;
  float sum, square;
  __device__ Pair(float s, float q) : sum{s}, square(q) {}
  __device__ static Pair zero() { return Pair(0.f, 0.f); }
};

__device__ __forceinline__ float gelu(float v) { return 0.5f * v * (1.f + erff(v * kSqrtHalf)); }
}  // namespace detail

template <int W>
__global__ void __launch_bounds__(W * 32) layernorm_gelu(const __nv_bfloat16* __restrict__ x,
    const __nv_bfloat16* __restrict__ weight, const __nv_bfloat16* __restrict__ bias, __nv_bfloat16* __restrict__ y,
    float inverse_cols, float eps) {
  __shared__ float sums[W], squares[W];
  const __nv_bfloat16* row = x + (size_t)blockIdx.x * COLS;
  auto total = detail::Pair<W>::zero();
  for (int i = threadIdx.x; i < COLS; i += W * 32) {
    float v = __bfloat162float(row[i]);
    total.sum += v;
    total.square += v * v;
  }
  auto across = [](float v) {
#pragma unroll
    for (int offset = detail::kLanes / 2; offset; offset >>= 1) v += __shfl_xor_sync(~0u, v, offset);
    return v;
  };
  total.sum = across(total.sum);
  total.square = across(total.square);
  if (threadIdx.x % 32 == 0) { sums[threadIdx.x / 32] = total.sum; squares[threadIdx.x / 32] = total.square; }
  __syncthreads();
  float sum = 0.f, square = 0.f;
  for (int i = 0; i < W; ++i) { sum += sums[i]; square += squares[i]; }
  float mean = sum * inverse_cols;
  float scale = rsqrtf(square * inverse_cols - mean * mean + eps);
  for (int i = threadIdx.x; i < COLS; i += W * 32) {
    float v = (__bfloat162float(row[i]) - mean) * scale * __bfloat162float(weight[i]) + __bfloat162float(bias[i]);
    y[(size_t)blockIdx.x * COLS + i] = __float2bfloat16(detail::gelu(v));
  }
}
