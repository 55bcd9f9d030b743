//# What the kernels of attention have in common, as text: where matrices begin, what becomes of a score, and storing.

//@ power
__device__ __forceinline__ float power_of_two(float v) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(v));
  return power;
}

//@ pair
// Two numbers in a register, the first in its lower half.
__device__ __forceinline__ uint32_t pair(float x, float y) {
  @type both = @rounded(x, y);
  return *reinterpret_cast<uint32_t*>(&both);
}
