// y = x / max(|x|, eps), where |x| is the Euclidean norm of the whole tensor, in one cooperative launch.
//
// No element can be scaled before all have been read, so the grid needs a barrier. In a `cooperative` launch all blocks
// are resident at once and may wait for each other: the grid is exactly what the device holds, PER_SM blocks on each
// multiprocessor, and every thread walks the tensor by the size of the grid. The second walk goes backwards, so that it
// begins with what the first left in the L2 cache. Partial sums are added in a fixed order by every block for itself.

//! op      l2_normalize(x, eps: float = 1e-12) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype in [f32, f16, bf16]
//! tune    THREADS = 512 | 256 | 1024
//! tune    PER_SM = 2 | 1 | 4
//! need    THREADS * PER_SM <= 1024                        # resident on every device
//! let     blocks = device.sms * PER_SM
//! scratch partial: f64[blocks]
//! launch  l2_normalize<x.dtype><<<blocks, THREADS>>>(x, partial, y, x.numel, eps) cooperative

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

  float squares[WIDTH] = {};
#pragma unroll 4
  for (long long place = thread; place < vectors; place += stride) {
    const Vector<T> loaded = source[place];
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
      const float value = static_cast<float>(loaded.at[i]);
      squares[i] += value * value;
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

  const long long last = vectors - 1;
#pragma unroll 4
  for (long long back = thread; back < vectors; back += stride) {
    Vector<T> v = source[last - back];
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) v.at[i] = static_cast<T>(static_cast<float>(v.at[i]) * scale);
    target[last - back] = v;
  }
  if (left_over < n) y[left_over] = static_cast<T>(static_cast<float>(x[left_over]) * scale);
}
