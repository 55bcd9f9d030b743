// Addresses of shared memory, named barriers, and the fence between threads and the asynchronous units.
#pragma once

namespace tw {

// The address in shared memory of a pointer, as PTX instructions and this library's functions take it.
// cost: none
// arch: sm_80
__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Makes what this thread wrote to shared memory visible to TMA, bulk copies and wgmma; each writing thread calls it
// before the barrier behind which the copy or the wgmma is issued.
// cost: a few cycles
// arch: sm_90
__device__ __forceinline__ void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // sync: generic writes before asynchronous reads
}

// Waits at barrier `id` (1 to 15; 0 is __syncthreads) until `threads` threads of the block, whole warps, are there.
// cost: as __syncthreads, for those threads alone
// arch: sm_80
__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");  // sync: the threads of the barrier
}

// Arrives at barrier `id` without waiting; those who wait call `named_barrier_sync` with the same number of threads.
// cost: one instruction
// arch: sm_80
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");  // sync: what was written before
}

}  // namespace tw
