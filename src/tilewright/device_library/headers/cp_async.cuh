// cp.async: copies of 16, 8 or 4 bytes per thread to shared memory, and tiles staged with them.
#pragma once

namespace tw {

// Starts a copy of 16 aligned bytes to shared memory, past L1; zeros where `inside` is false, and `from` is not read.
// cost: one instruction, no registers held
// arch: sm_80
__device__ __forceinline__ void cp_async_16(uint32_t to, const void* from, bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(inside ? 16 : 0) : "memory");
}

// Starts a copy of BYTES (4 or 8) aligned bytes to shared memory; zeros where `inside` is false.
// cost: one instruction; per byte 2 to 4 times that of `cp_async_16`
// arch: sm_80
template <int BYTES> __device__ __forceinline__ void cp_async_small(uint32_t to, const void* from, bool inside) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(to), "l"(from), "r"(inside ? BYTES : 0), "n"(BYTES) : "memory");
}

// Closes the group of the copies that this thread has started; empty groups count too.
// cost: one instruction
// arch: sm_80
__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");  // sync: the group that is waited for
}

// Waits until all but the last PENDING groups of this thread have arrived; a barrier shows them to other threads.
// cost: none where they have
// arch: sm_80
template <int PENDING> __device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");  // sync: the copies
}

// The offset in bytes of a 16-byte chunk in a tile whose rows are CHUNKS (4, or a multiple of 8) chunks. Exclusive-or
// with the row spreads a column of chunks over all banks, so that ldmatrix and 16-byte stores meet no bank conflict.
// cost: one exclusive-or
// arch: sm_80
template <int CHUNKS> __device__ __forceinline__ int swizzled_chunk(int row, int chunk) {
  static_assert(CHUNKS == 4 || CHUNKS % 8 == 0, "a row is 64 bytes or a multiple of 128");
  return (row * CHUNKS + (chunk ^ (CHUNKS == 4 ? (row >> 1) & 3 : row & 7))) * 16;
}

// Starts copies of a tile of ROWS x COLUMNS elements at `row0`, `column0` of a matrix into the `swizzled_chunk` layout, by
// THREADS threads. Rows of the matrix lie `pitch` elements apart; the tile has zeros where it leaves `rows` x `columns`.
// WIDTH elements are copied at once: pitch, column0, columns and the pointer are multiples of it.
// cost: one cp.async per WIDTH elements and thread
// arch: sm_80
template <int ROWS, int COLUMNS, int THREADS, int WIDTH, typename T>
__device__ __forceinline__ void cp_async_tile(uint32_t tile, const T* matrix, long long pitch, int row0, int column0, int rows, int columns) {
  constexpr int CHUNK = 16 / sizeof(T), COPIES = COLUMNS / WIDTH, PASS = THREADS / COPIES;
  static_assert(COLUMNS % CHUNK == 0 && THREADS % COPIES == 0 && ROWS % PASS == 0, "a pass of all threads covers whole rows");
  static_assert(WIDTH * sizeof(T) >= 4, "cp.async copies 4, 8 or 16 bytes");
  const int column = threadIdx.x % COPIES * WIDTH;
#pragma unroll
  for (int row = threadIdx.x / COPIES; row < ROWS; row += PASS) {
    const bool inside = row0 + row < rows && column0 + column < columns;
    const T* from = inside ? matrix + (row0 + row) * pitch + column0 + column : matrix;
    const uint32_t to = tile + swizzled_chunk<COLUMNS / CHUNK>(row, column / CHUNK) + column % CHUNK * sizeof(T);
    if constexpr (WIDTH == CHUNK) cp_async_16(to, from, inside);
    else cp_async_small<WIDTH * sizeof(T)>(to, from, inside);
  }
}

}  // namespace tw
