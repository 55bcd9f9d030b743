// LayerNorm over the last dimension, one block per row: for rows too long for the single warp of layernorm.cu.
//
// The same op in another file: given as a list, the first file whose `need` holds is used. The structure is the same
// too (row in registers, two-pass variance), but the warps of a block must add their sums through shared memory.

//! op      layernorm(x, weight, bias, eps: float = 1e-5) -> y
//! out     y: x.dtype[x.shape]
//! let     cols = x.shape[-1], rows = prod(x.shape[:-1])
//! need    x.dtype in [f32, f16, bf16] and weight.dtype == x.dtype and bias.dtype == x.dtype
//! need    cols > 0 and weight.shape == [cols] and bias.shape == [cols]
//! tune    WARPS = 4 | 8 | 16 | 32                         # warps that share a row
//! const   WIDTH = 16 / x.itemsize if cols % (16 / x.itemsize) == 0 else 1   # elements per load
//! const   VECTORS = next_pow2(ceil_div(cols, WARPS * 32 * WIDTH))           # loads per thread
//! need    VECTORS * WIDTH <= 16                           # the row stays in registers
//! launch  layernorm_wide<x.dtype><<<rows, WARPS * 32>>>(x, weight, bias, y, cols, 1.0 / cols, eps)

#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int THREADS = WARPS * 32;
constexpr int BLOCKS_PER_SM = 32 / WARPS;  // at least: while one block reduces, the others load

template <typename T>
struct alignas(WIDTH * sizeof(T)) Vector {
  T at[WIDTH];
};

// The sum over the block, the same in every thread. `partial` is WARPS floats that no earlier call has used: with its
// own memory, each call needs one barrier instead of two.
__device__ float block_sum(float value, float* partial) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(~0u, value, offset);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0.0f;
#pragma unroll
  for (int warp = 0; warp < WARPS; ++warp) sum += partial[warp];
  return sum;
}

template <typename T>
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    layernorm_wide(const T* __restrict__ x, const T* __restrict__ weight, const T* __restrict__ bias, T* __restrict__ y,
                   int cols, float inverse_cols, float eps) {
  __shared__ float partial[2][WARPS];
  const int vectors = cols / WIDTH;
  const long long start = blockIdx.x * static_cast<long long>(cols);

  const auto* source = reinterpret_cast<const Vector<T>*>(x + start);
  Vector<T> held[VECTORS];
#pragma unroll
  for (int k = 0; k < VECTORS; ++k) {
    const int place = k * THREADS + threadIdx.x;
    if (place < vectors) held[k] = source[place];
  }

  float sum = 0.0f;
#pragma unroll
  for (int k = 0; k < VECTORS; ++k) {
    if (k * THREADS + threadIdx.x < vectors) {
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) sum += static_cast<float>(held[k].at[i]);
    }
  }
  const float mean = block_sum(sum, partial[0]) * inverse_cols;

  float squares = 0.0f;
#pragma unroll
  for (int k = 0; k < VECTORS; ++k) {
    if (k * THREADS + threadIdx.x < vectors) {
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) {
        const float difference = static_cast<float>(held[k].at[i]) - mean;
        squares += difference * difference;
      }
    }
  }
  const float scale = rsqrtf(block_sum(squares, partial[1]) * inverse_cols + eps);

  auto* target = reinterpret_cast<Vector<T>*>(y + start);
#pragma unroll
  for (int k = 0; k < VECTORS; ++k) {
    const int place = k * THREADS + threadIdx.x;
    if (place < vectors) {
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
