// f64 arithmetic in directed rounding, on integers of 128 bits.
#include "numeric_arithmetic.h"

typedef unsigned __int128 tw_wide;

// -- f64 in directed rounding --

// A finite non-zero number with 128 bits of significand, leading one in bit 126, so that a sum cannot overflow.
typedef struct {
  int negative;
  int exponent; // of bit 126
  tw_wide significand;
} tw_wide_number;

static tw_wide tw_shift_jam(tw_wide value, int shift) {
  if (shift <= 0) return value;
  if (shift >= 128) return value != 0;
  tw_wide lost = value & (((tw_wide)1 << shift) - 1);
  return (value >> shift) | (lost != 0);
}

static double tw_pack_wide(tw_wide_number number, tw_rounding rounding) {
  uint64_t high = (uint64_t)(number.significand >> 64);
  int lead = high ? 127 - __builtin_clzll(high) : 63 - __builtin_clzll((uint64_t)number.significand);
  tw_unpacked narrow = {TW_CLASS_FINITE, number.negative, number.exponent + lead - 126, 0};
  narrow.significand = lead >= 63 ? (uint64_t)tw_shift_jam(number.significand, lead - 63)
                                  : (uint64_t)(number.significand << (63 - lead));
  return tw_f64_of(tw_pack(narrow, TW_FORMAT_F64, rounding, 0));
}

static tw_wide_number tw_widen(tw_unpacked number) {
  return (tw_wide_number){number.negative, number.exponent, (tw_wide)number.significand << 63};
}

static tw_wide_number tw_product(tw_unpacked a, tw_unpacked b) {
  // Bit 126 stands for 2^(ea + eb); the product may reach bit 127, which tw_pack_wide and tw_sum put in order.
  tw_wide_number product = {a.negative ^ b.negative, a.exponent + b.exponent,
                            (tw_wide)a.significand * b.significand};
  if (product.significand >> 127) {
    product.significand = tw_shift_jam(product.significand, 1); // 106 bits: the low ones are zero, nothing is lost
    product.exponent += 1;
  }
  return product;
}

static double tw_sum(tw_wide_number a, tw_wide_number b, tw_rounding rounding) {
  if (a.exponent < b.exponent || (a.exponent == b.exponent && a.significand < b.significand)) {
    tw_wide_number swap = a;
    a = b;
    b = swap;
  }
  // Both keep at least 20 low bits free, so that what is jammed never takes part in a cancellation.
  tw_wide small = tw_shift_jam(b.significand, a.exponent - b.exponent);
  if (a.negative == b.negative) {
    a.significand = a.significand + small;
  } else {
    a.significand = a.significand - small;
    if (a.significand == 0) return rounding == TW_RM ? -0.0 : 0.0;
  }
  return tw_pack_wide(a, rounding);
}

static int tw_special_f64(double value) { return !(value - value == 0.0); }

double tw_fma_f64_mode(double a, double b, double c, tw_rounding rounding) {
  if (tw_special_f64(a) || tw_special_f64(b) || tw_special_f64(c)) return __builtin_fma(a, b, c);
  tw_unpacked x = tw_unpack(tw_f64_bits(a), TW_FORMAT_F64), y = tw_unpack(tw_f64_bits(b), TW_FORMAT_F64);
  tw_unpacked z = tw_unpack(tw_f64_bits(c), TW_FORMAT_F64);
  if (x.kind == TW_CLASS_ZERO || y.kind == TW_CLASS_ZERO) {
    int negative = x.negative ^ y.negative;
    if (z.kind != TW_CLASS_ZERO) return c;
    if (negative == z.negative) return c;
    return rounding == TW_RM ? -0.0 : 0.0;
  }
  tw_wide_number product = tw_product(x, y);
  if (z.kind == TW_CLASS_ZERO) return tw_pack_wide(product, rounding);
  return tw_sum(product, tw_widen(z), rounding);
}

double tw_add_f64_mode(double a, double b, tw_rounding rounding) {
  if (tw_special_f64(a) || tw_special_f64(b)) return a + b;
  return tw_fma_f64_mode(a, 1.0, b, rounding);
}

double tw_sub_f64_mode(double a, double b, tw_rounding rounding) {
  if (tw_special_f64(a) || tw_special_f64(b)) return a - b;
  return tw_fma_f64_mode(a, 1.0, -b, rounding);
}

double tw_mul_f64_mode(double a, double b, tw_rounding rounding) {
  tw_unpacked x = tw_unpack(tw_f64_bits(a), TW_FORMAT_F64), y = tw_unpack(tw_f64_bits(b), TW_FORMAT_F64);
  if (x.kind != TW_CLASS_FINITE || y.kind != TW_CLASS_FINITE) return a * b;
  return tw_pack_wide(tw_product(x, y), rounding);
}

double tw_div_f64_mode(double a, double b, tw_rounding rounding) {
  tw_unpacked x = tw_unpack(tw_f64_bits(a), TW_FORMAT_F64), y = tw_unpack(tw_f64_bits(b), TW_FORMAT_F64);
  if (x.kind != TW_CLASS_FINITE || y.kind != TW_CLASS_FINITE) return a / b;
  uint64_t divisor = y.significand >> 11; // 53 bits
  tw_wide numerator = (tw_wide)(x.significand >> 11) << 64;
  tw_wide quotient = numerator / divisor; // 64 or 65 bits
  quotient = quotient << 1 | (numerator % divisor != 0);
  // (x / 2^52) / (y / 2^52) = quotient / 2^65: bit 126 stands for 2^61 times its unit.
  tw_wide_number result = {x.negative ^ y.negative, x.exponent - y.exponent + 61, quotient};
  return tw_pack_wide(result, rounding);
}

double tw_rcp_f64_mode(double a, tw_rounding rounding) { return tw_div_f64_mode(1.0, a, rounding); }

double tw_sqrt_f64_mode(double a, tw_rounding rounding) {
  tw_unpacked x = tw_unpack(tw_f64_bits(a), TW_FORMAT_F64);
  if (x.kind != TW_CLASS_FINITE || x.negative) return __builtin_sqrt(a);
  // value = significand * 2^(exponent - 63) = rest * 2^(exponent - 63 - shift), that power made even.
  int shift = x.exponent & 1 ? 62 : 63;
  tw_wide rest = (tw_wide)x.significand << shift, root = 0;
  for (int bit = 63; bit >= 0; --bit) {
    tw_wide trial = root | (tw_wide)1 << bit;
    if (trial * trial <= rest) root = trial;
  }
  tw_wide significand = root << 1 | (root * root != rest);
  tw_wide_number result = {0, (x.exponent - 63 - shift) / 2 + 125, significand};
  return tw_pack_wide(result, rounding);
}
