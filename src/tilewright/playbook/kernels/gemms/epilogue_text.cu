//# What is done with each sum, as a device function of its own: the same text in every kernel that stores sums.

//@ gelu_of_sum
// v times the normal curve's share below v, which is 1/2 + (1/2 - q) for positive v and 1/2 - (1/2 - q) for negative v,
// with q the share beyond |v|: 2 to a polynomial, to 2.5e-4 of itself. One slow instruction, where erf takes several.
__device__ __forceinline__ float gelu_of(float v) {
  const float x = fabsf(v);
  float t = fmaf(x, -2.33249967e-4f, 4.86971691e-3f), q;
  t = fmaf(x, t, -4.45985130e-2f);
  t = fmaf(x, t, -4.69682664e-1f);
  t = fmaf(x, t, -1.14625905f);
  t = fmaf(x, t, -1.00035951f);
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(q) : "f"(t));
  return fmaf(x, 0.5f - q, 0.5f * v);
}
