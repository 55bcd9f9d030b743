//! op      top1(logits) -> values, indices
//! out     values: f32[logits.shape[0]]
//! out     indices: i64[logits.shape[0]]
//! let     rows = logits.shape[0], cols = logits.shape[1]
//! need    logits.ndim == 2 and logits.dtype == f32 and cols > 0 and cols < 2000000000
//! tune    WARPS = 8 | 4 | 16
//! tune    LOADS = 8 | 4 | 2
//! const   WIDTH = 4 if cols % 4 == 0 else 1     # odd rows are not 16-byte aligned
//! launch  top1<<<rows, WARPS * 32>>>(logits, values, indices, cols)

constexpr int THREADS = WARPS * 32;
struct alignas(WIDTH * 4) Vector { float at[WIDTH]; };

// Does (v, i) come before (best, at)? NaN is the largest; of equals the first.
__device__ __forceinline__ bool before(float v, int i, float best, int at) {
  if (v != v) return best == best || i < at;
  return best == best && (v > best || (v == best && i < at));
}

__device__ __forceinline__ void across_warp(float& best, int& at) {
#pragma unroll
  for (int offset = 16; offset; offset /= 2) {
    const float v = __shfl_xor_sync(~0u, best, offset);
    const int i = __shfl_xor_sync(~0u, at, offset);
    if (before(v, i, best, at)) best = v, at = i;
  }
}

__global__ void __launch_bounds__(THREADS, 1024 / THREADS) top1(const float* __restrict__ logits, float* __restrict__ values,
    long long* __restrict__ indices, int cols) {
  __shared__ float partial[WARPS];
  __shared__ int places[WARPS];
  const long long row = blockIdx.x;
  const int thread = threadIdx.x, vectors = cols / WIDTH;
  const Vector* from = reinterpret_cast<const Vector*>(logits + row * cols);

  // -inf at the thread's own first element: right for rows of -inf, and never preferred where the thread has none.
  float best[WIDTH];
  int at[WIDTH];
#pragma unroll
  for (int e = 0; e < WIDTH; ++e) best[e] = -INFINITY, at[e] = thread < vectors ? thread : 0x7fffffff;

  for (int p = thread; p < vectors; p += LOADS * THREADS) {
    Vector held[LOADS];
#pragma unroll
    for (int k = 0; k < LOADS; ++k) {
      if (p + k * THREADS < vectors) {
        held[k] = from[p + k * THREADS];
      } else {
#pragma unroll
        for (int e = 0; e < WIDTH; ++e) held[k].at[e] = -INFINITY;
      }
    }
#pragma unroll
    for (int k = 0; k < LOADS; ++k)
#pragma unroll
      for (int e = 0; e < WIDTH; ++e) {
        const float v = held[k].at[e];
        if (!(v <= best[e]) && best[e] == best[e]) best[e] = v, at[e] = p + k * THREADS;   // larger, or the first NaN
      }
  }
  float value = best[0];
  int place = thread < vectors ? at[0] * WIDTH : 0x7fffffff;
#pragma unroll
  for (int e = 1; e < WIDTH; ++e) {
    const int i = thread < vectors ? at[e] * WIDTH + e : 0x7fffffff;
    if (before(best[e], i, value, place)) value = best[e], place = i;
  }
  across_warp(value, place);
  if (thread % 32 == 0) partial[thread / 32] = value, places[thread / 32] = place;
  __syncthreads();
  if (thread < 32) {
    value = thread < WARPS ? partial[thread] : -INFINITY;
    place = thread < WARPS ? places[thread] : 0x7fffffff;
    across_warp(value, place);
    if (thread == 0) values[row] = value, indices[row] = place;
  }
}
