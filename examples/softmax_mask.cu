// Softmax over the last dimension of x + mask, where the mask is optional and may be shared by many rows.
//
// The mask is additive (0 keeps, -inf drops) and has the trailing dimensions of x: an [S, S] mask serves every batch
// and head of a [B, H, S, S] x. HAS_MASK is a constant, so without a mask its loads are not even compiled. A row is read
// once and kept in registers, by one warp where it is short, which then needs no barrier: then four rows form a block.
// As in PyTorch, a row that is -inf throughout gives NaN.

//! op      softmax_mask(x, mask?) -> y
//! out     y: x.dtype[x.shape]
//! let     cols = x.shape[-1], rows = prod(x.shape[:-1])
//! need    x.dtype in [f32, f16, bf16] and cols > 0
//! need    not has(mask) or (mask.dtype == x.dtype and mask.ndim > 0 and mask.ndim <= x.ndim)
//! need    not has(mask) or mask.shape == x.shape[x.ndim - mask.ndim:]
//! need    rows <= 2000000000                              # so that a quick 32-bit division finds the row of the mask
//! let     mask_rows = max(prod(mask.shape[:-1]), 1) if has(mask) else 1     # 1 also where there are no rows at all
//! const   HAS_MASK = has(mask)
//! tune    WARPS = 1 | 2 | 4 | 8 | 16 | 32                 # that share a row
//! const   WIDTH = 16 / x.itemsize if cols % (16 / x.itemsize) == 0 else 1   # elements per load
//! const   VECTORS = next_pow2(ceil_div(cols, WARPS * 32 * WIDTH))           # loads per thread
//! need    VECTORS * WIDTH <= (32 if WARPS < 32 else 16)   # elements of the row that a thread holds
//! const   FULL = cols == WARPS * 32 * WIDTH * VECTORS     # every load of every thread is inside the row
//! const   ROWS = 4 if WARPS == 1 else 1                   # rows in a block
//! launch  softmax_mask<x.dtype><<<ceil_div(rows, ROWS), ROWS * WARPS * 32>>>(x, mask, y, rows, mask_rows, cols)

#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int THREADS = WARPS * 32;                 // of a row
constexpr int BLOCKS_PER_SM = 32 / (ROWS * WARPS);  // at least: while one block reduces, the others load

template <typename T>
struct alignas(WIDTH * sizeof(T)) Vector {
  T at[WIDTH];
};

struct Maximum {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

struct Sum {
  __device__ float operator()(float a, float b) const { return a + b; }
};

// exp(value). The quick form is a few units off in the last places of an f32, which a 16-bit result does not have.
template <typename T>
__device__ __forceinline__ float exponential(float value) {
  if constexpr (sizeof(T) == 4) return expf(value);
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(value * 1.44269504f));
  return power;
}

// The values of the row's threads combined, the same in each. `partial` is WARPS floats that no other call uses.
template <typename Combine>
__device__ __forceinline__ float row_reduce(float value, float* partial, Combine combine) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value = combine(value, __shfl_xor_sync(~0u, value, offset));
  if constexpr (WARPS == 1) return value;
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  value = partial[0];
#pragma unroll
  for (int warp = 1; warp < WARPS; ++warp) value = combine(value, partial[warp]);
  return value;
}

template <typename T>
__global__ void __launch_bounds__(ROWS * THREADS, BLOCKS_PER_SM)
    softmax_mask(const T* __restrict__ x, const T* __restrict__ mask, T* __restrict__ y, unsigned rows,
                 unsigned mask_rows, int cols) {
  __shared__ float partial[2][WARPS];
  const int thread = threadIdx.x % THREADS, vectors = cols / WIDTH;
  const unsigned row = blockIdx.x * ROWS + threadIdx.x / THREADS;
  if (row >= rows) return;  // the last block may have fewer rows; whole warps leave, and they wait for nobody
  const long long start = static_cast<long long>(row) * cols;
  const auto* source = reinterpret_cast<const Vector<T>*>(x + start);
  auto* target = reinterpret_cast<Vector<T>*>(y + start);

  // All loads first, so that they are in flight together.
  Vector<T> loaded[VECTORS], masked[VECTORS];
#pragma unroll
  for (int k = 0; k < VECTORS; ++k) {
    if (FULL || k * THREADS + thread < vectors) loaded[k] = source[k * THREADS + thread];
  }
  if constexpr (HAS_MASK) {
    const auto* mask_row = reinterpret_cast<const Vector<T>*>(mask + static_cast<long long>(row % mask_rows) * cols);
#pragma unroll
    for (int k = 0; k < VECTORS; ++k) {
      if (FULL || k * THREADS + thread < vectors) masked[k] = mask_row[k * THREADS + thread];
    }
  }

  float value[VECTORS][WIDTH];  // the row: first x + mask, then the exponentials
#pragma unroll
  for (int k = 0; k < VECTORS; ++k) {
    const bool inside = FULL || k * THREADS + thread < vectors;
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
      value[k][i] = inside ? static_cast<float>(loaded[k].at[i]) : -INFINITY;
      if (HAS_MASK && inside) value[k][i] += static_cast<float>(masked[k].at[i]);
    }
  }

  // The greatest element is subtracted before exponentials are taken, so none of them overflows.
  float greatest = -INFINITY;
#pragma unroll
  for (int k = 0; k < VECTORS; ++k) {
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) greatest = fmaxf(greatest, value[k][i]);
  }
  greatest = row_reduce(greatest, partial[0], Maximum{});

  float sum = 0.0f;
#pragma unroll
  for (int k = 0; k < VECTORS; ++k) {
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
      value[k][i] = exponential<T>(value[k][i] - greatest);  // the places past the end hold -inf and add nothing
      sum += value[k][i];
    }
  }
  const float inverse = 1.0f / row_reduce(sum, partial[1], Sum{});

#pragma unroll
  for (int k = 0; k < VECTORS; ++k) {
    if (FULL || k * THREADS + thread < vectors) {
      Vector<T> result;
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) result.at[i] = static_cast<T>(value[k][i] * inverse);
      target[k * THREADS + thread] = result;
    }
  }
}
