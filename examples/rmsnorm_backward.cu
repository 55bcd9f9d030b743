// The gradients of rmsnorm.cu, from x alone: the mean of the squares is found again while the row is at hand.
//
// With r = 1 / sqrt(mean(x^2) + eps) and g = grad_y * weight:  grad_x = r * (g - x * r^2 * mean(g * x)),  and
// grad_weight is the sum over rows of grad_y * x * r. A block walks over rows and keeps, for its columns, the sums for
// grad_weight in registers; the next row is on its way while this one is reduced. A second kernel adds the blocks' sums,
// always in the same order.

//! op      rmsnorm_backward(grad_y, x, weight, eps: float = 1e-6) -> grad_x, grad_weight
//! out     grad_x: x.dtype[x.shape]
//! out     grad_weight: weight.dtype[weight.shape]
//! let     cols = x.shape[-1], rows = prod(x.shape[:-1])
//! need    x.dtype in [f16, bf16] and weight.dtype == x.dtype and grad_y.dtype == x.dtype
//! need    cols > 0 and weight.shape == [cols] and grad_y.shape == x.shape and cols % 8 == 0
//! tune    WARPS = 8 | 4 | 16                              # warps that share a row
//! tune    BLOCKS_PER_SM = 2 | 1 | 4
//! const   VECTORS = next_pow2(ceil_div(cols, WARPS * 32 * 8))      # loads of 8 elements per thread
//! const   FULL = cols == WARPS * 32 * 8 * VECTORS
//! need    VECTORS <= 4
//! let     blocks = max(1, min(rows, device.sms * BLOCKS_PER_SM))
//! scratch partial: f32[blocks, cols]
//! launch  rows_of<x.dtype><<<blocks, WARPS * 32>>>(grad_y, x, weight, grad_x, partial, rows, cols, 1.0 / cols, eps)
//! launch  columns_of<x.dtype><<<ceil_div(cols, 32), dim3(32, 16)>>>(partial, grad_weight, blocks, cols)

#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int WIDTH = 8;
constexpr int THREADS = WARPS * 32;

template <typename T>
struct alignas(WIDTH * sizeof(T)) Vector {
  T at[WIDTH];
};

// Both sums of a row at once. Two sets of partial sums take turns, so one barrier a row is enough.
__device__ float2 block_sums(float2 value, int turn) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    value.x += __shfl_xor_sync(~0u, value.x, offset);
    value.y += __shfl_xor_sync(~0u, value.y, offset);
  }
  __shared__ float2 sums[2][WARPS];
  if (threadIdx.x % 32 == 0) sums[turn][threadIdx.x / 32] = value;
  __syncthreads();
  value = make_float2(0.0f, 0.0f);
#pragma unroll
  for (int warp = 0; warp < WARPS; ++warp) {
    value.x += sums[turn][warp].x;
    value.y += sums[turn][warp].y;
  }
  return value;
}

template <typename T>
__device__ void load(Vector<T> (&held)[VECTORS], const T* row, int vectors) {
#pragma unroll
  for (int k = 0; k < VECTORS; ++k) {
    const int place = k * THREADS + threadIdx.x;
    if (FULL || place < vectors) held[k] = reinterpret_cast<const Vector<T>*>(row)[place];
  }
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    rows_of(const T* __restrict__ grad_y, const T* __restrict__ x, const T* __restrict__ weight,
            T* __restrict__ grad_x, float* __restrict__ partial, int rows, int cols, float inverse_cols, float eps) {
  const int vectors = cols / WIDTH;
  Vector<T> w[VECTORS], value[VECTORS], gradient[VECTORS];
  float sums[VECTORS][WIDTH] = {};
  load(w, weight, vectors);
  if (blockIdx.x < rows) {
    load(value, x + blockIdx.x * static_cast<long long>(cols), vectors);
    load(gradient, grad_y + blockIdx.x * static_cast<long long>(cols), vectors);
  }
  int turn = 0;
  for (long long row = blockIdx.x; row < rows; row += gridDim.x, turn ^= 1) {
    Vector<T> next_value[VECTORS], next_gradient[VECTORS];
    if (row + gridDim.x < rows) {
      load(next_value, x + (row + gridDim.x) * cols, vectors);
      load(next_gradient, grad_y + (row + gridDim.x) * cols, vectors);
    }
    float2 both = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int k = 0; k < VECTORS; ++k) {
      if (FULL || k * THREADS + threadIdx.x < vectors) {
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) {
          const float at = static_cast<float>(value[k].at[i]);
          both.x += at * at;
          both.y += at * static_cast<float>(gradient[k].at[i]) * static_cast<float>(w[k].at[i]);
        }
      }
    }
    both = block_sums(both, turn);
    const float scale = rsqrtf(both.x * inverse_cols + eps);
    const float along = both.y * inverse_cols * scale * scale;
#pragma unroll
    for (int k = 0; k < VECTORS; ++k) {
      const int place = k * THREADS + threadIdx.x;
      if (FULL || place < vectors) {
        Vector<T> result;
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) {
          const float at = static_cast<float>(value[k].at[i]), arriving = static_cast<float>(gradient[k].at[i]);
          sums[k][i] += arriving * at * scale;
          result.at[i] = static_cast<T>(scale * (arriving * static_cast<float>(w[k].at[i]) - at * along));
        }
        reinterpret_cast<Vector<T>*>(grad_x + row * cols)[place] = result;
      }
      value[k] = next_value[k];
      gradient[k] = next_gradient[k];
    }
  }
#pragma unroll
  for (int k = 0; k < VECTORS; ++k) {
    const int place = k * THREADS + threadIdx.x;
    if (FULL || place < vectors) {
      float4* target = reinterpret_cast<float4*>(partial + blockIdx.x * static_cast<long long>(cols) + place * WIDTH);
      target[0] = make_float4(sums[k][0], sums[k][1], sums[k][2], sums[k][3]);
      target[1] = make_float4(sums[k][4], sums[k][5], sums[k][6], sums[k][7]);
    }
  }
}

template <typename T>
__global__ void columns_of(const float* __restrict__ partial, T* __restrict__ grad_weight, int blocks, int cols) {
  const int column = blockIdx.x * 32 + threadIdx.x;
  float sum = 0.0f;
  if (column < cols) {
#pragma unroll 4
    for (int block = threadIdx.y; block < blocks; block += 16) sum += partial[block * static_cast<long long>(cols) + column];
  }
  __shared__ float sums[16][32];
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y == 0 && column < cols) {
#pragma unroll
    for (int other = 1; other < 16; ++other) sum += sums[other][threadIdx.x];
    grad_weight[column] = static_cast<T>(sum);
  }
}
