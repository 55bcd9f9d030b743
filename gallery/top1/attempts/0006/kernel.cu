//! op      top1(logits) -> values, indices
//! out     values: f32[logits.shape[0]]
//! out     indices: i64[logits.shape[0]]
//! let     rows = logits.shape[0], cols = logits.shape[1]
//! need    logits.ndim == 2 and logits.dtype == f32 and cols > 0 and cols < 2000000000
//! tune    WARPS = 4 | 8
//! tune    LOADS = 2 | 4 | 1 | 8
//! const   EVEN = cols % 4 == 0                  # every row starts on 16 bytes
//! let     splits = ceil_div(max(cols / 4, 1), WARPS * 32 * LOADS)
//! scratch part: i64[rows, splits]
//! scratch tick: i32[rows] counter
//! launch  top1<<<rows * splits, WARPS * 32>>>(logits, values, indices, part, tick, cols, splits)

constexpr int THREADS = WARPS * 32, NOWHERE = 0x7fffffff;
using Pair = unsigned long long;   // the key of the value, then the index's complement: the largest is the first of the largest

__device__ __forceinline__ float larger(float a, float b) {   // NaN if either is
  float c;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}
__device__ __forceinline__ unsigned key_of(float v) {   // ordered as the values are; NaN the largest, -0 as +0
  const unsigned bits = __float_as_uint(v + 0.0f);
  return v != v ? ~0u : bits ^ ((unsigned)((int)bits >> 31) | 0x80000000u);
}
__device__ __forceinline__ float value_of(unsigned key) { return __uint_as_float(key & 0x80000000u ? key ^ 0x80000000u : ~key); }
__device__ __forceinline__ bool is(float v, float most) { return v == most || v != v; }   // most is NaN if any v is
__device__ __forceinline__ Pair across_warp(Pair pair) {
  const unsigned key = (unsigned)(pair >> 32), most = __reduce_max_sync(~0u, key);
  const unsigned place = __reduce_max_sync(~0u, key == most ? (unsigned)pair : 0u);
  return (Pair)most << 32 | place;
}

__global__ void __launch_bounds__(THREADS, 1024 / THREADS) top1(const float* __restrict__ logits, float* __restrict__ values,
    long long* __restrict__ indices, long long* part, int* tick, int cols, int splits) {
  __shared__ Pair partial[WARPS];
  const unsigned row = blockIdx.x / (unsigned)splits, split = blockIdx.x % (unsigned)splits;
  const int thread = threadIdx.x, first = split * (THREADS * LOADS) + thread;
  const float* from = logits + (long long)row * cols;
  const int head = EVEN ? 0 : min((int)(-((long long)row * cols) & 3), cols), vectors = (cols - head) / 4;
  const float4* middle = reinterpret_cast<const float4*>(from + head);

  float4 held[LOADS];
#pragma unroll
  for (int k = 0; k < LOADS; ++k)
    held[k] = first + k * THREADS < vectors ? middle[first + k * THREADS] : make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
  float edge = -INFINITY;
  int edge_at = NOWHERE;
  if (!EVEN && first < 8) {   // threads 0-3 the elements before the middle, 4-7 those after it
    const int i = first < 4 ? first : head + vectors * 4 + first - 4;
    if (i < (first < 4 ? head : cols)) edge = from[i], edge_at = i;
  }
  float most = edge;
#pragma unroll
  for (int k = 0; k < LOADS; ++k) most = larger(most, larger(larger(held[k].x, held[k].y), larger(held[k].z, held[k].w)));

  const unsigned key = key_of(most), warp_key = __reduce_max_sync(~0u, key);
  int place = NOWHERE;
  if (key == warp_key) {   // mostly one lane
    if (first < vectors) {
#pragma unroll
      for (int k = LOADS - 1; k >= 0; --k) {   // ends with the first; what fills up comes after it
        const int i = head + (first + k * THREADS) * 4;
        if (is(held[k].w, most)) place = i + 3;
        if (is(held[k].z, most)) place = i + 2;
        if (is(held[k].y, most)) place = i + 1;
        if (is(held[k].x, most)) place = i;
      }
    }
    if (!EVEN && is(edge, most)) place = min(place, edge_at);
  }
  place = __reduce_min_sync(~0u, place);
  if (thread % 32 == 0) partial[thread / 32] = (Pair)warp_key << 32 | ~(unsigned)place;
  __syncthreads();
  if (thread >= 32) return;
  Pair pair = across_warp(thread < WARPS ? partial[thread] : 0);
  if (splits > 1) {
    long long* parts = part + (long long)row * splits;
    int ticket = 0;
    if (thread == 0) {
      __stcg(parts + split, (long long)pair);
      __threadfence();
      ticket = atomicAdd(tick + row, 1);
      __threadfence();
    }
    if (__shfl_sync(~0u, ticket, 0) != splits - 1) return;
    pair = 0;
    for (int s = thread; s < splits; s += 32) {
      const Pair other = (Pair)__ldcg(parts + s);
      pair = other > pair ? other : pair;
    }
    pair = across_warp(pair);
    if (thread == 0) tick[row] = 0;
  }
  if (thread == 0) values[row] = value_of((unsigned)(pair >> 32)), indices[row] = ~(unsigned)pair;
}
