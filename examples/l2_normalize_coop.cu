// y = x / max(|x|, eps), where |x| is the Euclidean norm of the whole tensor, in one cooperative launch.
//
// No element can be scaled before all have been read, so the grid needs a barrier. In a `cooperative` launch all blocks
// are resident at once and may wait for each other: the grid is exactly what the device holds, PER_SM blocks on each
// multiprocessor, and every thread walks the tensor by the size of the grid. What it read first it keeps in shared
// memory, KEPT vectors of it, and need not read again; a tensor of up to about 25 MB is so read only once. The rest is
// walked backwards the second time, to begin with what the first walk left in the L2 cache. Partial sums are added in a
// fixed order by every block for itself.

//! op      l2_normalize(x, eps: float = 1e-12) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype in [f32, f16, bf16]
//! tune    THREADS = 512 | 1024 | 256
//! tune    PER_SM = 2 | 1
//! tune    BATCH = 4 | 8 | 2                               # loads of a thread that are in flight together
//! need    THREADS * PER_SM <= 1024                        # resident on every device
//! let     blocks = device.sms * PER_SM
//! const   KEPT = (device.smem_sm / PER_SM - 2048) / (THREADS * 16)
//! let     smem = KEPT * THREADS * 16
//! scratch partial: f64[blocks]
//! launch  l2_normalize<x.dtype><<<blocks, THREADS, smem>>>(x, partial, y, x.numel, eps) cooperative

#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int WARPS = THREADS / 32;

template <typename T>
struct alignas(16) Vector {
  static constexpr int WIDTH = 16 / sizeof(T);
  T at[WIDTH];
};

// The sum over the block, the same in every thread.
__device__ double block_sum(double value) {
  __shared__ double of_warps[WARPS];
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(~0u, value, offset);
  __syncthreads();  // an earlier call may still be reading
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  value = 0.0;
#pragma unroll
  for (int warp = 0; warp < WARPS; ++warp) value += of_warps[warp];
  return value;
}

template <typename T>
__global__ void __launch_bounds__(THREADS, PER_SM)
    l2_normalize(const T* __restrict__ x, double* partial, T* __restrict__ y, long long n, float eps) {
  constexpr int WIDTH = Vector<T>::WIDTH;
  const auto* source = reinterpret_cast<const Vector<T>*>(x);
  auto* target = reinterpret_cast<Vector<T>*>(y);
  const long long vectors = n / WIDTH;
  const long long stride = static_cast<long long>(gridDim.x) * THREADS;
  const long long thread = blockIdx.x * static_cast<long long>(THREADS) + threadIdx.x;
  // The elements after the last whole vector, fewer than WIDTH, go one each to the first threads.
  const long long left_over = vectors * WIDTH + thread;

  // This thread's vectors are number 0 to count - 1.
  const int count = static_cast<int>((vectors - thread + stride - 1) / stride);
  extern __shared__ uint4 dynamic[];
  auto* kept = reinterpret_cast<Vector<T>*>(dynamic) + threadIdx.x;

  float squares[WIDTH] = {};
#pragma unroll 1
  for (int first = 0; first < count; first += BATCH) {
    Vector<T> loaded[BATCH] = {};
#pragma unroll
    for (int k = 0; k < BATCH; ++k) {
      if (first + k < count) loaded[k] = source[thread + (first + k) * stride];
    }
#pragma unroll
    for (int k = 0; k < BATCH; ++k) {
      if (first + k < min(count, KEPT)) kept[(first + k) * THREADS] = loaded[k];
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) {
        const float value = static_cast<float>(loaded[k].at[i]);
        squares[i] += value * value;
      }
    }
  }
  if (left_over < n) {
    const float value = static_cast<float>(x[left_over]);
    squares[0] += value * value;
  }
  double of_thread = 0.0;
#pragma unroll
  for (int i = 0; i < WIDTH; ++i) of_thread += squares[i];
  const double of_block = block_sum(of_thread);
  if (threadIdx.x == 0) partial[blockIdx.x] = of_block;

  cooperative_groups::this_grid().sync();

  double total = 0.0;
  for (unsigned block = threadIdx.x; block < gridDim.x; block += THREADS) total += partial[block];
  const double norm = sqrt(block_sum(total));
  const float scale = static_cast<float>(1.0 / max(norm, static_cast<double>(eps)));

  auto store_scaled = [&](int number, Vector<T> v) {
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) v.at[i] = static_cast<T>(static_cast<float>(v.at[i]) * scale);
    target[thread + number * stride] = v;
  };
#pragma unroll 1
  for (int last = count - 1; last >= KEPT; last -= BATCH) {
    Vector<T> loaded[BATCH];
#pragma unroll
    for (int k = 0; k < BATCH; ++k) {
      if (last - k >= KEPT) loaded[k] = source[thread + (last - k) * stride];
    }
#pragma unroll
    for (int k = 0; k < BATCH; ++k) {
      if (last - k >= KEPT) store_scaled(last - k, loaded[k]);
    }
  }
  for (int number = 0; number < min(count, KEPT); ++number) store_scaled(number, kept[number * THREADS]);
  if (left_over < n) y[left_over] = static_cast<T>(static_cast<float>(x[left_over]) * scale);
}
