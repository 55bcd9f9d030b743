// Bit patterns, rounding and the unpacked form of a floating-point number. Pure functions, no state.
//
// Rounding of a narrow result is done on integers, so that it does not depend on the processor's rounding mode.
// Compile without contraction (-ffp-contract=off) and without fast-math.
#ifndef TW_NUMERIC_BITS_H
#define TW_NUMERIC_BITS_H

#include <stdint.h>

#define TW_INLINE static inline __attribute__((always_inline, unused))

// PTX's rounding modifiers; RNA (ties away from zero) exists for tf32 alone.
typedef enum { TW_RN = 0, TW_RZ = 1, TW_RM = 2, TW_RP = 3, TW_RNA = 4 } tw_rounding;

// What the hardware writes when a result is not a number.
#define TW_NAN_F16 0x7fffu
#define TW_NAN_BF16 0x7fffu
#define TW_NAN_F32 0x7fffffffu
#define TW_NAN_F64 0xfff8000000000000ull
#define TW_NAN_FP8 0x7fu

// tw_f32_bits, tw_f32_of and the same of f64: the bits of a number and back.
#define TW_BIT_CASTS(format, type, bits_type)      \
  TW_INLINE bits_type tw_##format##_bits(type value) { \
    bits_type bits;                                \
    __builtin_memcpy(&bits, &value, sizeof bits);  \
    return bits;                                   \
  }                                                \
  TW_INLINE type tw_##format##_of(bits_type bits) { \
    type value;                                    \
    __builtin_memcpy(&value, &bits, sizeof value); \
    return value;                                  \
  }
TW_BIT_CASTS(f32, float, uint32_t)
TW_BIT_CASTS(f64, double, uint64_t)
#undef TW_BIT_CASTS

// The hardware's f32 NaN is always 0x7fffffff; f64 keeps the payload of an operand.
TW_INLINE float tw_canonical_f32(float value) { return value == value ? value : tw_f32_of(TW_NAN_F32); }

// .ftz: subnormal becomes a zero of the same sign.
TW_INLINE uint32_t tw_flush_f32_bits(uint32_t bits) { return (bits & 0x7f800000u) ? bits : bits & 0x80000000u; }
TW_INLINE float tw_flush_f32(float value) { return tw_f32_of(tw_flush_f32_bits(tw_f32_bits(value))); }
TW_INLINE uint16_t tw_flush_f16(uint16_t bits) { return (uint16_t)((bits & 0x7c00u) ? bits : bits & 0x8000u); }

// .sat: to [0, 1], NaN to +0.
TW_INLINE float tw_saturate_f32(float value) {
  float low = value > 0.0f ? value : 0.0f;
  return low < 1.0f ? low : 1.0f;
}
TW_INLINE double tw_saturate_f64(double value) {
  double low = value > 0.0 ? value : 0.0;
  return low < 1.0 ? low : 1.0;
}

// -- any format, through integers --

// A binary floating-point format. `largest` is the code of the greatest finite magnitude, `infinity` that of overflow.
typedef struct {
  int mantissa_bits;
  int bias;
  uint64_t largest;
  uint64_t infinity;
  uint64_t nan;
  uint64_t sign;
} tw_format;

#define TW_FORMAT_F64 ((tw_format){52, 1023, 0x7fefffffffffffffull, 0x7ff0000000000000ull, TW_NAN_F64, 1ull << 63})
#define TW_FORMAT_F32 ((tw_format){23, 127, 0x7f7fffffu, 0x7f800000u, TW_NAN_F32, 0x80000000u})
#define TW_FORMAT_F16 ((tw_format){10, 15, 0x7bffu, 0x7c00u, TW_NAN_F16, 0x8000u})
#define TW_FORMAT_BF16 ((tw_format){7, 127, 0x7f7fu, 0x7f80u, TW_NAN_BF16, 0x8000u})
#define TW_FORMAT_E4M3 ((tw_format){3, 7, 0x7eu, 0x7fu, TW_NAN_FP8, 0x80u})  // no infinity: 0x7f is its NaN
#define TW_FORMAT_E5M2 ((tw_format){2, 15, 0x7bu, 0x7cu, TW_NAN_FP8, 0x80u})

typedef enum { TW_CLASS_ZERO, TW_CLASS_FINITE, TW_CLASS_INFINITE, TW_CLASS_NAN } tw_class;

// A number as sign, exponent and significand: significand / 2^63 * 2^exponent, leading one in bit 63.
// Bit 0 may stand for any non-zero remainder below it ("jammed").
typedef struct {
  tw_class kind;
  int negative;
  int exponent;
  uint64_t significand;
} tw_unpacked;

TW_INLINE tw_unpacked tw_unpack(uint64_t bits, tw_format format) {
  tw_unpacked number = {TW_CLASS_ZERO, (bits & format.sign) != 0, 0, 0};
  uint64_t magnitude = bits & (format.sign - 1);
  if (magnitude > format.largest) {
    number.kind = (magnitude == format.infinity && format.mantissa_bits != 3) ? TW_CLASS_INFINITE : TW_CLASS_NAN;
    return number;
  }
  if (magnitude == 0) return number;
  number.kind = TW_CLASS_FINITE;
  int exponent = (int)(magnitude >> format.mantissa_bits);
  uint64_t mantissa = magnitude & ((1ull << format.mantissa_bits) - 1);
  if (exponent)
    mantissa |= 1ull << format.mantissa_bits;
  else
    exponent = 1;
  int lead = 63 - __builtin_clzll(mantissa);
  number.exponent = exponent - format.bias + lead - format.mantissa_bits;
  number.significand = mantissa << (63 - lead);
  return number;
}

// An integer magnitude as an unpacked number.
TW_INLINE tw_unpacked tw_unpack_integer(uint64_t magnitude, int negative) {
  tw_unpacked number = {TW_CLASS_ZERO, negative, 0, 0};
  if (magnitude == 0) return number;
  int lead = 63 - __builtin_clzll(magnitude);
  number.kind = TW_CLASS_FINITE;
  number.exponent = lead;
  number.significand = magnitude << (63 - lead);
  return number;
}

// Drops the low `shift` bits (0..65) of a significand and rounds what is left.
TW_INLINE uint64_t tw_round_shift(uint64_t significand, int shift, int negative, tw_rounding rounding, int* inexact) {
  uint64_t kept = shift >= 64 ? 0 : significand >> shift;
  uint64_t rest, half; // compared on a 2^63 scale
  if (shift == 0) {
    *inexact = 0;
    return kept;
  }
  if (shift <= 63) {
    rest = significand << (64 - shift);
    half = 1ull << 63;
  } else if (shift == 64) {
    rest = significand;
    half = 1ull << 63;
  } else {
    rest = significand ? 1 : 0;
    half = 1ull << 63;
  }
  *inexact = rest != 0;
  int up = 0;
  switch (rounding) {
    case TW_RN: up = rest > half || (rest == half && (kept & 1)); break;
    case TW_RNA: up = rest >= half; break;
    case TW_RZ: up = 0; break;
    case TW_RM: up = negative && rest; break;
    case TW_RP: up = !negative && rest; break;
  }
  return kept + (uint64_t)up;
}

// Rounds to a format. `saturate`: overflow and infinity give the largest finite magnitude (.satfinite).
TW_INLINE uint64_t tw_pack(tw_unpacked number, tw_format format, tw_rounding rounding, int saturate) {
  uint64_t sign = number.negative ? format.sign : 0;
  if (number.kind == TW_CLASS_NAN) return format.nan;
  if (number.kind == TW_CLASS_ZERO) return sign;
  if (number.kind == TW_CLASS_INFINITE) return sign | (saturate ? format.largest : format.infinity);
  int smallest = 1 - format.bias;
  int shift = 63 - format.mantissa_bits, inexact;
  uint64_t code;
  if (number.exponent < smallest) {
    int deeper = smallest - number.exponent;
    shift = deeper > 64 ? 65 : shift + deeper > 65 ? 65 : shift + deeper;
    code = tw_round_shift(number.significand, shift, number.negative, rounding, &inexact);
  } else if (number.exponent > 1 << 14) {
    code = format.largest + 1;
  } else {
    uint64_t kept = tw_round_shift(number.significand, shift, number.negative, rounding, &inexact);
    code = ((uint64_t)(number.exponent + format.bias - 1) << format.mantissa_bits) + kept;
  }
  if (code > format.largest) {
    int finite = saturate || rounding == TW_RZ || (rounding == TW_RM && !number.negative) ||
                 (rounding == TW_RP && number.negative);
    code = finite ? format.largest : format.infinity;
  }
  return sign | code;
}

#endif
