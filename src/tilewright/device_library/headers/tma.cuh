// TMA: boxes of tensors, named by `//! map` lines, between global and shared memory. Coordinates are innermost first;
// what lies outside the tensor is read as zeros and not written. Destinations are aligned to 128 bytes, to 1024 where the
// map has a 128-byte swizzle. A load's barrier has been told of the box's bytes; a store needs `fence_proxy_async` and a
// barrier before it, `bulk_commit` and a `bulk_wait` behind it.
#pragma once
#include <tilewright/bulk_copy.cuh>

namespace tw {

// Fetches the descriptor of a map ahead of its first use.
// cost: one instruction, once
// arch: sm_90
__device__ __forceinline__ void tma_prefetch(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Starts to load the box at x of a tensor of one dimension.
// cost: one thread issues it
// arch: sm_90
__device__ __forceinline__ void tma_load_1d(const CUtensorMap* map, uint32_t barrier, uint32_t to, int x) {
  asm volatile("cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3}], [%2];" ::"r"(to), "l"(map), "r"(barrier), "r"(x) : "memory");
}

// Starts to load the box at column x and row y.
// cost: one thread issues it
// arch: sm_90
__device__ __forceinline__ void tma_load_2d(const CUtensorMap* map, uint32_t barrier, uint32_t to, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y) : "memory");
}

// Starts to load the box at x, y, z.
// cost: one thread issues it
// arch: sm_90
__device__ __forceinline__ void tma_load_3d(const CUtensorMap* map, uint32_t barrier, uint32_t to, int x, int y, int z) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z) : "memory");
}

// Starts to load the box at x, y, z, w.
// cost: one thread issues it
// arch: sm_90
__device__ __forceinline__ void tma_load_4d(const CUtensorMap* map, uint32_t barrier, uint32_t to, int x, int y, int z, int w) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}

// Starts to load the box at x, y to the same address of all blocks of the cluster whose bit is set in `blocks`; each of
// them has told its own mbarrier at the address `barrier` of the bytes.
// cost: one read of L2 for all of them
// arch: sm_90
__device__ __forceinline__ void tma_load_2d_multicast(const CUtensorMap* map, uint32_t barrier, uint32_t to, int x, int y, unsigned short blocks) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y), "h"(blocks) : "memory");
}

// As `tma_load_2d_multicast`, for a tensor of three dimensions.
// cost: one read of L2 for all of them
// arch: sm_90
__device__ __forceinline__ void tma_load_3d_multicast(const CUtensorMap* map, uint32_t barrier, uint32_t to, int x, int y, int z, unsigned short blocks) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "h"(blocks) : "memory");
}

// Starts to store a box at x of a tensor of one dimension.
// cost: one thread issues it
// arch: sm_90
__device__ __forceinline__ void tma_store_1d(const CUtensorMap* map, uint32_t from, int x) {
  asm volatile("cp.async.bulk.tensor.1d.global.shared::cta.bulk_group [%0, {%2}], [%1];" ::"l"(map), "r"(from), "r"(x) : "memory");
}

// Starts to store a box at column x and row y.
// cost: one thread issues it
// arch: sm_90
__device__ __forceinline__ void tma_store_2d(const CUtensorMap* map, uint32_t from, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map), "r"(from), "r"(x), "r"(y) : "memory");
}

// Starts to store a box at x, y, z.
// cost: one thread issues it
// arch: sm_90
__device__ __forceinline__ void tma_store_3d(const CUtensorMap* map, uint32_t from, int x, int y, int z) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map), "r"(from), "r"(x), "r"(y), "r"(z) : "memory");
}

// Starts to add a box to the tensor at column x and row y.
// cost: one thread issues it; the sums are made in L2, in any order
// arch: sm_90
__device__ __forceinline__ void tma_add_2d(const CUtensorMap* map, uint32_t from, int x, int y) {
  asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map), "r"(from), "r"(x), "r"(y) : "memory");
}

}  // namespace tw
