//# Pieces of kernels, as text: loads and vectors, how two numbers are combined, and how threads put theirs together.

//@ read_once
extern "C" __device__ void* __nv_associate_access_property(const void*, unsigned long long);

// Says of lines that they are to stay in the L2 cache longest.
__device__ __forceinline__ unsigned long long to_stay() {
  unsigned long long policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Memory that is read once. On Hopper the lines of large tensors are said to stay: what was written makes room for them
// then, and reading and writing take 1.5 to 4 % less time.
template <typename T>
__device__ __forceinline__ const T* read_once(const T* from) {
  if constexpr (ONCE) return static_cast<const T*>(__nv_associate_access_property(from, to_stay()));
  return from;
}

//@ vector
// Elements that move together.
template <typename T>
struct alignas(WIDTH * sizeof(T)) Vector {
  T at[WIDTH];
};

//@ load_past
// A vector that is read once: its line is the first to leave the L2 cache, not what other kernels wrote there.
template <typename V>
__device__ __forceinline__ V load_past(const V* from) {
#if __CUDA_ARCH__ >= 800
  if constexpr (sizeof(V) == 16) {
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    uint4 words;
    asm("ld.global.nc.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
        : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
        : "l"(from), "l"(policy));
    return *reinterpret_cast<const V*>(&words);
  }
#endif
  return *from;
}

//@ repack
// Has the compiler forget what it has unpacked of a vector of small elements: the vector stays as it was loaded, and is
// unpacked again by every sweep. Elements in registers of their own take twice as many, and many spill.
template <typename T>
__device__ __forceinline__ void repack(Vector<T>& vector) {
  if constexpr (sizeof(vector) >= 4 && VECTORS >= 8) {
    auto* words = reinterpret_cast<unsigned*>(&vector);
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(vector) / 4); ++i) asm("" : "+r"(words[i]));
  }
}

//@ candidate
struct Candidate {
  float value;
  int index;

  // A thread meets its elements by rising index, so only a better one replaces; a NaN that is already best stays.
  template <typename Better>
  __device__ __forceinline__ void meet(float met, int place) {
    if (Better::is_better(met, value) && value == value) {
      value = met;
      index = place;
    }
  }
};

//@ shuffle
template <typename T>
__device__ __forceinline__ T from_lane(T value, int offset) {
  return __shfl_xor_sync(~0u, value, offset);
}

//@ shuffle_candidate
__device__ __forceinline__ Candidate from_lane(Candidate one, int offset) {
  return {__shfl_xor_sync(~0u, one.value, offset), __shfl_xor_sync(~0u, one.index, offset)};
}

//@ block_reduce
// The values of all threads of the block combined, the same in every thread: shuffles within each warp, then one
// exchange through shared memory. `partial` has an element for every warp and no other use, so one barrier is enough.
template <typename T, typename Combine>
__device__ __forceinline__ T block_reduce(T value, T* partial, Combine combine) {
  unrolled for (int offset = 16; offset > 0; offset /= 2) value = combine(value, from_lane(value, offset));
  if constexpr (WARPS == 1) return value;
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  value = partial[0];
  unrolled for (int warp = 1; warp < WARPS; ++warp) value = combine(value, partial[warp]);
  return value;
}

//@ lanes_reduce
// The values of the LANES neighbouring lanes that share a row combined, the same in each: no shared memory, no barrier.
template <typename T, typename Combine>
__device__ __forceinline__ T lanes_reduce(T value, Combine combine) {
  unrolled for (int offset = LANES / 2; offset > 0; offset /= 2) value = combine(value, from_lane(value, offset));
  return value;
}

//@ for_each_vector
// Calls `visit(k, place)` for every vector of the row that this thread owns. k is a constant in each unrolled step, so
// arrays indexed by it stay in registers; neighbouring threads own neighbouring vectors, so their loads coalesce.
template <typename Visit>
__device__ __forceinline__ void for_each_vector(int thread, int vectors, Visit visit) {
  unrolled for (int k = 0; k < VECTORS; ++k) {
    const int place = k * THREADS_PER_ROW + thread;
    if (FULL || place < vectors) visit(k, place);
  }
}
