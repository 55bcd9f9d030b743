// LayerNorm over the last dimension, one block per row: for rows too long for the single warp of layernorm.cu.
//
// The same op in another file: given as a list, the first file whose `need` holds is used. Here the row goes straight
// into shared memory, by asynchronous copies that need no registers. A multiprocessor holds several rows at a time:
// while one block reduces, the others load. The variance is again that of differences from the mean, and the warps of a
// block add their sums through shared memory.

//! op      layernorm(x, weight, bias, eps: float = 1e-5) -> y
//! out     y: x.dtype[x.shape]
//! let     cols = x.shape[-1], rows = prod(x.shape[:-1])
//! need    x.dtype in [f32, f16, bf16] and weight.dtype == x.dtype and bias.dtype == x.dtype
//! need    cols > 0 and weight.shape == [cols] and bias.shape == [cols]
//! tune    ROWS = 2 | 1 | 4                                # that a block normalises together: weight and bias are loaded once
//! tune    THREADS = 512 | 256 | 1024 | 128
//! const   WIDTH = 16 / x.itemsize if cols % (16 / x.itemsize) == 0 else 1   # elements per load
//! need    THREADS == 128 or THREADS * 4 <= cols / WIDTH    # short rows, small blocks
//! let     row_bytes = round_up(cols * x.itemsize, 16), smem = ROWS * row_bytes
//! need    smem + 1024 <= device.smem_block                # 1024: more than the static shared memory below
//! need    ROWS == 1 or 3 * smem <= device.smem_sm         # several blocks on a multiprocessor
//! launch  layernorm_wide<x.dtype><<<ceil_div(rows, ROWS), THREADS, smem>>>(
//!             x, weight, bias, y, rows, cols, row_bytes / 16, 1.0 / cols, eps)

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_pipeline.h>

constexpr int WARPS = THREADS / 32;

template <typename T>
struct alignas(WIDTH * sizeof(T)) Vector {
  T at[WIDTH];
};

// The sums over the block of ROWS values, the same in every thread. `partial` is memory that no earlier call has used:
// so each call needs one barrier instead of two.
__device__ void block_sums(float (&value)[ROWS], float (&partial)[WARPS][ROWS]) {
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value[r] += __shfl_xor_sync(~0u, value[r], offset);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32][r] = value[r];
    value[r] = 0.0f;
  }
  __syncthreads();
#pragma unroll
  for (int warp = 0; warp < WARPS; ++warp) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) value[r] += partial[warp][r];
  }
}

template <typename T>
__global__ void __launch_bounds__(THREADS, 1024 / THREADS)
    layernorm_wide(const T* __restrict__ x, const T* __restrict__ weight, const T* __restrict__ bias, T* __restrict__ y,
                   long long rows, int cols, int pitch, float inverse_cols, float eps) {
  extern __shared__ uint4 dynamic[];
  __shared__ float partial[2][WARPS][ROWS];
  const int vectors = cols / WIDTH;
  const long long first_row = blockIdx.x * static_cast<long long>(ROWS), start = first_row * vectors;
  const int block_rows = static_cast<int>(min(rows - first_row, static_cast<long long>(ROWS)));
  const auto* source = reinterpret_cast<const Vector<T>*>(x) + start;
  auto* target = reinterpret_cast<Vector<T>*>(y) + start;
  Vector<T>* held[ROWS];  // the rows; a thread only ever reads what it copied itself, so there is no barrier
#pragma unroll
  for (int r = 0; r < ROWS; ++r) held[r] = reinterpret_cast<Vector<T>*>(dynamic + r * pitch);

#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    if (ROWS > 1 && r >= block_rows) break;
#pragma unroll 4
    for (int place = threadIdx.x; place < vectors; place += THREADS) {
      if constexpr (sizeof(Vector<T>) >= 4) {
        __pipeline_memcpy_async(held[r] + place, source + r * static_cast<long long>(vectors) + place, sizeof(Vector<T>));
      } else {
        held[r][place] = source[r * static_cast<long long>(vectors) + place];  // too small for an asynchronous copy
      }
    }
  }
  __pipeline_commit();
  __pipeline_wait_prior(0);

  float mean[ROWS] = {}, scale[ROWS] = {};
#pragma unroll 2
  for (int place = threadIdx.x; place < vectors; place += THREADS) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      if (ROWS > 1 && r >= block_rows) break;  // the last block may have fewer rows
      const Vector<T> v = held[r][place];
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) mean[r] += static_cast<float>(v.at[i]);
    }
  }
  block_sums(mean, partial[0]);
#pragma unroll
  for (int r = 0; r < ROWS; ++r) mean[r] *= inverse_cols;

#pragma unroll 2
  for (int place = threadIdx.x; place < vectors; place += THREADS) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      if (ROWS > 1 && r >= block_rows) break;  // the last block may have fewer rows
      const Vector<T> v = held[r][place];
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) {
        const float difference = static_cast<float>(v.at[i]) - mean[r];
        scale[r] += difference * difference;
      }
    }
  }
  block_sums(scale, partial[1]);
#pragma unroll
  for (int r = 0; r < ROWS; ++r) scale[r] = rsqrtf(scale[r] * inverse_cols + eps);

#pragma unroll 1
  for (int place = threadIdx.x; place < vectors; place += THREADS) {
    const Vector<T> w = reinterpret_cast<const Vector<T>*>(weight)[place];
    const Vector<T> b = reinterpret_cast<const Vector<T>*>(bias)[place];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      if (ROWS > 1 && r >= block_rows) break;  // the last block may have fewer rows
      const Vector<T> v = held[r][place];
      Vector<T> result;
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) {
        const float normal = (static_cast<float>(v.at[i]) - mean[r]) * scale[r];
        result.at[i] = static_cast<T>(normal * static_cast<float>(w.at[i]) + static_cast<float>(b.at[i]));
      }
      target[r * static_cast<long long>(vectors) + place] = result;
    }
  }
}
