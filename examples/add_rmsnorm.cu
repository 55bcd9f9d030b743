// The step between two layers of a transformer: residual += x in place, then y = RMSNorm(residual) * weight.
//
// `residual!` is both read and written. One block owns one row; the updated row stays in registers between the store
// and the norm, so x and residual are each read once. The norm is of the value as stored, rounded to the element type,
// just as it would be if addition and norm were two operations.

//! op      add_rmsnorm(x, residual!, weight, eps: float = 1e-6) -> y
//! out     y: x.dtype[x.shape]
//! let     cols = x.shape[-1], rows = prod(x.shape[:-1])
//! need    x.dtype in [f16, bf16] and residual.dtype == x.dtype and weight.dtype == x.dtype
//! need    cols > 0 and residual.shape == x.shape and weight.shape == [cols]
//! tune    WARPS = 4 | 8 | 16 | 32 | 2                     # warps that share a row
//! const   WIDTH = 8 if cols % 8 == 0 else 1               # elements per load
//! const   VECTORS = next_pow2(ceil_div(cols, WARPS * 32 * WIDTH))   # loads per thread
//! const   FULL = cols == WARPS * 32 * WIDTH * VECTORS     # every load of every thread is inside the row
//! need    VECTORS * WIDTH <= 16                           # elements of each of x and residual that a thread holds
//! launch  add_rmsnorm<x.dtype><<<rows, WARPS * 32>>>(x, residual, weight, y, cols, 1.0 / cols, eps)

#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int THREADS = WARPS * 32;
constexpr int BLOCKS_PER_SM = 32 / WARPS;  // at least: while one block reduces, the others load

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
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    add_rmsnorm(const T* __restrict__ x, T* __restrict__ residual, const T* __restrict__ weight, T* __restrict__ y,
                int cols, float inverse_cols, float eps) {
  const int vectors = cols / WIDTH;
  const long long start = blockIdx.x * static_cast<long long>(cols);
  const auto* added = reinterpret_cast<const Vector<T>*>(x + start);
  auto* stream = reinterpret_cast<Vector<T>*>(residual + start);

  // All loads first, so that they are in flight together.
  Vector<T> held[VECTORS], increment[VECTORS];
#pragma unroll
  for (int k = 0; k < VECTORS; ++k) {
    const int place = k * THREADS + threadIdx.x;
    if (FULL || place < vectors) {
      held[k] = stream[place];
      increment[k] = added[place];
    }
  }

  float squares = 0.0f;
#pragma unroll
  for (int k = 0; k < VECTORS; ++k) {
    const int place = k * THREADS + threadIdx.x;
    if (FULL || place < vectors) {
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) {
        held[k].at[i] = static_cast<T>(static_cast<float>(held[k].at[i]) + static_cast<float>(increment[k].at[i]));
        const float value = static_cast<float>(held[k].at[i]);
        squares += value * value;
      }
      stream[place] = held[k];
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
        result.at[i] = static_cast<T>(static_cast<float>(held[k].at[i]) * scale * static_cast<float>(w.at[i]));
      }
      reinterpret_cast<Vector<T>*>(y + start)[place] = result;
    }
  }
}
