//# Who shares a row that is held on chip, and how they tell each other what their shares come to.

//@ barriers
__device__ __forceinline__ unsigned shared_address(const void* at) {
  return static_cast<unsigned>(__cvta_generic_to_shared(at));
}

__device__ __forceinline__ void begin(unsigned long long* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void expect_bytes(unsigned long long* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}

//@ messages
// The same place in the shared memory of another block of the cluster.
__device__ __forceinline__ unsigned address_in(int block, const void* at) {
  unsigned there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(at)), "r"(block));
  return there;
}

// Sends a number to a block, whose barrier counts its bytes: unlike a barrier of the whole cluster, this does not wait
// until the results of the row before have been stored.
template <typename T>
__device__ __forceinline__ void send(T* slot, T value, unsigned long long* barrier, int block) {
  const unsigned to = address_in(block, slot), counted = address_in(block, barrier);
  if constexpr (sizeof(T) == 4) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to),
                 "r"(*reinterpret_cast<unsigned*>(&value)), "r"(counted)
                 : "memory");
  } else {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(to),
                 "l"(*reinterpret_cast<unsigned long long*>(&value)), "r"(counted)
                 : "memory");
  }
}

// Says so to a block: what it sent for the row before last has been read here, and it may send to the same place again.
__device__ __forceinline__ void arrive_in(int block, unsigned long long* barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(address_in(block, barrier)) : "memory");
}

// Waits for what blocks of the cluster sent.
__device__ __forceinline__ void await(unsigned long long* barrier, int phase) {
  asm volatile("{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;"
               " @!p bra AGAIN; }" ::"r"(shared_address(barrier)),
               "r"(phase)
               : "memory");
}

//@ grid_meeting
// Counts this block in, and waits until as many as `wanted` have been. What each wrote before can be read after.
__device__ __forceinline__ void meet(int* arrived, int wanted) {
  asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(arrived) : "memory");
  int met;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(met) : "l"(arrived) : "memory");
  } while (met < wanted);
}

//@ warp_reduce
// The values of a warp's lanes combined, the same in every lane.
template <typename T, typename Combine>
__device__ __forceinline__ T warp_reduce(T value, Combine combine) {
  unrolled for (int offset = 16; offset > 0; offset /= 2) value = combine(value, from_lane(value, offset));
  return value;
}
