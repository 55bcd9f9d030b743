// Bulk copies: contiguous bytes between global and shared memory, moved by the copy engine at one thread's request.
#pragma once

namespace tw {

// Starts a copy of `bytes` (a multiple of 16, both ends aligned to 16) to shared memory; `barrier`, an mbarrier that was
// told of the bytes by `mbarrier_arrive_expect_tx`, ends its phase when they are there.
// cost: one thread issues it; no registers
// arch: sm_90
__device__ __forceinline__ void bulk_load(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}

// Starts a copy of `bytes` (a multiple of 16, both ends aligned to 16) from shared memory; writers call
// `fence_proxy_async` and meet at a barrier first, then one thread calls this and `bulk_commit`.
// cost: one thread issues it
// arch: sm_90
__device__ __forceinline__ void bulk_store(void* to, uint32_t from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes) : "memory");
}

// Closes the group of the bulk stores, TMA's too, that this thread has started.
// cost: one instruction
// arch: sm_90
__device__ __forceinline__ void bulk_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");  // sync: the group that is waited for
}

// Waits until all but the last PENDING groups of this thread have read shared memory, which may then be written again.
// cost: as long as the stores need to read
// arch: sm_90
template <int PENDING> __device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");  // sync: before the buffer is written again
}

// Waits until all but the last PENDING groups of this thread are in global memory; the last wait before a block ends.
// cost: as long as the stores take
// arch: sm_90
template <int PENDING> __device__ __forceinline__ void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(PENDING) : "memory");  // sync: before what was stored is read
}

}  // namespace tw
