// Softmax over the last dimension of x + mask, where the mask is optional and may be shared by many rows.
//
// The mask is additive (0 keeps, -inf drops) and has the trailing dimensions of x: an [S, S] mask serves every batch
// and head of a [B, H, S, S] x. HAS_MASK is a constant, so without a mask its loads are not even compiled. One block
// owns one row, which it reads once and keeps in registers. As in PyTorch, a row that is -inf throughout gives NaN.

//! op      softmax_mask(x, mask?) -> y
//! out     y: x.dtype[x.shape]
//! let     cols = x.shape[-1], rows = prod(x.shape[:-1])
//! need    x.dtype in [f32, f16, bf16] and cols > 0
//! need    not has(mask) or (mask.dtype == x.dtype and mask.ndim > 0 and mask.ndim <= x.ndim)
//! need    not has(mask) or mask.shape == x.shape[x.ndim - mask.ndim:]
//! let     mask_rows = max(prod(mask.shape[:-1]), 1) if has(mask) else 1     # 1 also where there are no rows at all
//! const   HAS_MASK = has(mask)
//! tune    WARPS = 4 | 8 | 16 | 32 | 2                     # warps that share a row
//! const   WIDTH = 16 / x.itemsize if cols % (16 / x.itemsize) == 0 else 1   # elements per load
//! const   VECTORS = next_pow2(ceil_div(cols, WARPS * 32 * WIDTH))           # loads per thread
//! need    VECTORS * WIDTH <= 16                           # the row stays in registers
//! launch  softmax_mask<x.dtype><<<rows, WARPS * 32>>>(x, mask, y, mask_rows, cols)

#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int THREADS = WARPS * 32;
constexpr int BLOCKS_PER_SM = 32 / WARPS;  // at least: while one block reduces, the others load

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

// The values of all threads combined, the same in every thread. `partial` is WARPS floats that no other call uses.
template <typename Combine>
__device__ float block_reduce(float value, float* partial, Combine combine) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value = combine(value, __shfl_xor_sync(~0u, value, offset));
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  value = partial[0];
#pragma unroll
  for (int warp = 1; warp < WARPS; ++warp) value = combine(value, partial[warp]);
  return value;
}

template <typename T>
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    softmax_mask(const T* __restrict__ x, const T* __restrict__ mask, T* __restrict__ y, unsigned mask_rows,
                 int cols) {
  __shared__ float partial[2][WARPS];
  const int vectors = cols / WIDTH;
  const long long start = blockIdx.x * static_cast<long long>(cols);
  const auto* source = reinterpret_cast<const Vector<T>*>(x + start);
  auto* target = reinterpret_cast<Vector<T>*>(y + start);

  float value[VECTORS][WIDTH];  // the row: first x + mask, then the exponentials
#pragma unroll
  for (int k = 0; k < VECTORS; ++k) {
    const int place = k * THREADS + threadIdx.x;
    Vector<T> loaded = {};
    if (place < vectors) loaded = source[place];
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) value[k][i] = place < vectors ? static_cast<float>(loaded.at[i]) : -INFINITY;
  }
  if constexpr (HAS_MASK) {
    const long long mask_start = static_cast<long long>(blockIdx.x % mask_rows) * cols;
    const auto* masked = reinterpret_cast<const Vector<T>*>(mask + mask_start);
#pragma unroll
    for (int k = 0; k < VECTORS; ++k) {
      const int place = k * THREADS + threadIdx.x;
      if (place < vectors) {
        const Vector<T> loaded = masked[place];
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) value[k][i] += static_cast<float>(loaded.at[i]);
      }
    }
  }

  // The greatest element is subtracted before exponentials are taken, so none of them overflows.
  float greatest = -INFINITY;
#pragma unroll
  for (int k = 0; k < VECTORS; ++k) {
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) greatest = fmaxf(greatest, value[k][i]);
  }
  greatest = block_reduce(greatest, partial[0], Maximum{});

  float sum = 0.0f;
#pragma unroll
  for (int k = 0; k < VECTORS; ++k) {
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
      value[k][i] = expf(value[k][i] - greatest);  // the places past the end hold -inf and add nothing
      sum += value[k][i];
    }
  }
  const float inverse = 1.0f / block_reduce(sum, partial[1], Sum{});

#pragma unroll
  for (int k = 0; k < VECTORS; ++k) {
    const int place = k * THREADS + threadIdx.x;
    if (place < vectors) {
      Vector<T> result;
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) result.at[i] = static_cast<T>(value[k][i] * inverse);
      target[place] = result;
    }
  }
}
