// Reductions over the lanes of a warp, the threads of a block, the blocks of a cluster or of the grid; the operators.
#pragma once
#include <tilewright/cluster.cuh>
#include <tilewright/shared_memory.cuh>

namespace tw {

// a + b.
// cost: one instruction
// arch: sm_80
struct Sum {
  template <typename T> __device__ __forceinline__ T operator()(T a, T b) const { return a + b; }
};

// The larger of two; NaN where one is, as torch has it.
// cost: two instructions
// arch: sm_80
struct Max {
  template <typename T> __device__ __forceinline__ T operator()(T a, T b) const { return (a != a || a > b) ? a : b; }
};

// The smaller of two; NaN where one is.
// cost: two instructions
// arch: sm_80
struct Min {
  template <typename T> __device__ __forceinline__ T operator()(T a, T b) const { return (a != a || a < b) ? a : b; }
};

// A value and where it stood.
// cost: none
// arch: sm_80
template <typename T> struct Indexed {
  T value;
  long long index;
};

// The larger of two, the earlier of equals; NaN before all, as torch has it.
// cost: about six instructions
// arch: sm_80
struct ArgMax {
  template <typename T> __device__ __forceinline__ Indexed<T> operator()(Indexed<T> a, Indexed<T> b) const {
    const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    const bool tie = a.value == b.value || (a_nan && b_nan);
    return (tie ? a.index < b.index : a_nan || (!b_nan && a.value > b.value)) ? a : b;
  }
};

// The smaller of two, the earlier of equals; NaN before all.
// cost: about six instructions
// arch: sm_80
struct ArgMin {
  template <typename T> __device__ __forceinline__ Indexed<T> operator()(Indexed<T> a, Indexed<T> b) const {
    const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    const bool tie = a.value == b.value || (a_nan && b_nan);
    return (tie ? a.index < b.index : a_nan || (!b_nan && a.value < b.value)) ? a : b;
  }
};

// Two values reduced at once, each by its own operator.
// cost: that of both
// arch: sm_80
template <typename A, typename B> struct Pair {
  A first;
  B second;
};

// The operator of pairs.
// cost: that of both
// arch: sm_80
template <typename First, typename Second> struct PairOf {
  template <typename A, typename B> __device__ __forceinline__ Pair<A, B> operator()(Pair<A, B> a, Pair<A, B> b) const {
    return {First{}(a.first, b.first), Second{}(a.second, b.second)};
  }
};

// What the lane whose number differs by `distance` in exclusive-or holds; T is any plain type.
// cost: one shuffle per 4 bytes of T
// arch: sm_80
template <typename T> __device__ __forceinline__ T shuffle_xor(T value, int distance) {
  uint32_t words[(sizeof(T) + 3) / 4] = {};
  memcpy(words, &value, sizeof(T));
#pragma unroll
  for (int i = 0; i < (sizeof(T) + 3) / 4; ++i) words[i] = __shfl_xor_sync(0xffffffffu, words[i], distance);
  memcpy(&value, words, sizeof(T));
  return value;
}

// The reduction over LANES neighbouring lanes, a power of two up to 32; every one of them gets it. All 32 lanes call it.
// cost: log2(LANES) shuffles
// arch: sm_80
template <int LANES, typename T, typename Op> __device__ __forceinline__ T warp_reduce(T value, Op op) {
#pragma unroll
  for (int distance = LANES / 2; distance > 0; distance /= 2) value = op(value, shuffle_xor(value, distance));
  return value;
}

// The reduction over LANES neighbouring threads, a power of two up to 1024: a team, of which a block holds one or more.
// Every one of them gets it. `partial`, where LANES is over 32: shared memory for one T per warp of the block, which no
// thread still reads; calls in turn need two of them, or a __syncthreads between. All threads of the block call it.
// cost: warp_reduce twice, and one __syncthreads where LANES is over 32
// arch: sm_80
template <int LANES, typename T, typename Op> __device__ __forceinline__ T team_reduce(T value, Op op, T* partial) {
  value = warp_reduce<LANES < 32 ? LANES : 32>(value, op);
  if constexpr (LANES > 32) {
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
    __syncthreads();  // sync: the warps' values
    value = warp_reduce<LANES / 32>(partial[threadIdx.x / LANES * (LANES / 32) + threadIdx.x % (LANES / 32)], op);
  }
  return value;
}

// The reduction over the blocks of a cluster; every thread of each gets it. All threads of a block call it with the same
// value, their block's. `partial`: shared memory for one T per block of the cluster, for this use only.
// cost: two barriers of the cluster
// arch: sm_90
template <typename T, typename Op> __device__ __forceinline__ T cluster_reduce(T value, Op op, T* partial) {
  const uint32_t blocks = cluster_blocks();
  cluster_sync();  // sync: all blocks run, and have read what the last call gave
  if (threadIdx.x < blocks) *cluster_pointer(partial + cluster_rank(), threadIdx.x) = value;
  cluster_sync();  // sync: the blocks' values
  value = partial[0];
  for (uint32_t block = 1; block < blocks; ++block) value = op(value, partial[block]);
  return value;
}

// Whether this block is the last of `blocks` to come here; then it may read what the others wrote before. `counter` is one
// int of a `counter` scratch, and zero again afterwards. All threads of the block call it.
// cost: two __syncthreads and one atomic, which waits for the block's stores, per block
// arch: sm_80
__device__ __forceinline__ bool is_last_block(unsigned* counter, unsigned blocks) {
  __shared__ bool is_last;
  __syncthreads();  // sync: what all threads of the block wrote
  if (threadIdx.x == 0) {
    unsigned before;  // shows what this block wrote, and what those before it did
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
    is_last = before == blocks - 1;
    if (is_last) *counter = 0;
  }
  __syncthreads();  // sync: whether it is the last
  return is_last;
}

// Reduces the blocks' values, one per block, over `blocks` blocks in a fixed order: the last block to come gets true, and
// the reduction in `value` of each thread. THREADS is the size of a block, `partial` as for `team_reduce`, `partials` a
// scratch of one T per block, `counter` as for `is_last_block`, `identity` what changes nothing.
// cost: that of `is_last_block`; the last block reads all values from L2
// arch: sm_80
template <int THREADS, typename T, typename Op>
__device__ __forceinline__ bool grid_reduce(T& value, Op op, T identity, T* partial, T* partials, unsigned* counter, unsigned blocks) {
  if (threadIdx.x == 0) partials[blockIdx.x] = value;
  if (!is_last_block(counter, blocks)) return false;
  value = identity;
  for (unsigned block = threadIdx.x; block < blocks; block += THREADS) value = op(value, __ldcg(partials + block));
  value = team_reduce<THREADS>(value, op, partial);
  return true;
}

// A word that other blocks write with a release; what they wrote before it can be read after it.
// cost: one read of L2
// arch: sm_80
__device__ __forceinline__ unsigned load_acquire(const unsigned* word) {
  unsigned read;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(read) : "l"(word) : "memory");
  return read;
}

// A barrier of all threads of the grid, whose launch is `cooperative`. `barrier`: one int of a scratch that is `zeroed`.
// cost: one or two microseconds
// arch: sm_80
__device__ __forceinline__ void grid_sync(unsigned* barrier) {
  __syncthreads();  // sync: what all threads of the block wrote
  if (threadIdx.x == 0) {
    // Together the blocks add 2^31: the highest bit turns when the last has come.
    const unsigned share = blockIdx.x == 0 ? 0x80000000u - (gridDim.x - 1) : 1u;
    __threadfence();  // sync: shown to the grid before the count
    const unsigned before = atomicAdd(barrier, share) & 0x80000000u;
    while ((load_acquire(barrier) & 0x80000000u) == before) __nanosleep(20);  // sync: the other blocks
  }
  __syncthreads();  // sync: thread 0 has seen the others
}

// The reduction over the LANES threads that lie ROWS apart in a block of ROWS * LANES: ROWS columns of threads, each by
// itself, for rows whose elements are neighbours across. Every thread gets that of its column. `partial`: shared memory
// for one T per thread, which no thread still reads; calls in turn need two of them, or a __syncthreads between.
// cost: log2(LANES) + 1 barriers and as many reads and writes of shared memory
// arch: sm_80
template <int ROWS, int LANES, typename T, typename Op>
__device__ __forceinline__ T column_reduce(T value, Op op, T* partial) {
  if constexpr (LANES > 1) {
    partial[threadIdx.x] = value;
    __syncthreads();  // sync: the lanes' values
#pragma unroll
    for (int half = LANES / 2; half > 0; half /= 2) {
      if (threadIdx.x < half * ROWS) partial[threadIdx.x] = op(partial[threadIdx.x], partial[threadIdx.x + half * ROWS]);
      __syncthreads();  // sync: half as many values
    }
    value = partial[threadIdx.x % ROWS];
  }
  return value;
}

}  // namespace tw
