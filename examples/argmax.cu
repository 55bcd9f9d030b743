// The greatest element of every row and where it stands: two outputs from one pass.
//
// What is reduced is a pair, value and index, under an order that makes the answer unique whatever the order of
// reduction: the greater value wins, NaN counts as greatest, and among equals the lower index wins, as in PyTorch.

//! op      argmax(x) -> values, indices
//! out     values: x.dtype[x.shape[:-1]]
//! out     indices: i64[x.shape[:-1]]
//! let     cols = x.shape[-1], rows = prod(x.shape[:-1])
//! need    x.dtype in [f32, f16, bf16]
//! need    cols > 0 and cols <= 2000000000                 # an empty row has no greatest element; indices fit an int
//! tune    THREADS = 128 | 256 | 64 | 512 | 1024
//! tune    BATCH = 4 | 2 | 8                               # loads of a thread that are in flight together
//! const   WIDTH = 16 / x.itemsize if cols % (16 / x.itemsize) == 0 else 1   # elements per load
//! need    THREADS == 64 or THREADS * BATCH <= cols / WIDTH    # short rows, small blocks
//! launch  argmax<x.dtype><<<rows, THREADS>>>(x, values, indices, cols)

#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int WARPS = THREADS / 32;

template <typename T>
struct alignas(WIDTH * sizeof(T)) Vector {
  T at[WIDTH];
};

struct Candidate {
  float value;
  int index;
};

__device__ bool is_nan(float value) { return value != value; }

__device__ Candidate better_of(Candidate a, Candidate b) {
  const bool both_nan = is_nan(a.value) && is_nan(b.value);
  const bool equal = a.value == b.value || both_nan;
  const bool b_is_greater = b.value > a.value || (is_nan(b.value) && !is_nan(a.value));
  return b_is_greater || (equal && b.index < a.index) ? b : a;
}

__device__ Candidate warp_best(Candidate best) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const Candidate other = {__shfl_xor_sync(~0u, best.value, offset), __shfl_xor_sync(~0u, best.index, offset)};
    best = better_of(best, other);
  }
  return best;
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    argmax(const T* __restrict__ x, T* __restrict__ values, long long* __restrict__ indices, int cols) {
  const int vectors = cols / WIDTH;
  const auto* source = reinterpret_cast<const Vector<T>*>(x + blockIdx.x * static_cast<long long>(cols));

  // Element 0 as -inf is a safe start even for a thread that owns nothing: it can only win where all are -inf, and
  // there it is the right answer. A thread meets its own elements by rising index, so only a greater one replaces.
  Candidate best = {-INFINITY, 0};
#pragma unroll 1
  for (int first = threadIdx.x; first < vectors; first += BATCH * THREADS) {
    Vector<T> loaded[BATCH];
#pragma unroll
    for (int k = 0; k < BATCH; ++k) {
      if (first + k * THREADS < vectors) loaded[k] = source[first + k * THREADS];
    }
#pragma unroll
    for (int k = 0; k < BATCH; ++k) {
      const int place = first + k * THREADS;
      if (place < vectors) {
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) {
          const float value = static_cast<float>(loaded[k].at[i]);
          // Not "less or equal" is "greater, or one of them NaN"; a NaN that is already best stays.
          if (!(value <= best.value) && !is_nan(best.value)) best = {value, place * WIDTH + i};
        }
      }
    }
  }
  best = warp_best(best);

  __shared__ Candidate of_warps[WARPS];
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = best;
  __syncthreads();
  if (threadIdx.x < 32) {
    best = warp_best(of_warps[min(static_cast<int>(threadIdx.x), WARPS - 1)]);
    if (threadIdx.x == 0) {
      values[blockIdx.x] = static_cast<T>(best.value);
      indices[blockIdx.x] = best.index;
    }
  }
}
