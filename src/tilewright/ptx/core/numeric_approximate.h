// The approximate instructions: ex2, lg2, sin, cos, tanh, rcp, rsqrt, sqrt and div.
//
// The hardware reads tables we do not have. Where it is within about one unit in the last place so are these. Where it
// is worse (lg2 near 1, sin and cos of small angles, tanh everywhere) these err as much as an H200 was seen to, by an
// amount that depends on the operand alone: a kernel that needs more must not look right here. Exact values stay exact,
// special values are as PTX documents them. There are no branches, and special values enter by
// addition rather than by choice (a compiler that minds floating-point exceptions would not compute both sides of one):
// a loop over lanes becomes vector code.
// The `_ftz` forms flush subnormal inputs and results.
#ifndef TW_NUMERIC_APPROXIMATE_H
#define TW_NUMERIC_APPROXIMATE_H

#include "numeric_arithmetic.h"
#include "numeric_bits.h"
#include "numeric_half.h"

TW_INLINE float tw_abs_f32(float x) { return tw_f32_of(tw_f32_bits(x) & 0x7fffffffu); }
// A number from -1 to 1 that looks drawn at random and is always the same for the same operand.
TW_INLINE float tw_noise(float x) {
  uint32_t bits = tw_f32_bits(x) * 0x9e3779b1u;
  bits = (bits ^ bits >> 15) * 0x85ebca77u;
  return (float)(int32_t)bits * 0x1p-31f;
}

TW_INLINE float tw_ex2_f32(float x) {
  float high = x < 160.0f ? x : 160.0f; // NaN too; it comes back at the end
  float inside = high > -160.0f ? high : -160.0f;
  float whole = (inside + 12582912.0f) - 12582912.0f; // nearest integer: 1.5 * 2^23 leaves no fraction bits
  float part = inside - whole;
  float power = 0x1.44p-13f;
  power = power * part + 0x1.5f48c0p-10f;
  power = power * part + 0x1.3b2a1cp-7f;
  power = power * part + 0x1.c6aeccp-5f;
  power = power * part + 0x1.ebfbe0p-3f;
  power = power * part + 0x1.62e430p-1f;
  power = power * part + 1.0f;
  int32_t exponent = (int32_t)whole, first = exponent >> 1, second = exponent - first; // two steps reach subnormals
  float scaled = power * tw_f32_of((uint32_t)(first + 127) << 23) * tw_f32_of((uint32_t)(second + 127) << 23);
  return tw_canonical_f32(scaled + (x == x ? 0.0f : __builtin_nanf("")));
}
TW_INLINE float tw_ex2_ftz_f32(float x) { return tw_flush_f32(tw_ex2_f32(tw_flush_f32(x))); }

TW_INLINE float tw_lg2_f32(float x) {
  int tiny = (tw_f32_bits(x) & 0x7f800000u) == 0;
  float normal = x * (tiny ? 0x1p23f : 1.0f);
  uint32_t bits = tw_f32_bits(normal);
  int32_t exponent = (int32_t)(bits - 0x3f3504f3u) >> 23; // the rest lies between sqrt(1/2) and sqrt(2)
  float part = tw_f32_of(bits - ((uint32_t)exponent << 23)) - 1.0f;
  float series = -0x1.596fe0p-4f;
  series = series * part + 0x1.3a4580p-3f;
  series = series * part - 0x1.41fffcp-3f;
  series = series * part + 0x1.4645e6p-3f;
  series = series * part - 0x1.6eb26ap-3f;
  series = series * part + 0x1.a608e4p-3f;
  series = series * part - 0x1.ec8cbcp-3f;
  series = series * part + 0x1.27776ap-2f;
  series = series * part - 0x1.715438p-2f;
  series = series * part + 0x1.ec709cp-2f;
  series = series * part - 0x1.715476p-1f;
  series = series * part + 0x1.715476p+0f;
  // Too large by up to 2^-22.7 everywhere, which near 1 is more than the result; lg2 of 1 itself is exact.
  float excess = (tw_noise(x) + 0.8f) * 0x1.4p-24f;
  float result = (float)(exponent - (tiny ? 23 : 0)) + (series * part + (x == 1.0f ? 0.0f : excess));
  float special = x > 0.0f ? 0.0f : __builtin_nanf("");
  special = x == 0.0f ? -__builtin_inff() : special;
  special = x == __builtin_inff() ? __builtin_inff() : special;
  return tw_canonical_f32(result + special);
}
TW_INLINE float tw_lg2_ftz_f32(float x) { return tw_lg2_f32(tw_flush_f32(x)); }

// The hardware turns radians into turns first, truncating, and keeps 25 bits behind the point: beyond a few turns the
// first decides the result, for small angles the second. The part of a turn, in [-1/2, 1/2].
TW_INLINE float tw_turns_f32(float x) {
  uint64_t product = tw_f64_bits((double)x * (double)0x1.45f306p-3f);
  float turns = (float)tw_f64_of(product & ~0x1fffffffull);
  float inside = turns < 0x1p22f ? turns : 0.0f;
  inside = inside > -0x1p22f ? inside : 0.0f;
  float part = inside - ((inside + 12582912.0f) - 12582912.0f);
  float kept = (float)(int32_t)(tw_abs_f32(part) * 0x1p25f) * 0x1p-25f;
  return tw_f32_of(tw_f32_bits(kept) | (tw_f32_bits(part) & 0x80000000u));
}
// sin(2 pi t) for t in [-1/4, 1/4].
TW_INLINE float tw_sine_of_turns(float turns) {
  float square = turns * turns;
  float series = -0x1.cc9b60p+3f;
  series = series * square + 0x1.501408p+5f;
  series = series * square - 0x1.32d12ep+6f;
  series = series * square + 0x1.466bc0p+6f;
  series = series * square - 0x1.4abbcep+5f;
  series = series * square + 0x1.921fb6p+2f;
  return series * turns;
}
// An infinite or absent x makes the result NaN; the sign of a zero is kept, since nothing else is added.
TW_INLINE float tw_unless_infinite(float result, float x) {
  return tw_canonical_f32(result * (x - x == 0.0f ? 1.0f : __builtin_nanf("")));
}
TW_INLINE float tw_sin_f32(float x) {
  float turns = tw_turns_f32(x);
  float folded = 0.25f - tw_abs_f32(tw_abs_f32(turns) - 0.25f); // |turns| or 1/2 - |turns|
  float result = tw_sine_of_turns(folded) * (1.0f + tw_noise(x) * 0x1p-22f);
  return tw_unless_infinite(tw_f32_of(tw_f32_bits(result) ^ (tw_f32_bits(turns) & 0x80000000u)), x);
}
TW_INLINE float tw_cos_f32(float x) {
  float result = tw_sine_of_turns(0.25f - tw_abs_f32(tw_turns_f32(x)));
  return tw_unless_infinite(result * (1.0f - tw_abs_f32(tw_noise(x)) * (result == 1.0f ? 0.0f : 0x1p-23f)), x);
}
TW_INLINE float tw_sin_ftz_f32(float x) { return tw_flush_f32(tw_sin_f32(tw_flush_f32(x))); }
TW_INLINE float tw_cos_ftz_f32(float x) { return tw_flush_f32(tw_cos_f32(tw_flush_f32(x))); }

// `error`: of the result, relative, at most; of one beyond 4 an eighth of it.
TW_INLINE float tw_tanh_within(float x, float error) {
  float size = tw_abs_f32(x);
  float square = size * size;
  float small = size * (1.0f + square * (-0x1.555556p-2f + square * (0x1.111112p-3f - square * 0x1.ba1ba2p-5f)));
  float large = 1.0f - 2.0f / (tw_ex2_f32(size * 0x1.715476p+1f) + 1.0f); // e^(2 size)
  float exact = size < 0.3f ? small : large;
  float result = exact * (1.0f + tw_noise(x) * (size < 4.0f ? error : error * 0.125f));
  result = result < 1.0f ? result : 1.0f;
  result = size < 0.002f ? size : result;
  result = tw_f32_of(tw_f32_bits(result) | (tw_f32_bits(x) & 0x80000000u));
  return x == x ? result : tw_f32_of(TW_NAN_F32);
}
TW_INLINE float tw_tanh_f32(float x) { return tw_tanh_within(x, 0x1.2p-17f); }

TW_INLINE float tw_rcp_approx_f32(float x) { return tw_canonical_f32(1.0f / x); }
TW_INLINE float tw_rcp_approx_ftz_f32(float x) { return tw_flush_f32(tw_rcp_approx_f32(tw_flush_f32(x))); }
TW_INLINE float tw_rsqrt_f32(float x) {
  return tw_canonical_f32((float)(1.0 / __builtin_sqrt((double)x)));
}
TW_INLINE float tw_rsqrt_ftz_f32(float x) { return tw_rsqrt_f32(tw_flush_f32(x)); }
TW_INLINE float tw_sqrt_approx_f32(float x) { return tw_canonical_f32(__builtin_sqrtf(x)); }
TW_INLINE float tw_sqrt_approx_ftz_f32(float x) { return tw_sqrt_approx_f32(tw_flush_f32(x)); }

// div.approx: a * (1 / b); a divisor beyond 2^126 has no normal reciprocal and gives 0, or NaN for an infinite a.
TW_INLINE float tw_div_approx_f32(float a, float b) {
  float size = tw_f32_of(tw_f32_bits(b) & 0x7fffffffu);
  float quotient = a / b;
  float gone = a * tw_f32_of(tw_f32_bits(b) & 0x80000000u);
  int beyond = (size > 0x1p126f) & (size < __builtin_inff());
  return tw_canonical_f32(beyond ? gone : quotient);
}
TW_INLINE float tw_div_approx_ftz_f32(float a, float b) {
  return tw_flush_f32(tw_div_approx_f32(tw_flush_f32(a), tw_flush_f32(b)));
}
TW_INLINE float tw_div_full_f32(float a, float b) { return tw_canonical_f32(a / b); }
TW_INLINE float tw_div_full_ftz_f32(float a, float b) {
  return tw_flush_f32(tw_div_full_f32(tw_flush_f32(a), tw_flush_f32(b)));
}

// -- f64: the upper halves of operand and result alone --

TW_INLINE double tw_flush_f64(double x) {
  uint64_t bits = tw_f64_bits(x);
  return tw_f64_of((bits & 0x7ff0000000000000ull) ? bits : bits & (1ull << 63));
}
TW_INLINE double tw_upper_f64(double x) { return tw_f64_of(tw_f64_bits(x) & 0xffffffff00000000ull); }
TW_INLINE double tw_rcp_approx_ftz_f64(double x) {
  return tw_upper_f64(tw_flush_f64(1.0 / tw_flush_f64(tw_upper_f64(x))));
}
TW_INLINE double tw_rsqrt_ftz_f64(double x) {
  double operand = tw_flush_f64(tw_upper_f64(x));
  return tw_upper_f64(1.0 / __builtin_sqrt(operand));
}
TW_INLINE double tw_rsqrt_f64(double x) { return 1.0 / __builtin_sqrt(x); }

// -- f16 and bf16 --

TW_INLINE uint16_t tw_ex2_f16(uint16_t x) { return tw_f32_to_f16(tw_ex2_f32(tw_f16_to_f32(x))); }
TW_INLINE uint16_t tw_ex2_ftz_bf16(uint16_t x) { return tw_f32_to_bf16(tw_ex2_ftz_f32(tw_bf16_to_f32(x))); }
TW_INLINE uint16_t tw_tanh_f16(uint16_t x) { return tw_f32_to_f16(tw_tanh_within(tw_f16_to_f32(x), 0x1.2p-12f)); }
TW_INLINE uint16_t tw_tanh_bf16(uint16_t x) { return tw_f32_to_bf16(tw_tanh_within(tw_bf16_to_f32(x), 0x1.2p-9f)); }

#endif
