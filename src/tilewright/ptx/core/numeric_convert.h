// cvt: every conversion PTX has between integers and floating-point numbers, by one description.
//
// `tw_conversion_find` reads the modifiers of a cvt once; `tw_convert` then converts one lane. The common pairs also
// have functions of their own below and in numeric_half.h, which a loop over lanes turns into vector code.
#ifndef TW_NUMERIC_CONVERT_H
#define TW_NUMERIC_CONVERT_H

#include "numeric_bits.h"

typedef enum {
  TW_U8, TW_U16, TW_U32, TW_U64, TW_S8, TW_S16, TW_S32, TW_S64,
  TW_F16, TW_BF16, TW_F32, TW_F64, TW_TF32,
  TW_F16X2, TW_BF16X2, TW_E4M3X2, TW_E5M2X2,
  TW_NUMBER_TYPES
} tw_number_type;

enum {
  TW_CVT_FTZ = 1,        // subnormal f32 inputs and results to zero
  TW_CVT_SAT = 2,        // floats to [0, 1], integers to the range of the destination
  TW_CVT_RELU = 4,       // negative results to +0
  TW_CVT_SATFINITE = 8,  // overflow to the largest finite magnitude
  TW_CVT_INTEGRAL = 16,  // .rni .rzi .rmi .rpi: to an integer, also between floats
};

// What a cvt does, in one integer: destination, source, rounding, flags (6, 6, 3 and 5 bits from the lowest).
typedef int32_t tw_conversion;
#define TW_CONVERSION(destination, source, rounding, flags) \
  ((tw_conversion)((destination) | (source) << 6 | (int)(rounding) << 12 | (flags) << 15))
#define TW_CVT_DESTINATION(c) ((tw_number_type)((c) & 63))
#define TW_CVT_SOURCE(c) ((tw_number_type)((c) >> 6 & 63))
#define TW_CVT_ROUNDING(c) ((tw_rounding)((c) >> 12 & 7))
#define TW_CVT_FLAGS(c) ((c) >> 15 & 31)

// From the modifiers after "cvt.", say "rn.satfinite.e4m3x2.f32"; -1: not a conversion known here.
tw_conversion tw_conversion_find(const char* modifiers);
// Source operands a conversion takes: 2 for the packing ones (d, a, b with a in the upper half), else 1.
int tw_conversion_operands(tw_conversion conversion);
// One lane. Narrow values stand in the low bits; a signed result narrower than 64 bits comes back zero-extended.
uint64_t tw_convert(tw_conversion conversion, uint64_t a, uint64_t b);

// -- common pairs, no branches --

// cvt.rzi.s32.f32: out of range to the nearest end, NaN to 0.
TW_INLINE int32_t tw_f32_to_s32_rz(float value) {
  float inside = value > -0x1p31f ? value : -0x1p31f; // also takes NaN, which is put right below
  int32_t truncated = (int32_t)(inside < 0x1.fffffep30f ? inside : 0x1.fffffep30f);
  truncated = value >= 0x1p31f ? INT32_MAX : truncated;
  return value == value ? truncated : 0;
}
TW_INLINE float tw_rint_f32(float value, tw_rounding rounding) {
  switch (rounding) {
    case TW_RZ: return tw_canonical_f32(__builtin_truncf(value));
    case TW_RM: return tw_canonical_f32(__builtin_floorf(value));
    case TW_RP: return tw_canonical_f32(__builtin_ceilf(value));
    default: return tw_canonical_f32(__builtin_rintf(value));
  }
}
TW_INLINE double tw_rint_f64(double value, tw_rounding rounding) {
  switch (rounding) {
    case TW_RZ: return __builtin_trunc(value);
    case TW_RM: return __builtin_floor(value);
    case TW_RP: return __builtin_ceil(value);
    default: return __builtin_rint(value);
  }
}

#endif
