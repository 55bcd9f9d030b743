//! op      top1(logits) -> values, indices
//! out     values: f32[logits.shape[0]]
//! out     indices: i64[logits.shape[0]]
//! let     rows = logits.shape[0], cols = logits.shape[1]
//! need    logits.ndim == 2 and logits.dtype == f32 and cols > 0 and cols < 2000000000
//! tune    WARPS = 8 | 4 | 16
//! tune    LOADS = 8 | 4 | 2
//! const   WIDTH = 4 if cols % 4 == 0 else 1     # odd rows are not 16-byte aligned
//! let     splits = ceil_div(cols, WARPS * 32 * LOADS * WIDTH)
//! scratch part: f32[rows, splits]
//! scratch part_at: i32[rows, splits]
//! scratch tick: i32[rows] counter
//! launch  top1<<<rows * splits, WARPS * 32>>>(logits, values, indices, part, part_at, tick, cols, splits)

constexpr int THREADS = WARPS * 32, NOWHERE = 0x7fffffff;
struct alignas(WIDTH * 4) Vector { float at[WIDTH]; };

// Does (v, i) come before (best, at)? NaN is the largest; of equals the first.
__device__ __forceinline__ bool before(float v, int i, float best, int at) {
  const bool same = v == best || (v != v && best != best);
  return same ? i < at : !(v <= best) && best == best;
}
__device__ __forceinline__ void offer(float v, int i, float& best, int& at) {
  const bool take = before(v, i, best, at);
  best = take ? v : best;
  at = take ? i : at;
}
__device__ __forceinline__ void across_warp(float& best, int& at) {
#pragma unroll
  for (int offset = 16; offset; offset /= 2) {
    const float v = __shfl_xor_sync(~0u, best, offset);
    const int i = __shfl_xor_sync(~0u, at, offset);
    offer(v, i, best, at);
  }
}

__global__ void __launch_bounds__(THREADS, 1024 / THREADS) top1(const float* __restrict__ logits, float* __restrict__ values,
    long long* __restrict__ indices, float* part, int* part_at, int* tick, int cols, int splits) {
  __shared__ float partial[WARPS];
  __shared__ int places[WARPS];
  const unsigned row = blockIdx.x / (unsigned)splits, split = blockIdx.x % (unsigned)splits;
  const int thread = threadIdx.x, vectors = cols / WIDTH, first = split * (THREADS * LOADS) + thread;
  const Vector* from = reinterpret_cast<const Vector*>(logits + (long long)row * cols);

  Vector held[LOADS];
#pragma unroll
  for (int k = 0; k < LOADS; ++k) {
    if (first + k * THREADS < vectors) {
      held[k] = from[first + k * THREADS];
    } else {
#pragma unroll
      for (int e = 0; e < WIDTH; ++e) held[k].at[e] = -INFINITY;   // never larger than anything
    }
  }
  float value = -INFINITY;
  int place = NOWHERE;
#pragma unroll
  for (int e = 0; e < WIDTH; ++e) {
    float best = held[0].at[e];
    int at = 0;
#pragma unroll
    for (int k = 1; k < LOADS; ++k) {
      const float v = held[k].at[e];
      const bool take = !(v <= best) & (best == best);   // larger, or the first NaN
      best = take ? v : best;
      at = take ? k * THREADS : at;
    }
    offer(best, first < vectors ? (first + at) * WIDTH + e : NOWHERE, value, place);
  }

  across_warp(value, place);
  if (thread % 32 == 0) partial[thread / 32] = value, places[thread / 32] = place;
  __syncthreads();
  if (thread >= 32) return;
  value = thread < WARPS ? partial[thread] : -INFINITY;
  place = thread < WARPS ? places[thread] : NOWHERE;
  across_warp(value, place);
  if (splits > 1) {
    const long long parts = (long long)row * splits;
    int ticket = 0;
    if (thread == 0) {
      __stcg(part + parts + split, value);
      __stcg(part_at + parts + split, place);
      __threadfence();
      ticket = atomicAdd(tick + row, 1);
      __threadfence();
    }
    if (__shfl_sync(~0u, ticket, 0) != splits - 1) return;
    value = -INFINITY, place = NOWHERE;   // any order gives the same: ties go by index
    for (int s = thread; s < splits; s += 32) offer(__ldcg(part + parts + s), __ldcg(part_at + parts + s), value, place);
    across_warp(value, place);
    if (thread == 0) tick[row] = 0;
  }
  if (thread == 0) values[row] = value, indices[row] = place;
}
