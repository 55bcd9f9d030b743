//! op      top1(logits) -> values, indices
//! out     values: f32[logits.shape[0]]
//! out     indices: i64[logits.shape[0]]
//! let     rows = logits.shape[0], cols = logits.shape[1]
//! need    logits.ndim == 2 and logits.dtype == f32 and cols > 0 and cols < 2000000000
//! tune    WARPS = 8 | 4 | 16 | 32
//! tune    LOADS = 8 | 4 | 2
//! const   WIDTH = 4 if cols % 4 == 0 else 1     # odd rows are not 16-byte aligned
//! launch  top1<<<rows, WARPS * 32>>>(logits, values, indices, cols)

constexpr int THREADS = WARPS * 32;
template <int W> struct VectorOf { using type = float; };
template <> struct VectorOf<4> { using type = float4; };
using Vector = VectorOf<WIDTH>::type;

__device__ __forceinline__ float larger(float a, float b) {   // NaN if either is
  float c;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}
__device__ __forceinline__ float largest(float v) { return v; }
__device__ __forceinline__ float largest(float4 v) { return larger(larger(v.x, v.y), larger(v.z, v.w)); }
__device__ __forceinline__ bool same(float v, float best) { return v == best || (v != v && best != best); }

// Does (v, i) come before (best, at)? NaN is the largest; of equals the first.
__device__ __forceinline__ bool before(float v, int i, float best, int at) {
  return same(v, best) ? i < at : !(v <= best) && best == best;
}

__device__ __forceinline__ void across_warp(float& best, int& at) {
#pragma unroll
  for (int offset = 16; offset; offset /= 2) {
    const float v = __shfl_xor_sync(~0u, best, offset);
    const int i = __shfl_xor_sync(~0u, at, offset);
    const bool take = before(v, i, best, at);
    best = take ? v : best;
    at = take ? i : at;
  }
}

__global__ void __launch_bounds__(THREADS, 1024 / THREADS) top1(const float* __restrict__ logits, float* __restrict__ values,
    long long* __restrict__ indices, int cols) {
  __shared__ float partial[WARPS];
  __shared__ int places[WARPS];
  const long long row = blockIdx.x;
  const int thread = threadIdx.x, vectors = cols / WIDTH;
  const float* from = logits + row * cols;
  const Vector* from_vectors = reinterpret_cast<const Vector*>(from);

  // -inf at the thread's own first vector: right for rows of -inf, and never preferred where the thread has none.
  float best = -INFINITY;
  int at = thread < vectors ? thread : 0x7fffffff;
  auto offer = [&](float v, int place) {   // larger, or the first NaN; the index is that of the vector
    const bool take = !(v <= best) & (best == best);
    best = take ? v : best;
    at = take ? place : at;
  };

  int p = thread;
  for (; p + (LOADS - 1) * THREADS < vectors; p += LOADS * THREADS) {
    Vector held[LOADS];
#pragma unroll
    for (int k = 0; k < LOADS; ++k) held[k] = from_vectors[p + k * THREADS];
#pragma unroll
    for (int k = 0; k < LOADS; ++k) offer(largest(held[k]), p + k * THREADS);
  }
  if (p < vectors) {
    Vector held[LOADS];
#pragma unroll
    for (int k = 0; k < LOADS; ++k)   // beyond the end the first vector again: it changes nothing
      held[k] = from_vectors[p + k * THREADS < vectors ? p + k * THREADS : p];
#pragma unroll
    for (int k = 0; k < LOADS; ++k) offer(largest(held[k]), p + k * THREADS);
  }

  across_warp(best, at);
  if (thread % 32 == 0) partial[thread / 32] = best, places[thread / 32] = at;
  __syncthreads();
  if (thread < 32) {
    best = thread < WARPS ? partial[thread] : -INFINITY;
    at = thread < WARPS ? places[thread] : 0x7fffffff;
    across_warp(best, at);
    if (thread == 0) {
      int column = at * WIDTH;
#pragma unroll
      for (int e = 0; e + 1 < WIDTH; ++e)
        if (!same(from[column], best)) ++column;
      values[row] = from[column];
      indices[row] = column;
    }
  }
}
