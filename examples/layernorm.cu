// LayerNorm over the last dimension for rows that fit one warp's registers; longer rows are layernorm_wide.cu's.
//
// One warp owns one row. It loads the row once, all loads in flight together, and keeps it in registers, so the mean
// and then the variance (of differences from the mean: no cancellation) cost no further memory traffic. A warp reduces
// with shuffles alone: no shared memory, no barrier, and the rows of a block never wait for each other.

//! op      layernorm(x, weight, bias, eps: float = 1e-5) -> y
//! out     y: x.dtype[x.shape]
//! let     cols = x.shape[-1], rows = prod(x.shape[:-1])
//! need    x.dtype in [f32, f16, bf16] and weight.dtype == x.dtype and bias.dtype == x.dtype
//! need    cols > 0 and weight.shape == [cols] and bias.shape == [cols]
//! tune    WARPS = 4 | 8 | 2                               # rows per block
//! tune    RESIDENT = 24 | 32                              # warps that registers must allow on a multiprocessor
//! const   WIDTH = 16 / x.itemsize if cols % (16 / x.itemsize) == 0 else 1   # elements per load
//! const   VECTORS = next_pow2(ceil_div(cols, 32 * WIDTH)) # loads per lane; a power of two keeps the builds few
//! const   FULL = cols == 32 * WIDTH * VECTORS             # every load of every lane is inside the row
//! need    VECTORS * WIDTH <= 32 and VECTORS <= 16         # the row stays in registers
//! launch  layernorm<x.dtype><<<ceil_div(rows, WARPS), WARPS * 32>>>(x, weight, bias, y, rows, cols, 1.0 / cols, eps)

#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <typename T>
struct alignas(WIDTH * sizeof(T)) Vector {
  T at[WIDTH];
};

// The sum over the warp, the same in every lane.
__device__ float warp_sum(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(~0u, value, offset);
  return value;
}

template <typename T>
__global__ void __launch_bounds__(WARPS * 32, RESIDENT / WARPS)
    layernorm(const T* __restrict__ x, const T* __restrict__ weight, const T* __restrict__ bias, T* __restrict__ y,
              long long rows, int cols, float inverse_cols, float eps) {
  const int lane = threadIdx.x % 32;
  const int vectors = cols / WIDTH;
  const long long row = blockIdx.x * static_cast<long long>(WARPS) + threadIdx.x / 32;
  if (row >= rows) return;  // whole warps leave together, so the shuffles below always see all 32 lanes

  const auto* source = reinterpret_cast<const Vector<T>*>(x + row * cols);
  Vector<T> held[VECTORS];
#pragma unroll
  for (int k = 0; k < VECTORS; ++k) {
    if (FULL || k * 32 + lane < vectors) held[k] = source[k * 32 + lane];
  }

  float sum = 0.0f;
#pragma unroll
  for (int k = 0; k < VECTORS; ++k) {
    if (FULL || k * 32 + lane < vectors) {
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) sum += static_cast<float>(held[k].at[i]);
    }
  }
  const float mean = warp_sum(sum) * inverse_cols;

  float squares = 0.0f;
#pragma unroll
  for (int k = 0; k < VECTORS; ++k) {
    if (FULL || k * 32 + lane < vectors) {
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) {
        const float difference = static_cast<float>(held[k].at[i]) - mean;
        squares += difference * difference;
      }
    }
  }
  const float scale = rsqrtf(warp_sum(squares) * inverse_cols + eps);

  auto* target = reinterpret_cast<Vector<T>*>(y + row * cols);
#pragma unroll
  for (int k = 0; k < VECTORS; ++k) {
    const int place = k * 32 + lane;
    if (FULL || place < vectors) {
      const Vector<T> w = reinterpret_cast<const Vector<T>*>(weight)[place];
      const Vector<T> b = reinterpret_cast<const Vector<T>*>(bias)[place];
      Vector<T> result;
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) {
        const float normal = (static_cast<float>(held[k].at[i]) - mean) * scale;
        result.at[i] = static_cast<T>(normal * static_cast<float>(w.at[i]) + static_cast<float>(b.at[i]));
      }
      target[place] = result;
    }
  }
}
