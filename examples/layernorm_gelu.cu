// LayerNorm over the last dimension, then exact GELU, in one pass over memory.
//
// Written as separate operations this reads and writes the tensor several times. Here a row is loaded once into
// registers, mean and variance are found there, and the finished result is written once. What remains is the memory
// traffic that nothing can avoid. WARPS warps share a row: one for short rows, which then needs no barrier, and several
// rows form a block.

//! op      layernorm_gelu(x, weight, bias, eps: float = 1e-5) -> y
//! out     y: x.dtype[x.shape]
//! let     cols = x.shape[-1], rows = prod(x.shape[:-1])
//! need    x.dtype in [f32, f16, bf16] and weight.dtype == x.dtype and bias.dtype == x.dtype
//! need    cols > 0 and weight.shape == [cols] and bias.shape == [cols]
//! tune    WARPS = 1 | 2 | 4 | 8 | 16 | 32                 # that share a row
//! const   WIDTH = 16 / x.itemsize if cols % (16 / x.itemsize) == 0 else 1   # elements per load
//! const   VECTORS = next_pow2(ceil_div(cols, WARPS * 32 * WIDTH))           # loads per thread
//! need    VECTORS * WIDTH * x.itemsize <= 64 and VECTORS <= 16            # the row stays in registers
//! const   FULL = cols == WARPS * 32 * WIDTH * VECTORS     # every load of every thread is inside the row
//! const   ROWS = 4 if WARPS == 1 else 1                   # rows in a block
//! launch  layernorm_gelu<x.dtype><<<ceil_div(rows, ROWS), ROWS * WARPS * 32>>>(
//!             x, weight, bias, y, rows, cols, 1.0 / cols, eps)

#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int THREADS = WARPS * 32;                 // of a row
constexpr int BLOCKS_PER_SM = 32 / (ROWS * WARPS);  // at least: while one block reduces, the others load

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
    const int place = k * THREADS + threadIdx.x % THREADS;
    if (FULL || place < vectors) visit(k, place);
  }
}

// The sum over the row, the same in every thread: shuffles within each warp, then one exchange through shared memory.
// `partial` is WARPS floats that no earlier call has used, so one barrier is enough.
__device__ __forceinline__ float row_sum(float value, float* partial) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(~0u, value, offset);
  if constexpr (WARPS == 1) return value;
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  value = 0.0f;
#pragma unroll
  for (int warp = 0; warp < WARPS; ++warp) value += partial[warp];
  return value;
}

// gelu(v) = v (1 + erf(v / sqrt 2)) / 2.
template <typename T>
__device__ __forceinline__ float gelu(float v) {
  if constexpr (sizeof(T) == 4) return 0.5f * v * (1.0f + erff(v * 0.70710678f));
  // For a 16-bit result erff is needlessly exact, and dear enough to cost more than the memory traffic. With q the half
  // of erfc(|v| / sqrt 2), gelu(v) is v - v q for positive v and v q for negative v. q is exp(-v^2 / 2) times a
  // polynomial in t = 1 / (1 + p |v|): Abramowitz and Stegun 7.1.26, good to 1e-7.
  float t, power;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(t) : "f"(fmaf(fabsf(v), 0.23164190f, 1.0f)));
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(v * v * -0.72134752f));
  float q = fmaf(t, 0.53070271f, -0.72657601f);
  q = fmaf(t, q, 0.71070687f);
  q = fmaf(t, q, -0.14224836f);
  q = fmaf(t, q, 0.12741479f);
  q *= t * power;
  return fmaf(-fabsf(v), q, fmaxf(v, 0.0f));
}

template <typename T>
__global__ void __launch_bounds__(ROWS * THREADS, BLOCKS_PER_SM)
    layernorm_gelu(const T* __restrict__ x, const T* __restrict__ weight, const T* __restrict__ bias, T* __restrict__ y,
                   long long rows, int cols, float inverse_cols, float eps) {
  __shared__ float partial[2][WARPS];
  const int vectors = cols / WIDTH;
  const long long row = blockIdx.x * static_cast<long long>(ROWS) + threadIdx.x / THREADS;
  if (row >= rows) return;  // the last block may have fewer rows; whole warps leave, and they wait for nobody
  const long long start = row * cols;
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
  const float mean = row_sum(sum, partial[0]) * inverse_cols;

  // Squares of differences from the mean: as the row is at hand, there is no need for the cancelling E[x^2] - mean^2.
  float squares = 0.0f;
  for_each_vector(vectors, [&](int k, int) {
    for (int i = 0; i < WIDTH; ++i) {
      const float difference = static_cast<float>(held[k].at[i]) - mean;
      squares += difference * difference;
    }
  });
  const float scale = rsqrtf(row_sum(squares, partial[1]) * inverse_cols + eps);

  for_each_vector(vectors, [&](int k, int place) {
    const Vector<T> w = weights[place];
    const Vector<T> b = biases[place];
    Vector<T> result;
    for (int i = 0; i < WIDTH; ++i) {
      const float normal = (static_cast<float>(held[k].at[i]) - mean) * scale;
      result.at[i] = static_cast<T>(gelu<T>(normal * static_cast<float>(w.at[i]) + static_cast<float>(b.at[i])));
    }
    target[place] = result;
  });
}
