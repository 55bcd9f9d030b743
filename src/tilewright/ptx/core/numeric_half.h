// The narrow floating-point formats: f16, bf16, tf32, e4m3 and e5m2 to and from f32, and arithmetic in f16 and bf16.
//
// The functions named plainly round to nearest even and have no branches, so that a loop over 32 lanes becomes vector
// code; those ending in `_mode` take a rounding. Arithmetic rounds once: f16 sums and products are formed in f32, fused
// ones there rounded to odd, and bf16 ones in f64 rounded to odd, which leaves the final rounding exact.
#ifndef TW_NUMERIC_HALF_H
#define TW_NUMERIC_HALF_H

#include "numeric_bits.h"

// -- widening: always exact --

// A subnormal is read as a normal number of the next exponent and the bit that was never there is subtracted: no
// subnormal f32 takes part, which processors are slow with.
TW_INLINE float tw_f16_to_f32(uint16_t half) {
  uint32_t magnitude = ((uint32_t)half & 0x7fffu) << 13;
  uint32_t sign = ((uint32_t)half & 0x8000u) << 16;
  uint32_t small = tw_f32_bits(tw_f32_of(magnitude + 0x38800000u) - 0x1p-14f);
  uint32_t bits = magnitude < 0x00800000u ? small : magnitude + 0x38000000u;
  bits = magnitude == 0x0f800000u ? 0x7f800000u : bits;
  return tw_f32_of(magnitude > 0x0f800000u ? TW_NAN_F32 : bits | sign);
}
TW_INLINE float tw_bf16_to_f32(uint16_t half) { return tw_f32_of((uint32_t)half << 16); }
// cvt.f32.bf16 moves bits: a NaN keeps its sign and payload.
TW_INLINE float tw_cvt_f32_bf16(uint16_t half) { return tw_bf16_to_f32(half); }

TW_INLINE uint16_t tw_e5m2_to_f16(uint8_t byte) {
  return (uint16_t)((byte & 0x7fu) > 0x7cu ? TW_NAN_F16 : (uint32_t)byte << 8);
}
TW_INLINE float tw_e5m2_to_f32(uint8_t byte) { return tw_f16_to_f32(tw_e5m2_to_f16(byte)); }
// e4m3 as an f16 smaller by 2^8.
TW_INLINE uint16_t tw_e4m3_to_scaled_f16(uint8_t byte) {
  uint32_t magnitude = byte & 0x7fu;
  return (uint16_t)(magnitude == 0x7fu ? TW_NAN_F16 : magnitude << 7 | (uint32_t)(byte & 0x80u) << 8);
}
TW_INLINE float tw_e4m3_to_f32(uint8_t byte) {
  return tw_canonical_f32(tw_f16_to_f32(tw_e4m3_to_scaled_f16(byte)) * 256.0f);
}

// -- narrowing, nearest even --

TW_INLINE uint16_t tw_f32_to_f16(float value) {
  uint32_t bits = tw_f32_bits(value);
  uint32_t sign = (bits >> 16) & 0x8000u;
  uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t normal = (magnitude + 0xc8000fffu + ((magnitude >> 13) & 1u)) >> 13;
  // Adding 0.5 puts the last bit of a subnormal half at the last bit of the sum: the addition rounds.
  uint32_t is_small = magnitude < 0x38800000u ? 0xffffffffu : 0u;
  uint32_t small = tw_f32_bits(tw_f32_of(magnitude & is_small) + 0.5f) - 0x3f000000u;
  uint32_t result = (small & is_small) | (normal & ~is_small);
  result = magnitude >= 0x477ff000u ? 0x7c00u : result;
  return (uint16_t)(magnitude > 0x7f800000u ? TW_NAN_F16 : result | sign);
}
TW_INLINE uint16_t tw_f32_to_bf16(float value) {
  uint32_t bits = tw_f32_bits(value);
  uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? TW_NAN_BF16 : rounded);
}

// tf32 lives in a 32-bit register as an f32 whose low 13 bits are zero.
TW_INLINE uint32_t tw_f32_to_tf32_rna(float value) {
  uint32_t bits = tw_f32_bits(value);
  uint32_t special = (bits & 0x7f800000u) == 0x7f800000u; // truncated, not rounded: a NaN may become an infinity
  return (bits + (special ? 0u : 0x1000u)) & 0xffffe000u;
}
// What a tensor core reads of a tf32 operand: the low 13 bits are ignored.
TW_INLINE float tw_tf32_operand(uint32_t bits) { return tw_f32_of(bits & 0xffffe000u); }

// -- narrowing, any rounding --

TW_INLINE uint16_t tw_f32_to_f16_mode(float value, tw_rounding rounding, int saturate) {
  return (uint16_t)tw_pack(tw_unpack(tw_f32_bits(value), TW_FORMAT_F32), TW_FORMAT_F16, rounding, saturate);
}
TW_INLINE uint16_t tw_f32_to_bf16_mode(float value, tw_rounding rounding, int saturate) {
  return (uint16_t)tw_pack(tw_unpack(tw_f32_bits(value), TW_FORMAT_F32), TW_FORMAT_BF16, rounding, saturate);
}
TW_INLINE uint8_t tw_f32_to_e4m3(float value) {
  return (uint8_t)tw_pack(tw_unpack(tw_f32_bits(value), TW_FORMAT_F32), TW_FORMAT_E4M3, TW_RN, 1);
}
TW_INLINE uint8_t tw_f32_to_e5m2(float value) {
  return (uint8_t)tw_pack(tw_unpack(tw_f32_bits(value), TW_FORMAT_F32), TW_FORMAT_E5M2, TW_RN, 1);
}

// -- sums that are rounded once --

// a + b, or its neighbour with an odd last bit when inexact: a later rounding to 2 bits fewer or less sees the truth.
TW_INLINE double tw_add_to_odd(double a, double b) {
  double sum = a + b;
  double back = sum - a;
  double error = (a - (sum - back)) + (b - back);
  uint64_t bits = tw_f64_bits(sum);
  // Only an even last bit needs the move; the error's sign says which of the two odd neighbours encloses the truth.
  uint64_t outward = (bits & ~(1ull << 63)) == 0 ? 1 : ((error > 0) == (sum > 0)) ? 1 : (uint64_t)-1;
  uint64_t moved = bits + outward;
  return tw_f64_of((error != 0.0) & (error == error) & ((bits & 1) == 0) ? moved : bits);
}

// f64 to f32 in any rounding; exact also where the f64 was rounded to odd.
TW_INLINE float tw_f64_to_f32_mode(double value, tw_rounding rounding) {
  float nearest = (float)value;
  if (rounding == TW_RN) return nearest;
  uint32_t bits = tw_f32_bits(nearest);
  double back = (double)nearest;
  int negative = tw_f64_bits(value) >> 63;
  int above = back > value, below = back < value;
  int toward_zero = negative ? below : above, away = negative ? above : below;
  int inward = (rounding == TW_RZ && toward_zero) || (rounding == TW_RM && !negative && toward_zero) ||
               (rounding == TW_RP && negative && toward_zero);
  int outward = (rounding == TW_RM && negative && away) || (rounding == TW_RP && !negative && away);
  return tw_f32_of(bits + (uint32_t)outward - (uint32_t)inward);
}

// -- f16 arithmetic --

TW_INLINE uint16_t tw_add_f16(uint16_t a, uint16_t b) { return tw_f32_to_f16(tw_f16_to_f32(a) + tw_f16_to_f32(b)); }
TW_INLINE uint16_t tw_sub_f16(uint16_t a, uint16_t b) { return tw_f32_to_f16(tw_f16_to_f32(a) - tw_f16_to_f32(b)); }
TW_INLINE uint16_t tw_mul_f16(uint16_t a, uint16_t b) { return tw_f32_to_f16(tw_f16_to_f32(a) * tw_f16_to_f32(b)); }

// An f64 as an f32 rounded to odd, so that rounding it again to fewer bits is as good as rounding once.
TW_INLINE float tw_f64_to_odd_f32(double value) {
  float nearest = (float)value;
  uint32_t bits = tw_f32_bits(nearest);
  double back = (double)nearest;
  uint32_t outward = (nearest == 0.0f || (back < value) == (value > 0)) ? 1u : (uint32_t)-1;
  int move = (back != value) & (value == value) & ((bits & 1u) == 0) & ((bits & 0x7f800000u) != 0x7f800000u);
  return tw_f32_of(move ? bits + outward : bits);
}
TW_INLINE uint16_t tw_f64_to_f16(double value) { return tw_f32_to_f16(tw_f64_to_odd_f32(value)); }
TW_INLINE uint16_t tw_f64_to_bf16(double value) { return tw_f32_to_bf16(tw_f64_to_odd_f32(value)); }
// a + b in f32, rounded to odd as above.
TW_INLINE float tw_add_to_odd_f32(float a, float b) {
  float sum = a + b;
  float back = sum - a;
  float error = (a - (sum - back)) + (b - back);
  uint32_t bits = tw_f32_bits(sum);
  uint32_t outward = ((error > 0) == (sum > 0)) ? 1u : (uint32_t)-1; // an inexact sum is not zero
  uint32_t move = (error > 0) | (error < 0) ? ~bits & 1u : 0u;
  return tw_f32_of(bits + outward * move);
}
// A product of two f16 is exact in f32, and f32's range is wide enough for all of them.
TW_INLINE uint16_t tw_fma_f16(uint16_t a, uint16_t b, uint16_t c) {
  return tw_f32_to_f16(tw_add_to_odd_f32(tw_f16_to_f32(a) * tw_f16_to_f32(b), tw_f16_to_f32(c)));
}

// -- bf16 arithmetic --

TW_INLINE uint16_t tw_fma_bf16(uint16_t a, uint16_t b, uint16_t c) {
  double product = (double)tw_bf16_to_f32(a) * (double)tw_bf16_to_f32(b);
  return tw_f64_to_bf16(tw_add_to_odd(product, (double)tw_bf16_to_f32(c)));
}
TW_INLINE uint16_t tw_add_bf16(uint16_t a, uint16_t b) {
  return tw_f64_to_bf16(tw_add_to_odd((double)tw_bf16_to_f32(a), (double)tw_bf16_to_f32(b)));
}
TW_INLINE uint16_t tw_sub_bf16(uint16_t a, uint16_t b) {
  return tw_f64_to_bf16(tw_add_to_odd((double)tw_bf16_to_f32(a), -(double)tw_bf16_to_f32(b)));
}
TW_INLINE uint16_t tw_mul_bf16(uint16_t a, uint16_t b) {
  return tw_f64_to_bf16((double)tw_bf16_to_f32(a) * (double)tw_bf16_to_f32(b));
}

// -- both: sign, order, clamps --

TW_INLINE int tw_is_nan_f16(uint16_t bits) { return (bits & 0x7fffu) > 0x7c00u; }
TW_INLINE int tw_is_nan_bf16(uint16_t bits) { return (bits & 0x7fffu) > 0x7f80u; }

// Order as integers: sign and magnitude to two's complement; -0 comes before +0.
TW_INLINE int tw_order_half(uint16_t bits) { return (bits & 0x8000u) ? -(int)(bits & 0x7fffu) - 1 : (int)bits; }

#define TW_HALF_MIN_MAX(format)                                                                                  \
  TW_INLINE uint16_t tw_min_##format(uint16_t a, uint16_t b) {                                                   \
    uint16_t least = tw_order_half(a) < tw_order_half(b) ? a : b;                                                \
    uint16_t some = tw_is_nan_##format(a) ? (tw_is_nan_##format(b) ? (uint16_t)0x7fffu : b) : a;                 \
    return (tw_is_nan_##format(a) | tw_is_nan_##format(b)) ? some : least;                                       \
  }                                                                                                              \
  TW_INLINE uint16_t tw_max_##format(uint16_t a, uint16_t b) {                                                   \
    uint16_t most = tw_order_half(a) > tw_order_half(b) ? a : b;                                                 \
    uint16_t some = tw_is_nan_##format(a) ? (tw_is_nan_##format(b) ? (uint16_t)0x7fffu : b) : a;                 \
    return (tw_is_nan_##format(a) | tw_is_nan_##format(b)) ? some : most;                                        \
  }                                                                                                              \
  TW_INLINE uint16_t tw_min_nan_##format(uint16_t a, uint16_t b) {                                               \
    uint16_t least = tw_order_half(a) < tw_order_half(b) ? a : b;                                                \
    return (tw_is_nan_##format(a) | tw_is_nan_##format(b)) ? (uint16_t)0x7fffu : least;                          \
  }                                                                                                              \
  TW_INLINE uint16_t tw_max_nan_##format(uint16_t a, uint16_t b) {                                               \
    uint16_t most = tw_order_half(a) > tw_order_half(b) ? a : b;                                                 \
    return (tw_is_nan_##format(a) | tw_is_nan_##format(b)) ? (uint16_t)0x7fffu : most;                           \
  }                                                                                                              \
  /* .relu: negative to +0, NaN to the canonical one. */                                                         \
  TW_INLINE uint16_t tw_relu_##format(uint16_t a) {                                                              \
    return (uint16_t)(tw_is_nan_##format(a) ? 0x7fffu : (a & 0x8000u) ? 0u : a);                                 \
  }
TW_HALF_MIN_MAX(f16)
TW_HALF_MIN_MAX(bf16)
#undef TW_HALF_MIN_MAX

// .sat for f16: to [0, 1], NaN to +0.
TW_INLINE uint16_t tw_saturate_f16(uint16_t a) {
  return (uint16_t)((tw_is_nan_f16(a) | (a >> 15)) ? 0u : a > 0x3c00u ? 0x3c00u : a);
}
// neg and abs of a NaN give the canonical NaN only where the instruction is arithmetic; here the sign bit alone moves.
TW_INLINE uint16_t tw_neg_half(uint16_t a) { return a ^ 0x8000u; }
TW_INLINE uint16_t tw_abs_half(uint16_t a) { return a & 0x7fffu; }

// -- 32 lanes --

#if defined(__F16C__) && defined(__AVX__)
#include <immintrin.h>
TW_INLINE void tw_f16_to_f32_lanes(const uint16_t* a, float* d, int count) { // count a multiple of 8
  for (int i = 0; i < count; i += 8) _mm256_storeu_ps(d + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(a + i))));
}
#else
TW_INLINE void tw_f16_to_f32_lanes(const uint16_t* a, float* d, int count) {
  for (int i = 0; i < count; ++i) d[i] = tw_f16_to_f32(a[i]);
}
#endif

#endif
