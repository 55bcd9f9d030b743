//! op      add_rmsnorm(x, residual, weight, eps: float = 1e-06) -> y0, y1
//! out     y0: x.dtype[x.shape]
//! out     y1: x.dtype[x.shape]
//! let     cols = x.shape[-1], rows = prod(x.shape[:-1])
//! need    x.dtype == bf16 and residual.dtype == bf16 and weight.dtype == bf16
//! need    residual.shape == x.shape and weight.shape == [cols] and cols > 0
//! tune    WARPS = 4 | 8 | 16 | 2                                  # that share a row
//! const   WIDTH = 8 if cols % 8 == 0 else 1                       # odd rows are not 16-byte aligned
//! const   HELD = next_pow2(min(ceil_div(cols, WARPS * 32 * WIDTH), 64 / WIDTH if WARPS == 2 else 32 / WIDTH))
//! launch  add_rmsnorm<<<rows, WARPS * 32>>>(x, residual, weight, y0, y1, cols, 1.0 / cols, eps)

#include <cuda_bf16.h>

constexpr int THREADS = WARPS * 32;
constexpr int BLOCKS = WIDTH == 1 || WARPS == 2 ? 1 : 1024 / THREADS;   // resident per SM, keeps the loads together
struct alignas(WIDTH * 2) Vector { __nv_bfloat16 at[WIDTH]; };

__device__ __forceinline__ float row_sum(float v, float* partial) {
#pragma unroll
  for (int offset = 16; offset; offset /= 2) v += __shfl_xor_sync(~0u, v, offset);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
  __syncthreads();
  v = 0.0f;
#pragma unroll
  for (int w = 0; w < WARPS; ++w) v += partial[w];
  return v;
}

__device__ __forceinline__ Vector add(const Vector& a, const Vector& b, float& squares) {
  Vector sum;
#pragma unroll
  for (int i = 0; i < WIDTH; ++i) {
    sum.at[i] = __float2bfloat16(__bfloat162float(a.at[i]) + __bfloat162float(b.at[i]));
    const float wide = __bfloat162float(sum.at[i]);
    squares = fmaf(wide, wide, squares);
  }
  return sum;
}

__device__ __forceinline__ Vector scaled(const Vector& v, const Vector& w, float factor) {
  Vector out;
#pragma unroll
  for (int i = 0; i < WIDTH; ++i)
    out.at[i] = __float2bfloat16(__bfloat162float(v.at[i]) * factor * __bfloat162float(w.at[i]));
  return out;
}

__global__ void __launch_bounds__(THREADS, BLOCKS) add_rmsnorm(const __nv_bfloat16* __restrict__ x,
    const __nv_bfloat16* __restrict__ residual, const __nv_bfloat16* __restrict__ weight,
    __nv_bfloat16* __restrict__ y0, __nv_bfloat16* __restrict__ y1, int cols, float inverse_cols, float eps) {
  __shared__ float partial[WARPS];
  const long long start = blockIdx.x * (long long)cols;
  const int thread = threadIdx.x, vectors = cols / WIDTH;
  const auto* from = reinterpret_cast<const Vector*>(x + start);
  const auto* more = reinterpret_cast<const Vector*>(residual + start);
  const auto* scale = reinterpret_cast<const Vector*>(weight);
  auto* added = reinterpret_cast<Vector*>(y0 + start);
  auto* normed = reinterpret_cast<Vector*>(y1 + start);

  Vector held[HELD], other[HELD];
#pragma unroll
  for (int k = 0; k < HELD; ++k)
    if (k * THREADS + thread < vectors) {
      held[k] = from[k * THREADS + thread];
      other[k] = more[k * THREADS + thread];
    }
  float squares = 0.0f;
#pragma unroll
  for (int k = 0; k < HELD; ++k)
    if (k * THREADS + thread < vectors) {
      held[k] = add(held[k], other[k], squares);
      added[k * THREADS + thread] = held[k];
    }
  for (int p = HELD * THREADS + thread; p < vectors; p += THREADS)   // only rows too long for registers
    added[p] = add(from[p], more[p], squares);
#pragma unroll
  for (int k = 0; k < HELD; ++k)   // the weights arrive while the sum is reduced
    if (k * THREADS + thread < vectors) other[k] = scale[k * THREADS + thread];
  const float factor = rsqrtf(row_sum(squares, partial) * inverse_cols + eps);

#pragma unroll
  for (int k = 0; k < HELD; ++k)
    if (k * THREADS + thread < vectors) normed[k * THREADS + thread] = scaled(held[k], other[k], factor);
  for (int p = HELD * THREADS + thread; p < vectors; p += THREADS)   // the same thread wrote added[p]
    normed[p] = scaled(added[p], scale[p], factor);
}
