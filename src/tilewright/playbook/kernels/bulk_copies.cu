//# Bulk copies between global and shared memory on Hopper and later, as text: rows that come, results that leave.

//@ copying
// A phase of a barrier ends when one thread has arrived and the bytes that it announced have come.
__device__ __forceinline__ void barrier_init(unsigned barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_arrive_expecting(unsigned barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_wait(unsigned barrier) {
  asm volatile("{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; @!p bra AGAIN; }"
               ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void copy_rows(const float* to, const float* from, int bytes, unsigned barrier) {
  const auto target = static_cast<unsigned>(__cvta_generic_to_shared(to));
  if constexpr (ONCE) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;"
                 ::"r"(target), "l"(from), "r"(bytes), "r"(barrier), "l"(to_stay()) : "memory");
  } else {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(target), "l"(from), "r"(bytes), "r"(barrier) : "memory");
  }
}

//# One copy for results that lie together: rows of them begin anywhere, and stores of threads would divide sectors.
//@ storing
// How many floats after the beginning of 16 bytes this one is.
__device__ __forceinline__ int into_vector(const float* at) {
  return static_cast<int>(reinterpret_cast<unsigned long long>(at) % 16 / 4);
}

// Stores results that lie together, by one copy but for those at both ends; `from`, in shared memory, is as far into
// 16 bytes as `to`. Called by all threads of the block, of which there are 64 or more.
__device__ __forceinline__ void store_together(float* to, const float* from, int count) {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  const int head = min((4 - into_vector(to)) % 4, count), middle = (count - head) / 4 * 4;
  if (threadIdx.x == 0 && middle > 0) {
    const auto source = static_cast<unsigned>(__cvta_generic_to_shared(from + head));
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n"
                 "cp.async.bulk.commit_group;\n"
                 "cp.async.bulk.wait_group.read 0;"
                 ::"l"(to + head), "r"(source), "r"(middle * 4) : "memory");
  }
  const int end = static_cast<int>(threadIdx.x) - 32;
  if (end >= 0 && end < count - middle) {
    const int place = end < head ? end : end + middle;
    to[place] = from[place];
  }
}
