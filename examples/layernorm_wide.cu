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
//! tune    THREADS = 512 | 256 | 1024 | 128
//! const   WIDTH = 16 / x.itemsize if cols % (16 / x.itemsize) == 0 else 1   # elements per load
//! need    THREADS == 128 or THREADS * 2 <= cols / WIDTH    # short rows, small blocks
//! let     row_bytes = round_up(cols * x.itemsize, 16)
//! need    row_bytes + 256 <= device.smem_block            # 256: the static shared memory below
//! launch  layernorm_wide<x.dtype><<<rows, THREADS, row_bytes>>>(x, weight, bias, y, cols, 1.0 / cols, eps)

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_pipeline.h>

constexpr int WARPS = THREADS / 32;

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
__global__ void __launch_bounds__(THREADS, 1024 / THREADS)
    layernorm_wide(const T* __restrict__ x, const T* __restrict__ weight, const T* __restrict__ bias, T* __restrict__ y,
                   int cols, float inverse_cols, float eps) {
  extern __shared__ uint4 dynamic[];
  __shared__ float partial[2][WARPS];
  const int vectors = cols / WIDTH;
  const long long start = blockIdx.x * static_cast<long long>(cols);
  const auto* source = reinterpret_cast<const Vector<T>*>(x + start);
  auto* target = reinterpret_cast<Vector<T>*>(y + start);
  auto* held = reinterpret_cast<Vector<T>*>(dynamic);  // a thread only ever reads what it copied itself: no barrier

#pragma unroll 4
  for (int place = threadIdx.x; place < vectors; place += THREADS) {
    if constexpr (sizeof(Vector<T>) >= 4) {
      __pipeline_memcpy_async(held + place, source + place, sizeof(Vector<T>));
    } else {
      held[place] = source[place];  // too small for an asynchronous copy
    }
  }
  __pipeline_commit();
  __pipeline_wait_prior(0);

  float sum = 0.0f;
#pragma unroll 2
  for (int place = threadIdx.x; place < vectors; place += THREADS) {
    const Vector<T> v = held[place];
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) sum += static_cast<float>(v.at[i]);
  }
  const float mean = block_sum(sum, partial[0]) * inverse_cols;

  float squares = 0.0f;
#pragma unroll 2
  for (int place = threadIdx.x; place < vectors; place += THREADS) {
    const Vector<T> v = held[place];
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
      const float difference = static_cast<float>(v.at[i]) - mean;
      squares += difference * difference;
    }
  }
  const float scale = rsqrtf(block_sum(squares, partial[1]) * inverse_cols + eps);

#pragma unroll 1
  for (int place = threadIdx.x; place < vectors; place += THREADS) {
    const Vector<T> w = reinterpret_cast<const Vector<T>*>(weight)[place];
    const Vector<T> b = reinterpret_cast<const Vector<T>*>(bias)[place];
    const Vector<T> v = held[place];
    Vector<T> result;
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
      const float normal = (static_cast<float>(v.at[i]) - mean) * scale;
      result.at[i] = static_cast<T>(normal * static_cast<float>(w.at[i]) + static_cast<float>(b.at[i]));
    }
    target[place] = result;
  }
}
