// The sum of a whole tensor, finished by whichever block happens to be last.
//
// Blocks cannot wait for each other in an ordinary launch, but the last to finish can know that it is the last: each
// block publishes its partial sum and takes a ticket, and the block that draws the highest ticket adds the partial
// sums. It adds them by their number, not in the order of arrival, so the result has the same bits on every run. The
// ticket is a `counter`: zero when the call starts, and set back to zero by the last block.

//! op      grid_sum(x) -> y
//! out     y: f32[]
//! need    x.dtype in [f32, f16, bf16]
//! tune    THREADS = 512 | 256 | 1024
//! tune    CHUNK = 32768 | 65536 | 131072                  # most elements per block
//! let     n = x.numel, spread = round_up(max(ceil_div(n, device.sms * 2), 1), THREADS * 8)
//! let     chunk = min(spread, CHUNK)                      # a small tensor is spread over all multiprocessors
//! let     blocks = max(ceil_div(n, chunk), 1)             # an empty tensor has a sum too
//! scratch partial: f64[blocks]
//! scratch ticket: i32[1] counter
//! launch  grid_sum<x.dtype><<<blocks, THREADS>>>(x, partial, ticket, y, n, chunk)

#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int WARPS = THREADS / 32;
static_assert(CHUNK % (THREADS * 8) == 0, "a block's first element starts a 16-byte vector");

template <typename T>
struct alignas(16) Vector {
  static constexpr int WIDTH = 16 / sizeof(T);
  T at[WIDTH];
};

// The sum over the block, in thread 0.
__device__ double block_sum(double value) {
  __shared__ double of_warps[WARPS];
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_down_sync(~0u, value, offset);
  __syncthreads();  // an earlier call may still be reading
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  double sum = 0.0;
  if (threadIdx.x == 0) {
    for (int warp = 0; warp < WARPS; ++warp) sum += of_warps[warp];
  }
  return sum;
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    grid_sum(const T* __restrict__ x, double* partial, int* ticket, float* __restrict__ y, long long n, int chunk) {
  constexpr int WIDTH = Vector<T>::WIDTH;
  const long long first = blockIdx.x * static_cast<long long>(chunk);
  const int count = static_cast<int>(min(static_cast<long long>(chunk), n - first));
  const int vectors = count / WIDTH;
  const auto* source = reinterpret_cast<const Vector<T>*>(x + first);

  float running[WIDTH] = {};
#pragma unroll 4
  for (int place = threadIdx.x; place < vectors; place += THREADS) {
    const Vector<T> loaded = source[place];
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) running[i] += static_cast<float>(loaded.at[i]);
  }
  // Only the last block can have elements left over, fewer than one vector of them.
  const int left_over = vectors * WIDTH + threadIdx.x;
  if (left_over < count) running[0] += static_cast<float>(x[first + left_over]);

  double of_thread = 0.0;
#pragma unroll
  for (int i = 0; i < WIDTH; ++i) of_thread += running[i];
  const double of_block = block_sum(of_thread);

  __shared__ bool is_last;
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = of_block;
    __threadfence();  // whoever sees the ticket sees the partial sum
    is_last = atomicAdd(ticket, 1) == static_cast<int>(gridDim.x) - 1;
  }
  __syncthreads();
  if (!is_last) return;

  __threadfence();  // all partial sums are read after the last ticket was drawn
  double total = 0.0;
  for (unsigned block = threadIdx.x; block < gridDim.x; block += THREADS) total += __ldcg(partial + block);
  total = block_sum(total);
  if (threadIdx.x == 0) {
    *y = static_cast<float>(total);
    atomicExch(ticket, 0);
  }
}
