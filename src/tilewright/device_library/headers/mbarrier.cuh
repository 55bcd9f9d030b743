// mbarriers: barriers in shared memory that count arrivals and the bytes of asynchronous copies; the ring built of them.
#pragma once

namespace tw {

// Initialises the mbarrier at a shared address for a number of arrivals per phase. One thread does it, then
// `mbarrier_init_fence` and a barrier of the block (of the cluster, where other blocks arrive here).
// cost: one store
// arch: sm_90
__device__ __forceinline__ void mbarrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");  // sync: the barrier
}

// Shows initialised mbarriers to the asynchronous units and to the cluster.
// cost: once per kernel
// arch: sm_90
__device__ __forceinline__ void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Arrives once. Without `.release.cluster`, which compiles to a fence of the whole GPU: release in the block is the default.
// cost: one instruction
// arch: sm_90
__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");  // sync: what this thread did before
}

// Arrives once and adds the bytes that asynchronous copies will deliver in this phase. Call it before the copies.
// cost: one instruction
// arch: sm_90
__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");  // sync: bytes
}

// Arrives once at the mbarrier at the same address in another block of the cluster.
// cost: a message to another multiprocessor; no fence
// arch: sm_90
__device__ __forceinline__ void mbarrier_arrive_at(uint32_t barrier, uint32_t block) {
  asm volatile("{ .reg .u32 at; mapa.shared::cluster.u32 at, %0, %1; mbarrier.arrive.shared::cluster.b64 _, [at]; }" ::"r"(barrier), "r"(block) : "memory");  // sync: across blocks
}

// Waits until the phase of this parity has ended. The phase before the first has parity 1 and has ended: a fresh
// barrier lets a wait for parity 1 through.
// cost: one try_wait where the phase has ended; else the hardware suspends the thread for a while per attempt
// arch: sm_90
__device__ __forceinline__ void mbarrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile("{ .reg .pred done; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1; @!done bra AGAIN; }" ::"r"(barrier), "r"(parity) : "memory");  // sync: the end of the phase
}

// Whether the phase of this parity has ended; does not wait.
// cost: one instruction
// arch: sm_90
__device__ __forceinline__ bool mbarrier_test(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
  return done != 0;
}

// A ring of STAGES slots between a producer, whose copies fill slots, and consumers, who empty them: two mbarriers per
// slot, in BYTES of shared memory aligned to 8, that all sides walk in the same order. Each side has its own Ring; a
// producer's begins with `Ring(at, true)`. `producers` and `consumers` are the arrivals that fill or empty a slot.
//   producer:  ring.wait_empty(); ring.expect(bytes); copies to ring.slot with ring.full(); ring.advance();
//   consumer:  ring.wait_full();  reads of ring.slot; ring.release(); ring.advance();
// cost: two waits and two arrivals per slot, no barrier of the block
// arch: sm_90
template <int STAGES> struct Ring {
  static constexpr int BYTES = STAGES * 16;
  uint32_t barriers;
  int slot = 0;
  uint32_t parity;

  __device__ __forceinline__ explicit Ring(uint32_t barriers, bool is_producer = false) : barriers(barriers), parity(is_producer) {}
  // By one thread; a barrier of the block (of the cluster, where its blocks fill each other's slots) follows.
  __device__ __forceinline__ void init(int producers, int consumers) const {
    for (int s = 0; s < STAGES; ++s) mbarrier_init(barriers + s * 16, producers), mbarrier_init(barriers + s * 16 + 8, consumers);
    mbarrier_init_fence();
  }
  __device__ __forceinline__ uint32_t full() const { return barriers + slot * 16; }
  __device__ __forceinline__ uint32_t empty() const { return barriers + slot * 16 + 8; }
  __device__ __forceinline__ void wait_full() const {
    mbarrier_wait(full(), parity);  // sync: the slot has been filled
  }
  __device__ __forceinline__ void wait_empty() const {
    mbarrier_wait(empty(), parity);  // sync: the slot has been read
  }
  __device__ __forceinline__ void expect(uint32_t bytes) const {
    mbarrier_arrive_expect_tx(full(), bytes);  // sync: the bytes of the slot
  }
  __device__ __forceinline__ void release() const {
    mbarrier_arrive(empty());  // sync: this thread has read the slot
  }
  __device__ __forceinline__ void advance() {
    if (++slot == STAGES) slot = 0, parity ^= 1;
  }
};

}  // namespace tw
