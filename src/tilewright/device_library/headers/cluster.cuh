// Thread block clusters: rank, barrier, and distributed shared memory.
#pragma once

namespace tw {

// The number of this block in its cluster.
// cost: one register read
// arch: sm_90
__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// The number of blocks in the cluster.
// cost: one register read
// arch: sm_90
__device__ __forceinline__ uint32_t cluster_blocks() {
  uint32_t blocks;
  asm volatile("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(blocks));
  return blocks;
}

// Arrives at the cluster's barrier; what was written before is visible to whoever has waited there.
// cost: one instruction; work that needs no other block can stand between it and `cluster_wait`
// arch: sm_90
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");  // sync: every wait needs it
}

// Waits until all threads of the cluster have arrived.
// cost: several hundred cycles after the last arrival
// arch: sm_90
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");  // sync: all threads of the cluster
}

// A barrier of all threads of the cluster. Before the first access to another block's shared memory, and before a block
// ends whose memory others may still use.
// cost: several hundred cycles
// arch: sm_90
__device__ __forceinline__ void cluster_sync() {
  cluster_arrive();  // sync: of the cluster's barrier
  cluster_wait();    // sync: of the cluster's barrier
}

// The address, in the cluster's shared memory, of what lies at a shared address in one of its blocks.
// cost: one instruction
// arch: sm_90
__device__ __forceinline__ uint32_t cluster_address(uint32_t address, uint32_t block) {
  uint32_t mapped;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(block));
  return mapped;
}

// A pointer to the same variable in the shared memory of another block of the cluster.
// cost: one instruction; accesses take about 200 cycles
// arch: sm_90
template <typename T> __device__ __forceinline__ T* cluster_pointer(T* pointer, uint32_t block) {
  uint64_t mapped;
  asm volatile("mapa.u64 %0, %1, %2;" : "=l"(mapped) : "l"(reinterpret_cast<uint64_t>(pointer)), "r"(block));
  return reinterpret_cast<T*>(mapped);
}

}  // namespace tw
