// RMSNorm as Llama has it: y = x / sqrt(mean(x^2) + eps), rounded to the element type, times weight.
//
// One block owns one row and holds it in registers, so x is read once. The weight is the same for every row and comes
// from the cache. Its gradients: rmsnorm_backward.cu.

//! op      rmsnorm(x, weight, eps: float = 1e-6) -> y
//! out     y: x.dtype[x.shape]
//! let     cols = x.shape[-1], rows = prod(x.shape[:-1])
//! need    x.dtype in [f16, bf16] and weight.dtype == x.dtype
//! need    cols > 0 and weight.shape == [cols]
//! tune    WARPS = 8 | 4 | 16 | 2                          # warps that share a row
//! const   WIDTH = 8 if cols % 8 == 0 else 1               # elements per load
//! const   VECTORS = next_pow2(ceil_div(cols, WARPS * 32 * WIDTH))   # loads per thread
//! const   FULL = cols == WARPS * 32 * WIDTH * VECTORS     # every load of every thread is inside the row
//! need    VECTORS * WIDTH <= 32                           # elements that a thread holds
//! launch  rmsnorm<x.dtype><<<rows, WARPS * 32>>>(x, weight, y, cols, 1.0 / cols, eps)

#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int THREADS = WARPS * 32;

template <typename T>
struct alignas(WIDTH * sizeof(T)) Vector {
  T at[WIDTH];
};

__device__ float block_sum(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(~0u, value, offset);
  __shared__ float partial[WARPS];
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  value = 0.0f;
#pragma unroll
  for (int warp = 0; warp < WARPS; ++warp) value += partial[warp];
  return value;
}

template <typename T>
__global__ void __launch_bounds__(THREADS) rmsnorm(const T* __restrict__ x, const T* __restrict__ weight,
                                                   T* __restrict__ y, int cols, float inverse_cols, float eps) {
  const int vectors = cols / WIDTH;
  const long long start = blockIdx.x * static_cast<long long>(cols);
  const auto* source = reinterpret_cast<const Vector<T>*>(x + start);

  Vector<T> held[VECTORS];
#pragma unroll
  for (int k = 0; k < VECTORS; ++k) {
    const int place = k * THREADS + threadIdx.x;
    if (FULL || place < vectors) held[k] = source[place];
  }
  float squares = 0.0f;
#pragma unroll
  for (int k = 0; k < VECTORS; ++k) {
    if (FULL || k * THREADS + threadIdx.x < vectors) {
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) {
        const float value = static_cast<float>(held[k].at[i]);
        squares += value * value;
      }
    }
  }
  const float scale = rsqrtf(block_sum(squares) * inverse_cols + eps);

#pragma unroll
  for (int k = 0; k < VECTORS; ++k) {
    const int place = k * THREADS + threadIdx.x;
    if (FULL || place < vectors) {
      const Vector<T> w = reinterpret_cast<const Vector<T>*>(weight)[place];
      Vector<T> result;
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) {
        const T normal = static_cast<T>(static_cast<float>(held[k].at[i]) * scale);
        result.at[i] = static_cast<T>(static_cast<float>(normal) * static_cast<float>(w.at[i]));
      }
      reinterpret_cast<Vector<T>*>(y + start)[place] = result;
    }
  }
}
