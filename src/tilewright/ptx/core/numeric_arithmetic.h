// f32 and f64 arithmetic: the hardware's NaNs, minimum and maximum, and every rounding.
//
// Nearest-even f32 and f64 are the processor's own; the directed roundings of f32 go through f64 (a product of two f32
// fits, a sum is rounded to odd), those of f64 through integers in numeric.c.
#ifndef TW_NUMERIC_ARITHMETIC_H
#define TW_NUMERIC_ARITHMETIC_H

#include "numeric_bits.h"
#include "numeric_half.h"

// -- nearest even, vector code in a loop --

TW_INLINE float tw_add_f32(float a, float b) { return tw_canonical_f32(a + b); }
TW_INLINE float tw_sub_f32(float a, float b) { return tw_canonical_f32(a - b); }
TW_INLINE float tw_mul_f32(float a, float b) { return tw_canonical_f32(a * b); }
TW_INLINE float tw_div_f32(float a, float b) { return tw_canonical_f32(a / b); }

#if defined(__FMA__) || defined(__aarch64__)
TW_INLINE float tw_fma_f32_raw(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#else
TW_INLINE float tw_fma_f32_raw(float a, float b, float c) {
  return (float)tw_add_to_odd((double)a * (double)b, (double)c);
}
#endif
TW_INLINE float tw_fma_f32(float a, float b, float c) { return tw_canonical_f32(tw_fma_f32_raw(a, b, c)); }
TW_INLINE double tw_fma_f64(double a, double b, double c) { return __builtin_fma(a, b, c); }

TW_INLINE float tw_sqrt_f32(float a) { return tw_canonical_f32(__builtin_sqrtf(a)); }
TW_INLINE float tw_rcp_f32(float a) { return tw_canonical_f32(1.0f / a); }

// -- minimum and maximum: -0 is below +0; a NaN loses, or wins in the .NaN form --

#define TW_MIN_MAX(type, suffix, bits_type, bits_of, of_bits, nan)                                               \
  TW_INLINE type tw_min_##suffix(type a, type b) {                                                               \
    type least = a < b ? a : b;                                                                                  \
    least = a == b ? of_bits(bits_of(a) | bits_of(b)) : least;                                                   \
    type some = a == a ? a : b == b ? b : of_bits((bits_type)(nan));                                             \
    return (a == a) & (b == b) ? least : some;                                                                   \
  }                                                                                                              \
  TW_INLINE type tw_max_##suffix(type a, type b) {                                                               \
    type most = a > b ? a : b;                                                                                   \
    most = a == b ? of_bits(bits_of(a) & bits_of(b)) : most;                                                     \
    type some = a == a ? a : b == b ? b : of_bits((bits_type)(nan));                                             \
    return (a == a) & (b == b) ? most : some;                                                                    \
  }                                                                                                              \
  TW_INLINE type tw_min_nan_##suffix(type a, type b) {                                                           \
    return (a == a) & (b == b) ? tw_min_##suffix(a, b) : of_bits((bits_type)(nan));                              \
  }                                                                                                              \
  TW_INLINE type tw_max_nan_##suffix(type a, type b) {                                                           \
    return (a == a) & (b == b) ? tw_max_##suffix(a, b) : of_bits((bits_type)(nan));                              \
  }
TW_MIN_MAX(float, f32, uint32_t, tw_f32_bits, tw_f32_of, TW_NAN_F32)
TW_MIN_MAX(double, f64, uint64_t, tw_f64_bits, tw_f64_of, TW_NAN_F64)
#undef TW_MIN_MAX

// -- f32 in any rounding --

TW_INLINE float tw_add_f32_mode(float a, float b, tw_rounding rounding) {
  double sum = tw_add_to_odd((double)a, (double)b);
  // An exact zero from operands of opposite sign is -0 when rounding down.
  if (rounding == TW_RM && sum == 0.0 && ((tw_f32_bits(a) ^ tw_f32_bits(b)) >> 31)) return -0.0f;
  return tw_canonical_f32(tw_f64_to_f32_mode(sum, rounding));
}
TW_INLINE float tw_sub_f32_mode(float a, float b, tw_rounding rounding) {
  return tw_add_f32_mode(a, tw_f32_of(tw_f32_bits(b) ^ 0x80000000u), rounding);
}
TW_INLINE float tw_mul_f32_mode(float a, float b, tw_rounding rounding) {
  return tw_canonical_f32(tw_f64_to_f32_mode((double)a * (double)b, rounding));
}
TW_INLINE float tw_fma_f32_mode(float a, float b, float c, tw_rounding rounding) {
  double product = (double)a * (double)b;
  double sum = tw_add_to_odd(product, (double)c);
  if (rounding == TW_RM && sum == 0.0 && ((tw_f64_bits(product) >> 63) ^ (tw_f32_bits(c) >> 31))) return -0.0f;
  return tw_canonical_f32(tw_f64_to_f32_mode(sum, rounding));
}

// A quotient or root known to 53 bits and the sign of what is left over, as an f64 rounded to odd.
TW_INLINE double tw_to_odd(double value, double remainder_sign) {
  uint64_t bits = tw_f64_bits(value);
  if (remainder_sign == 0.0 || (bits & 1) || !(value - value == 0.0) || value == 0.0) return value;
  return tw_f64_of(bits + (((remainder_sign > 0) == (value > 0)) ? 1 : (uint64_t)-1));
}
TW_INLINE float tw_div_f32_mode(float a, float b, tw_rounding rounding) {
  double quotient = (double)a / (double)b;
  double left = __builtin_fma(-quotient, (double)b, (double)a);
  double sign = b < 0 ? -left : left;
  return tw_canonical_f32(tw_f64_to_f32_mode(tw_to_odd(quotient, sign), rounding));
}
TW_INLINE float tw_sqrt_f32_mode(float a, tw_rounding rounding) {
  double root = __builtin_sqrt((double)a);
  double left = __builtin_fma(-root, root, (double)a);
  return tw_canonical_f32(tw_f64_to_f32_mode(tw_to_odd(root, left), rounding));
}
TW_INLINE float tw_rcp_f32_mode(float a, tw_rounding rounding) { return tw_div_f32_mode(1.0f, a, rounding); }

// -- f64 in any rounding (numeric.c); a NaN operand comes back quiet, its payload kept --

double tw_add_f64_mode(double a, double b, tw_rounding rounding);
double tw_sub_f64_mode(double a, double b, tw_rounding rounding);
double tw_mul_f64_mode(double a, double b, tw_rounding rounding);
double tw_fma_f64_mode(double a, double b, double c, tw_rounding rounding);
double tw_div_f64_mode(double a, double b, tw_rounding rounding);
double tw_sqrt_f64_mode(double a, tw_rounding rounding);
double tw_rcp_f64_mode(double a, tw_rounding rounding);

#endif
