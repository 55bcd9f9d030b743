//! op      top1(logits) -> values, indices
//! out     values: f32[logits.shape[0]]
//! out     indices: i64[logits.shape[0]]
//! let     rows = logits.shape[0], cols = logits.shape[1]
//! need    logits.dtype == f32 and logits.ndim == 2 and cols > 0 and cols < 2147483648
//! tune    THREADS = 320 | 160 | 512 | 800
//! tune    LOADS = 5 | 8 | 4
//! const   WIDTH = 4 if cols % 4 == 0 else 1
//! const   VECTORS = cols / WIDTH
//! const   ROUNDS = ceil_div(VECTORS, THREADS * LOADS)
//! const   EXACT = VECTORS % (THREADS * LOADS) == 0
//! const   RESIDENT = 1280 / THREADS
//! launch  top1<<<rows, THREADS>>>(logits, values, indices)

constexpr int WARPS = THREADS / 32;
struct alignas(WIDTH * 4) Vector { float at[WIDTH]; };

// The larger wins, NaN above all, the first of equals.
__device__ __forceinline__ void merge(float& best, unsigned& place, float v, unsigned p) {
  const bool earlier = p < place;
  const bool nan = v != v, best_nan = best != best;
  const bool take = nan ? (!best_nan || earlier) : (v > best || (v == best && earlier));
  best = take ? v : best;
  place = take ? p : place;
}

__device__ __forceinline__ void across_warp(float& best, unsigned& place) {
#pragma unroll
  for (int offset = 16; offset; offset /= 2) {
    const float v = __shfl_xor_sync(~0u, best, offset);
    const unsigned p = __shfl_xor_sync(~0u, place, offset);
    merge(best, place, v, p);
  }
}

__global__ void __launch_bounds__(THREADS, RESIDENT) top1(const float* __restrict__ logits,
    float* __restrict__ values, long long* __restrict__ indices) {
  __shared__ float shared_best[WARPS];
  __shared__ unsigned shared_place[WARPS];
  const unsigned thread = threadIdx.x;
  const long long row = blockIdx.x;
  const Vector* from = reinterpret_cast<const Vector*>(logits) + row * VECTORS;
  constexpr unsigned LAST = unsigned(VECTORS) - 1u;

  // Beyond the end the last vector is taken again under its own place, which changes nothing.
  float best[WIDTH];
  unsigned where[WIDTH];
#pragma unroll
  for (int i = 0; i < WIDTH; ++i) {
    best[i] = -INFINITY;
    where[i] = thread < LAST ? thread : LAST;   // stays if all are -infinity
  }

  unsigned first = thread;
#pragma unroll 1
  for (int r = 0; r < ROUNDS; ++r, first += THREADS * LOADS) {
    Vector held[LOADS];
    unsigned place[LOADS];
#pragma unroll
    for (int k = 0; k < LOADS; ++k) {
      place[k] = first + k * THREADS;
      if constexpr (!EXACT) place[k] = place[k] < LAST ? place[k] : LAST;
      held[k] = from[place[k]];
    }
#pragma unroll
    for (int k = 0; k < LOADS; ++k) {
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) {
        const float v = held[k].at[i];
        const bool take = !(v <= best[i]) && best[i] == best[i];   // a NaN is taken, then kept
        best[i] = take ? v : best[i];
        where[i] = take ? place[k] : where[i];
      }
    }
  }

  float top = best[0];
  unsigned at = where[0] * WIDTH;
#pragma unroll
  for (int i = 1; i < WIDTH; ++i) merge(top, at, best[i], where[i] * WIDTH + i);

  across_warp(top, at);
  if (thread % 32 == 0) {
    shared_best[thread / 32] = top;
    shared_place[thread / 32] = at;
  }
  __syncthreads();
  if (thread < 32) {
    const unsigned w = thread < WARPS ? thread : WARPS - 1;
    top = shared_best[w];
    at = shared_place[w];
    across_warp(top, at);
    if (thread == 0) {
      values[row] = top;
      indices[row] = (long long)at;
    }
  }
}
