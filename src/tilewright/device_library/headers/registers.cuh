// How registers are shared out between the warpgroups of a block.
#pragma once

namespace tw {

// Gives registers of this warpgroup back, down to COUNT (a multiple of 8) per thread; a producer's first instruction.
// cost: one instruction; takes effect only under __launch_bounds__(THREADS, 1), each role one branch of a single if
// arch: sm_90a
template <int COUNT> __device__ __forceinline__ void register_decrease() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// Takes registers for this warpgroup, up to COUNT (a multiple of 8) per thread; waits until they are free.
// cost: one instruction
// arch: sm_90a
template <int COUNT> __device__ __forceinline__ void register_increase() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

}  // namespace tw
