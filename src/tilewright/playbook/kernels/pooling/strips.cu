//# Pooling by strips: columns are combined first, in registers, and rows last, through shared memory.

//@ team
// Waits for the other threads of the team.
__device__ __forceinline__ void wait_for_team() {
  if constexpr (TEAMS == 1 || LANES < 32) {
    __syncthreads();
  } else if constexpr (LANES == 32) {
    __syncwarp();
  } else {
    asm volatile("bar.sync %0, %1;" ::"r"(threadIdx.y + 1), "n"(LANES) : "memory");
  }
}

//@ row_is_used
// Whether any window of the strip looks at this row of those that it reaches over.
__device__ constexpr bool row_is_used(int row) {
  for (int made = 0; made < ROWS; ++made) {
    const int tap = row - made * STRIDE_Y;
    if (tap >= 0 && tap < REACH_Y && tap % DILATION_Y == 0) return true;
  }
  return false;
}
