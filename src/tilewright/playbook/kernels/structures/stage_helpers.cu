//# What rows in stages have in common: device functions as text, and what shares of a row come to.

//@ ring
// Sends for bytes, which come to shared memory by themselves and are counted there.
__device__ __forceinline__ void bring(void* to, const void* from, int bytes, unsigned long long* barrier) {
  const unsigned target = shared_address(to), counted = shared_address(barrier);
  if constexpr (ONCE) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;" ::"r"(target), "l"(from), "r"(bytes), "r"(counted), "l"(to_stay())
                 : "memory");
  } else {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(target), "l"(from), "r"(bytes), "r"(counted)
                 : "memory");
  }
}

__device__ __forceinline__ void arrive(unsigned long long* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Waits for warps of the same block, or for bytes.
__device__ __forceinline__ void await_own(unsigned long long* barrier, int phase) {
  asm volatile("{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra AGAIN; }" ::"r"(
                   shared_address(barrier)),
               "r"(phase)
               : "memory");
}

// A place in the ring of stages, and how often the ring has been gone through, of which barriers know the last bit.
struct Place {
  int stage, phase;

  __device__ void advance() {
    if (++stage == STAGES) stage = 0, phase ^= 1;
  }
};

//@ moments
// What sums are moved by: nothing where the mean is so large that as many of it overflow, or is infinite. Then the sum
// may still be a number, or be infinite, which two infinities do not give; and squares overflow in any case.
__device__ __forceinline__ float pivot_of(float mean) { return fabsf(mean) < 0x1p96f ? mean : 0.0f; }

// Of lanes that have elements the first is one.
__device__ __forceinline__ float mean_of_first_lane(float sum, float count) {
  return pivot_of(__shfl_sync(~0u, __fdividef(sum, fmaxf(count, 1.0f)), 0));
}

// What is to be put together of sums and of squares about their own means: about one of these at first.
struct Moments {
  float pivot, first = 0.0f, squares = 0.0f;

  __device__ void add(float sum, float about_own, float count) {
    const float difference = __fdividef(sum, fmaxf(count, 1.0f)) - pivot, moved = count * difference;
    first += moved;
    squares += fmaf(moved, difference, about_own);
  }
  // What all lanes of the warp have, of `count` elements: their sum, and squares about their mean.
  __device__ void finish(float& sum, float& about_mean, float count) {
    unrolled for (int offset = 16; offset > 0; offset /= 2) {
      first += from_lane(first, offset);
      squares += from_lane(squares, offset);
    }
    sum = fmaf(pivot, count, first);
    const float moved = fmaxf(squares - first * __fdividef(first, fmaxf(count, 1.0f)), 0.0f);
    about_mean = squares < INFINITY ? moved : squares;  // an infinity, or no number
  }
};

//@ cluster_elements
// The elements of a row that a block holds: stages of it go round the blocks.
__device__ __forceinline__ float elements_of(int block, int vectors) {
  if constexpr (EVEN) return ROUNDS * STAGE * WIDTH;
  int held = 0;
  rolled for (int round = 0; round < ROUNDS; ++round) {
    held += max(min(vectors - (round * BLOCKS + block) * STAGE, STAGE), 0);
  }
  return static_cast<float>(held * WIDTH);
}

//@ grid_elements
// The elements that a block has of the row whose last piece is before `end`: pieces of all rows go round the blocks.
__device__ __forceinline__ float elements_of(int block, int end, int pieces, int vectors) {
  const int held = (end - block + BLOCKS - 1) / BLOCKS - (end - pieces - block + BLOCKS - 1) / BLOCKS;
  const int missing = !EVEN && (end - 1) % BLOCKS == block ? pieces * STAGE - vectors : 0;
  return static_cast<float>((held * STAGE - missing) * WIDTH);
}

//@ posting
// Leaves a number to the other blocks. A word has it and says so too: who reads it there need not wait until all that
// was written before can be read, which takes longer where much is written.
template <typename T>
__device__ __forceinline__ void post(unsigned long long* at, T value) {
  const unsigned long long word = static_cast<unsigned long long>(*reinterpret_cast<unsigned*>(&value)) << 32 | 1;
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(word) : "memory");
}

// What is there by now, which may be nothing.
__device__ __forceinline__ unsigned long long posted(const unsigned long long* at) {
  unsigned long long word;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(at) : "memory");
  return word;
}

template <typename T>
__device__ __forceinline__ T number_in(unsigned long long word) {
  const unsigned bits = word >> 32;
  return *reinterpret_cast<const T*>(&bits);
}
