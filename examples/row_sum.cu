// The sum of every row, in f32 whatever the element type: a block reduction.
//
// One block owns one row and walks it. Each thread has BATCH loads in flight at a time, and adds what it loads in
// registers; only at the end do threads meet, first the 32 lanes of each warp by shuffles, then the warps through shared
// memory. Partial sums are always added in the same order, so the result has the same bits on every run. The sum of an
// empty row is 0.

//! op      row_sum(x) -> y
//! out     y: f32[x.shape[:-1]]
//! let     cols = x.shape[-1], rows = prod(x.shape[:-1])
//! need    x.dtype in [f32, f16, bf16]
//! tune    THREADS = 256 | 128 | 64 | 512 | 1024
//! tune    BATCH = 2 | 4 | 8                               # loads of a thread that are in flight together
//! const   WIDTH = 16 / x.itemsize if cols % (16 / x.itemsize) == 0 else 1   # elements per load
//! need    THREADS == 64 or THREADS * BATCH <= cols / WIDTH    # short rows, small blocks
//! launch  row_sum<x.dtype><<<rows, THREADS>>>(x, y, cols)

#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int WARPS = THREADS / 32;

template <typename T>
struct alignas(WIDTH * sizeof(T)) Vector {
  T at[WIDTH];
};

__device__ float warp_sum(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(~0u, value, offset);
  return value;
}

template <typename T>
__global__ void __launch_bounds__(THREADS) row_sum(const T* __restrict__ x, float* __restrict__ y, long long cols) {
  const auto* source = reinterpret_cast<const Vector<T>*>(x + blockIdx.x * cols);
  const long long vectors = cols / WIDTH;

  // One running sum per element of the vector: independent chains of additions, and shorter ones round less.
  float running[WIDTH] = {};
#pragma unroll 1
  for (long long first = threadIdx.x; first < vectors; first += BATCH * THREADS) {
    Vector<T> loaded[BATCH] = {};
#pragma unroll
    for (int k = 0; k < BATCH; ++k) {
      if (first + k * THREADS < vectors) loaded[k] = source[first + k * THREADS];
    }
#pragma unroll
    for (int k = 0; k < BATCH; ++k) {
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) running[i] += static_cast<float>(loaded[k].at[i]);
    }
  }

  // Fold the vector in halves.
#pragma unroll
  for (int half = WIDTH / 2; half > 0; half /= 2) {
#pragma unroll
    for (int i = 0; i < half; ++i) running[i] += running[i + half];
  }
  const float of_warp = warp_sum(running[0]);

  __shared__ float partial[WARPS];
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = of_warp;
  __syncthreads();
  if (threadIdx.x < 32) {
    const float sum = warp_sum(threadIdx.x < WARPS ? partial[threadIdx.x] : 0.0f);
    if (threadIdx.x == 0) y[blockIdx.x] = sum;
  }
}
