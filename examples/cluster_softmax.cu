// Softmax over very long rows: a row is shared by the blocks of a cluster, and read from memory once.
//
// A row of a million elements fits no single multiprocessor, and blocks of an ordinary launch cannot talk. The blocks
// of a cluster run at the same time on neighbouring multiprocessors and can read each other's shared memory. Each block
// keeps its share of the row in its own shared memory and finds its own maximum and sum of exponentials. Shares are small
// enough for several blocks on a multiprocessor: while one computes, another loads. The pairs of maximum and sum are
// exchanged once, and combined: a sum taken relative to one maximum becomes one relative to another by the factor
// exp(one - another).

//! op      softmax(x) -> y
//! out     y: x.dtype[x.shape]
//! let     cols = x.shape[-1], rows = prod(x.shape[:-1]), width = 16 / x.itemsize
//! need    device.cc >= 90 and x.dtype in [f32, f16, bf16] and cols > 0 and cols % width == 0
//! tune    BLOCKS = 8 | 4 | 2 | 16                         # per cluster
//! tune    THREADS = 256 | 128 | 512 | 1024
//! tune    BATCH = 4 | 8                                   # loads of a thread that are in flight together
//! let     vectors = cols / width, share = ceil_div(vectors, BLOCKS)
//! need    share * 16 + 1024 <= device.smem_block          # 1 KiB is more than the static shared memory below
//! need    BLOCKS <= 8 or device.cc in [90, 100, 103]      # 16 are not available everywhere
//! launch  softmax<x.dtype><<<rows * BLOCKS, THREADS, share * 16>>>(x, y, vectors, share) cluster(BLOCKS)

#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace cg = cooperative_groups;

constexpr int WARPS = THREADS / 32;

template <typename T>
struct alignas(16) Vector {
  static constexpr int WIDTH = 16 / sizeof(T);
  T at[WIDTH];
};

// exp(value). The quick form is a few units off in the last places of an f32, which a 16-bit result does not have.
template <typename T>
__device__ __forceinline__ float exponential(float value) {
  if constexpr (sizeof(T) == 4) return expf(value);
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(value * 1.44269504f));
  return power;
}

struct Part {
  float greatest;  // the maximum of some elements
  float sum;       // the sum of their exponentials, relative to that maximum
};

// An exponent to be relative to that is never infinite: relative to -inf, exp(-inf) would be NaN and not 0.
__device__ float finite_or_zero(float greatest) { return greatest == -INFINITY ? 0.0f : greatest; }

struct Maximum {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

struct Sum {
  __device__ float operator()(float a, float b) const { return a + b; }
};

// The values of all threads of the block combined, the same in every thread. `partial` is WARPS floats of its own.
template <typename Combine>
__device__ float block_reduce(float value, float* partial, Combine combine) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value = combine(value, __shfl_xor_sync(~0u, value, offset));
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  value = partial[0];
#pragma unroll
  for (int warp = 1; warp < WARPS; ++warp) value = combine(value, partial[warp]);
  return value;
}

template <typename T>
__global__ void __launch_bounds__(THREADS) softmax(const T* __restrict__ x, T* __restrict__ y, int vectors, int share) {
  constexpr int WIDTH = Vector<T>::WIDTH;
  extern __shared__ uint4 dynamic[];
  __shared__ float partial[2][WARPS];
  __shared__ Part own;

  const cg::cluster_group cluster = cg::this_cluster();
  const int first = cluster.block_rank() * share;
  const int count = max(min(share, vectors - first), 0);  // the last blocks may have less, or nothing
  const long long start = static_cast<long long>(blockIdx.x / BLOCKS) * vectors + first;
  const auto* source = reinterpret_cast<const Vector<T>*>(x) + start;
  auto* target = reinterpret_cast<Vector<T>*>(y) + start;
  auto* held = reinterpret_cast<Vector<T>*>(dynamic);

  // A thread only ever reads back the vectors it wrote itself, so no barrier is needed around `held`.
  float greatest = -INFINITY;
#pragma unroll 1
  for (int place = threadIdx.x; place < count; place += BATCH * THREADS) {
    Vector<T> loaded[BATCH];  // in flight together
#pragma unroll
    for (int k = 0; k < BATCH; ++k) {
      if (place + k * THREADS < count) loaded[k] = source[place + k * THREADS];
    }
#pragma unroll
    for (int k = 0; k < BATCH; ++k) {
      if (place + k * THREADS < count) {
        held[place + k * THREADS] = loaded[k];
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) greatest = fmaxf(greatest, static_cast<float>(loaded[k].at[i]));
      }
    }
  }
  greatest = block_reduce(greatest, partial[0], Maximum{});

  float sum = 0.0f;
  const float own_zero = finite_or_zero(greatest);
#pragma unroll 2
  for (int place = threadIdx.x; place < count; place += THREADS) {
    const Vector<T> loaded = held[place];
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) sum += exponential<T>(static_cast<float>(loaded.at[i]) - own_zero);
  }
  sum = block_reduce(sum, partial[1], Sum{});

  if (threadIdx.x == 0) own = {greatest, sum};
  cluster.sync();  // every block's part is written
  Part parts[BLOCKS];
#pragma unroll
  for (int rank = 0; rank < BLOCKS; ++rank) parts[rank] = *cluster.map_shared_rank(&own, rank);
  cluster.barrier_arrive();  // this block has read its peers' shared memory

  float row_greatest = -INFINITY;
#pragma unroll
  for (int rank = 0; rank < BLOCKS; ++rank) row_greatest = fmaxf(row_greatest, parts[rank].greatest);
  float row_sum = 0.0f;
#pragma unroll
  for (int rank = 0; rank < BLOCKS; ++rank) row_sum += parts[rank].sum * expf(parts[rank].greatest - row_greatest);
  const float inverse = 1.0f / row_sum;

#pragma unroll 2
  for (int place = threadIdx.x; place < count; place += THREADS) {
    Vector<T> result = held[place];
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
      result.at[i] = static_cast<T>(exponential<T>(static_cast<float>(result.at[i]) - row_greatest) * inverse);
    }
    target[place] = result;
  }
  cluster.barrier_wait();  // a block must not end while a peer may still read its shared memory
}
