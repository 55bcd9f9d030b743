// LayerNorm over the last dimension, then exact GELU, in one pass over memory.
//
// Written as separate operations this reads and writes the tensor several times. Here one block owns one row: it loads
// the row once into registers, finds mean and variance there, and writes the finished result once. What remains is the
// memory traffic that nothing can avoid.

//! op      layernorm_gelu(x, weight, bias, eps: float = 1e-5) -> y
//! out     y: x.dtype[x.shape]
//! let     cols = x.shape[-1], rows = prod(x.shape[:-1])
//! need    x.dtype in [f32, f16, bf16] and weight.dtype == x.dtype and bias.dtype == x.dtype
//! need    cols > 0 and weight.shape == [cols] and bias.shape == [cols]
//! tune    WARPS = 4 | 8 | 16 | 32 | 2                     # warps that share a row
//! const   WIDTH = 16 / x.itemsize if cols % (16 / x.itemsize) == 0 else 1   # elements per load
//! const   VECTORS = next_pow2(ceil_div(cols, WARPS * 32 * WIDTH))           # loads per thread
//! need    VECTORS * WIDTH <= 16                           # the row stays in registers
//! launch  layernorm_gelu<x.dtype><<<rows, WARPS * 32>>>(x, weight, bias, y, cols, 1.0 / cols, eps)

#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int THREADS = WARPS * 32;
constexpr int BLOCKS_PER_SM = 32 / WARPS;  // at least: while one block reduces, the others load

// Elements that move together.
template <typename T>
struct alignas(WIDTH * sizeof(T)) Vector {
  T at[WIDTH];
};

// Calls `visit(k, place)` for every vector of the row that this thread owns. k is a constant in each unrolled step, so
// arrays indexed by it stay in registers; neighbouring threads own neighbouring vectors, so their loads coalesce.
template <typename Visit>
__device__ __forceinline__ void for_each_vector(int vectors, Visit visit) {
#pragma unroll
  for (int k = 0; k < VECTORS; ++k) {
    const int place = k * THREADS + threadIdx.x;
    if (place < vectors) visit(k, place);
  }
}

// The sum over the block, the same in every thread: shuffles within each warp, then one exchange through shared memory.
// `partial` is WARPS floats that no earlier call has used, so one barrier is enough.
__device__ __forceinline__ float block_sum(float value, float* partial) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(~0u, value, offset);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  value = 0.0f;
#pragma unroll
  for (int warp = 0; warp < WARPS; ++warp) value += partial[warp];
  return value;
}

__device__ __forceinline__ float gelu(float v) { return 0.5f * v * (1.0f + erff(v * 0.70710678f)); }

template <typename T>
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    layernorm_gelu(const T* __restrict__ x, const T* __restrict__ weight, const T* __restrict__ bias, T* __restrict__ y,
                   int cols, float inverse_cols, float eps) {
  __shared__ float partial[2][WARPS];
  const int vectors = cols / WIDTH;
  const long long start = blockIdx.x * static_cast<long long>(cols);
  const auto* source = reinterpret_cast<const Vector<T>*>(x + start);
  const auto* weights = reinterpret_cast<const Vector<T>*>(weight);
  const auto* biases = reinterpret_cast<const Vector<T>*>(bias);
  auto* target = reinterpret_cast<Vector<T>*>(y + start);

  Vector<T> held[VECTORS];  // this thread's part of the row
  for_each_vector(vectors, [&](int k, int place) { held[k] = source[place]; });

  float sum = 0.0f;
  for_each_vector(vectors, [&](int k, int) {
    for (int i = 0; i < WIDTH; ++i) sum += static_cast<float>(held[k].at[i]);
  });
  const float mean = block_sum(sum, partial[0]) * inverse_cols;

  // Squares of differences from the mean: as the row is at hand, there is no need for the cancelling E[x^2] - mean^2.
  float squares = 0.0f;
  for_each_vector(vectors, [&](int k, int) {
    for (int i = 0; i < WIDTH; ++i) {
      const float difference = static_cast<float>(held[k].at[i]) - mean;
      squares += difference * difference;
    }
  });
  const float scale = rsqrtf(block_sum(squares, partial[1]) * inverse_cols + eps);

  for_each_vector(vectors, [&](int k, int place) {
    const Vector<T> w = weights[place];
    const Vector<T> b = biases[place];
    Vector<T> result;
    for (int i = 0; i < WIDTH; ++i) {
      const float normal = (static_cast<float>(held[k].at[i]) - mean) * scale;
      result.at[i] = static_cast<T>(gelu(normal * static_cast<float>(w.at[i]) + static_cast<float>(b.at[i])));
    }
    target[place] = result;
  });
}
