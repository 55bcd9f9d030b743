//# Long rows one after the other: a row in registers, and the next one already on its way to shared memory.

//@ copy
// Where vectors are copied to. The address is every thread's own, for all that the compiler knows: with a part of it
// that a warp has in common, CUDA 13.0 writes copies with a policy as instructions that do not exist.
template <typename T>
struct Ahead {
  T* to;
  unsigned address;

  __device__ explicit Ahead(T* room) : to(room) {
    address = __shfl_sync(~0u, static_cast<unsigned>(__cvta_generic_to_shared(room)), 0);
  }
  // Brings a vector while the thread does other things.
  __device__ __forceinline__ void copy(int place, const T* from) const {
    if constexpr (ONCE && sizeof(T) == 16) {
      asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(address + place * 16),
                   "l"(from), "l"(to_stay())
                   : "memory");
    } else if constexpr (sizeof(T) >= 4) {
      __pipeline_memcpy_async(to + place, from, sizeof(T));
    } else {
      to[place] = *from;  // too small for an asynchronous copy
    }
  }
};

//@ division
// How a row that begins anywhere is divided: elements before a 128-byte line of memory, whole vectors from there on,
// and the elements that are left. The first block has those at both ends, one to a thread.
struct Division {
  int head, vectors;

  __device__ Division(long long row, int cols) {
    head = min(static_cast<int>((LINE - row * cols % LINE) % LINE), cols);
    vectors = (cols - head) / WIDTH;
  }
  // Where the thread's own element of the ends is; beyond the row where it has none.
  __device__ int end_column() const { return threadIdx.x < head ? threadIdx.x : threadIdx.x + vectors * WIDTH; }
  // How many vectors, and how many elements, a block has.
  __device__ int vectors_of(int block, int share) const { return max(min(share, vectors - block * share), 0); }
  __device__ int elements(int block, int share, int cols) const {
    return vectors_of(block, share) * WIDTH + (block == 0 ? cols - vectors * WIDTH : 0);
  }
};
