//# Kernels for losses over picked elements: a warp per row, then one block that adds up what blocks came to.

//@ power
// 2 to the power of v: exponentials are of v times log2(e).
__device__ __forceinline__ float power_of_two(float v) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(v));
  return power;
}
