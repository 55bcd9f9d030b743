// ldmatrix and stmatrix: 8 x 8 matrices of 16-bit elements between shared memory and the fragments of a warp.
#pragma once

namespace tw {

// Loads four 8 x 8 matrices, one per register; lanes 8i to 8i + 7 give the addresses of the rows of matrix i. Lane l then
// has the elements 2(l % 4) and 2(l % 4) + 1 of row l / 4.
// cost: one instruction; rows 16 bytes apart in banks make it conflict-free
// arch: sm_80
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}

// As `ldmatrix_x4`, transposed: lane l has the elements of column l / 4.
// cost: one instruction
// arch: sm_80
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}

// Loads two 8 x 8 matrices; lanes 0 to 15 give the addresses.
// cost: one instruction
// arch: sm_80
__device__ __forceinline__ void ldmatrix_x2(uint32_t (&r)[2], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(address) : "memory");
}

// As `ldmatrix_x2`, transposed.
// cost: one instruction
// arch: sm_80
__device__ __forceinline__ void ldmatrix_x2_trans(uint32_t (&r)[2], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(address) : "memory");
}

// Stores four 8 x 8 matrices; lanes 8i to 8i + 7 give the addresses of the rows of matrix i.
// cost: one instruction
// arch: sm_90
__device__ __forceinline__ void stmatrix_x4(uint32_t address, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r0), "r"(r1), "r"(r2), "r"(r3) : "memory");
}

// As `stmatrix_x4`, transposed.
// cost: one instruction
// arch: sm_90
__device__ __forceinline__ void stmatrix_x4_trans(uint32_t address, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r0), "r"(r1), "r"(r2), "r"(r3) : "memory");
}

}  // namespace tw
