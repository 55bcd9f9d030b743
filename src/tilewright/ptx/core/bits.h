// Handlers: bit counting, fields, permutes, dot products of bytes.
#ifndef TW_BITS_H
#define TW_BITS_H

#include "integer.h"

TW_UNARY(popc_32, uint32_t, uint32_t, __builtin_popcount(x))
TW_UNARY(popc_64, uint32_t, uint64_t, __builtin_popcountll(x))
TW_UNARY(clz_32, uint32_t, uint32_t, x ? __builtin_clz(x) : 32)
TW_UNARY(clz_64, uint32_t, uint64_t, x ? __builtin_clzll(x) : 64)

static inline uint32_t tw_reverse_32(uint32_t x) {
  x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
  x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
  x = (x >> 4 & 0x0f0f0f0fu) | (x & 0x0f0f0f0fu) << 4;
  return __builtin_bswap32(x);
}
TW_UNARY(brev_32, uint32_t, uint32_t, tw_reverse_32(x))
TW_UNARY(brev_64, uint64_t, uint64_t, (uint64_t)tw_reverse_32((uint32_t)x) << 32 | tw_reverse_32((uint32_t)(x >> 32)))

// flags 1: .shiftamt, the shift that brings the bit to the top rather than its position
#define TW_BFIND(W, clz, type, value)                                                       \
  TW_HANDLER(bfind_##type) {                                                                \
    const uint##W##_t* a = TW_SRC(uint##W##_t, 1);                                          \
    uint32_t shift = i->flags & 1;                                                          \
    TW_RESULT(uint32_t, ({                                                                  \
                uint##W##_t x = a[l];                                                       \
                uint##W##_t v = value;                                                      \
                v ? (uint32_t)(shift ? clz(v) : W - 1 - clz(v)) : 0xffffffffu;              \
              }));                                                                          \
  }
TW_BFIND(32, __builtin_clz, u32, x)
TW_BFIND(64, __builtin_clzll, u64, x)
TW_BFIND(32, __builtin_clz, s32, ((int32_t)x < 0 ? ~x : x))
TW_BFIND(64, __builtin_clzll, s64, ((int64_t)x < 0 ? ~x : x))

// Position and length are bytes; a field that runs past the top is filled with the sign (or zero).
#define TW_FIELD(W)                                                                                              \
  static inline uint##W##_t tw_field_u##W(uint##W##_t x, uint32_t at, uint32_t length) {                         \
    at &= 255, length &= 255;                                                                                    \
    if (at >= W || length == 0) return 0;                                                                        \
    x >>= at;                                                                                                    \
    return length >= W ? x : x & (((uint##W##_t)1 << length) - 1);                                               \
  }                                                                                                              \
  static inline uint##W##_t tw_field_s##W(uint##W##_t x, uint32_t at, uint32_t length) {                         \
    at &= 255, length &= 255;                                                                                    \
    if (length == 0) return 0;                                                                                   \
    uint32_t top = at + length - 1 < W - 1 ? at + length - 1 : W - 1;                                            \
    uint##W##_t sign = x >> top & 1 ? ~(uint##W##_t)0 : 0;                                                       \
    if (at >= W) return sign;                                                                                    \
    uint32_t kept = top - at + 1;                                                                                \
    if (kept >= W) return x;                                                                                     \
    uint##W##_t low = ((uint##W##_t)1 << kept) - 1;                                                              \
    return (x >> at & low) | (sign & ~low);                                                                      \
  }                                                                                                              \
  static inline uint##W##_t tw_insert_##W(uint##W##_t from, uint##W##_t into, uint32_t at, uint32_t length) {    \
    at &= 255, length &= 255;                                                                                    \
    if (at >= W || length == 0) return into;                                                                     \
    uint##W##_t low = length >= W ? ~(uint##W##_t)0 : ((uint##W##_t)1 << length) - 1;                            \
    return (into & ~(low << at)) | (from & low) << at;                                                           \
  }                                                                                                              \
  TW_TERNARY(bfe_u##W, uint##W##_t, uint##W##_t, uint32_t, uint32_t, tw_field_u##W(x, y, z))                     \
  TW_TERNARY(bfe_s##W, uint##W##_t, uint##W##_t, uint32_t, uint32_t, tw_field_s##W(x, y, z))                     \
  TW_HANDLER(bfi_##W) {                                                                                          \
    const uint##W##_t *a = TW_SRC(uint##W##_t, 1), *b = TW_SRC(uint##W##_t, 2);                                  \
    const uint32_t *at = TW_SRC(uint32_t, 3), *length = TW_SRC(uint32_t, 4);                                     \
    TW_RESULT(uint##W##_t, tw_insert_##W(a[l], b[l], at[l], length[l]));                                         \
  }
TW_FIELD(32)
TW_FIELD(64)

// flags 1: .wrap, else .clamp
static inline uint32_t tw_bit_mask(uint32_t at, uint32_t length, int wrap) {
  if (wrap) at &= 31, length &= 31;
  if (at > 31 || length == 0) return 0;
  return (length > 31 ? ~0u : (1u << length) - 1) << at;
}
TW_BINARY(bmsk_32, uint32_t, uint32_t, uint32_t, tw_bit_mask(x, y, i->flags & 1))
static inline uint32_t tw_extend(uint32_t x, uint32_t bits, int is_signed, int wrap) {
  if (wrap) bits &= 31;
  if (bits == 0) return 0;
  if (bits > 31) return x;
  uint32_t low = (1u << bits) - 1;
  return (x & low) | (is_signed && (x >> (bits - 1) & 1) ? ~low : 0);
}
TW_BINARY(szext_u32, uint32_t, uint32_t, uint32_t, tw_extend(x, y, 0, i->flags & 1))
TW_BINARY(szext_s32, uint32_t, uint32_t, uint32_t, tw_extend(x, y, 1, i->flags & 1))

// The n-th set bit of x from `base` on, upwards for n > 0, downwards for n < 0.
static inline uint32_t tw_nth_set(uint32_t x, uint32_t base, int32_t n) {
  if (base > 31) return 0xffffffffu;
  if (n == 0) return x >> base & 1 ? base : 0xffffffffu;
  int step = n > 0 ? 1 : -1;
  uint32_t left = n > 0 ? (uint32_t)n : 0u - (uint32_t)n;
  for (int at = (int)base; at >= 0 && at < 32; at += step)
    if (x >> at & 1 && --left == 0) return (uint32_t)at;
  return 0xffffffffu;
}
TW_TERNARY(fns, uint32_t, uint32_t, uint32_t, int32_t, tw_nth_set(x, y, z))

// flags: 0 default, 1 f4e, 2 b4e, 3 rc8, 4 ecl, 5 ecr, 6 rc16
static inline uint32_t tw_permute(uint32_t a, uint32_t b, uint32_t selector, int mode) {
  static const uint16_t fixed[7][4] = {{0, 0, 0, 0},
                                       {0x3210, 0x4321, 0x5432, 0x6543},
                                       {0x5670, 0x6701, 0x7012, 0x0123},
                                       {0x0000, 0x1111, 0x2222, 0x3333},
                                       {0x3210, 0x3211, 0x3222, 0x3333},
                                       {0x0000, 0x1110, 0x2210, 0x3210},
                                       {0x1010, 0x3232, 0x1010, 0x3232}};
  uint64_t bytes = (uint64_t)b << 32 | a;
  if (mode) selector = fixed[mode][selector & 3];
  uint32_t result = 0;
  for (int k = 0; k < 4; k++) {
    uint32_t pick = selector >> (4 * k) & 15;
    uint32_t byte = (uint32_t)(bytes >> (8 * (pick & 7))) & 255;
    if (pick & 8) byte = byte & 128 ? 255 : 0;
    result |= byte << (8 * k);
  }
  return result;
}
TW_TERNARY(prmt, uint32_t, uint32_t, uint32_t, uint32_t, tw_permute(x, y, z, i->flags & 7))

static inline uint32_t tw_logic(uint32_t a, uint32_t b, uint32_t c, uint32_t table) {
  uint32_t result = 0;
  if (table & 0x01) result |= ~a & ~b & ~c;
  if (table & 0x02) result |= ~a & ~b & c;
  if (table & 0x04) result |= ~a & b & ~c;
  if (table & 0x08) result |= ~a & b & c;
  if (table & 0x10) result |= a & ~b & ~c;
  if (table & 0x20) result |= a & ~b & c;
  if (table & 0x40) result |= a & b & ~c;
  if (table & 0x80) result |= a & b & c;
  return result;
}
TW_TERNARY(lop3, uint32_t, uint32_t, uint32_t, uint32_t, tw_logic(x, y, z, (uint32_t)i->imm))
// lop3.BoolOp: p = (result != 0) op q; destination o[0] (may be the sink), p o[4], q o[5]; flags 0 or, 1 and
TW_HANDLER(lop3_pred) {
  const uint32_t *a = TW_SRC(uint32_t, 1), *b = TW_SRC(uint32_t, 2), *c = TW_SRC(uint32_t, 3);
  uint32_t bits = 0, q = tw_predicate(w, i->o[5]);
  uint32_t held[TW_LANES];
  TW_LOOP held[l] = tw_logic(a[l], b[l], c[l], (uint32_t)i->imm);
  for (int l = 0; l < TW_LANES; l++) bits |= (uint32_t)(held[l] != 0) << l;
  if (i->o[0] >= 0) {
    uint32_t* d = TW_DST(uint32_t, 0);
    TW_BLEND(d, held, exec);
  }
  tw_set_predicate(w, i->o[4], i->flags & 1 ? bits & q : bits | q, exec);
  return TW_NEXT;
}

// Funnel shift of b:a; flags 1: .wrap, else .clamp
static inline uint32_t tw_funnel(uint32_t a, uint32_t b, uint32_t by, int wrap, int left) {
  by = wrap ? by & 31 : by > 32 ? 32 : by;
  uint64_t both = (uint64_t)b << 32 | a;
  return left ? (uint32_t)((by == 32 ? both << 32 : both << by) >> 32) : (uint32_t)(both >> by);
}
TW_TERNARY(shf_l, uint32_t, uint32_t, uint32_t, uint32_t, tw_funnel(x, y, z, i->flags & 1, 1))
TW_TERNARY(shf_r, uint32_t, uint32_t, uint32_t, uint32_t, tw_funnel(x, y, z, i->flags & 1, 0))

// flags: 1 a signed, 2 b signed, 4 .hi (dp2a)
static inline int32_t tw_byte(uint32_t x, int k, int is_signed) {
  return is_signed ? (int8_t)(x >> (8 * k)) : (int32_t)(x >> (8 * k) & 255);
}
static inline int32_t tw_half_of(uint32_t x, int k, int is_signed) {
  return is_signed ? (int16_t)(x >> (16 * k)) : (int32_t)(x >> (16 * k) & 65535);
}
static inline uint32_t tw_dot4(uint32_t a, uint32_t b, uint32_t c, int flags) {
  for (int k = 0; k < 4; k++) c += (uint32_t)(tw_byte(a, k, flags & 1) * tw_byte(b, k, flags & 2));
  return c;
}
static inline uint32_t tw_dot2(uint32_t a, uint32_t b, uint32_t c, int flags) {
  int high = flags & 4 ? 2 : 0;
  for (int k = 0; k < 2; k++) c += (uint32_t)(tw_half_of(a, k, flags & 1) * tw_byte(b, k + high, flags & 2));
  return c;
}
TW_TERNARY(dp4a, uint32_t, uint32_t, uint32_t, uint32_t, tw_dot4(x, y, z, i->flags))
TW_TERNARY(dp2a, uint32_t, uint32_t, uint32_t, uint32_t, tw_dot2(x, y, z, i->flags))

// Two halves or four bytes at once: vadd2, vsub4, vavrg4, vabsdiff4, vmin2, vmax4, vset4 and their like.
// flags: 0 add, 1 sub, 2 avrg, 3 absdiff, 4 min, 5 max, 6..11 set eq ne lt le gt ge. count: parts.
// mod: 1 a signed, 2 b signed, 4 d signed, 8 .sat, 16 .add (the parts are summed onto c)
static inline int32_t tw_part(uint32_t x, int k, int bits, int is_signed) {
  uint32_t value = x >> (k * bits) & ((1u << bits) - 1);
  return is_signed && value >> (bits - 1) ? (int32_t)(value - (1u << bits)) : (int32_t)value;
}
static inline int32_t tw_of_parts(int32_t a, int32_t b, int op) {
  switch (op) {
    case 0: return a + b;
    case 1: return a - b;
    case 2: return (a + b + (a + b >= 0)) >> 1;
    case 3: return a < b ? b - a : a - b;
    case 4: return a < b ? a : b;
    case 5: return a > b ? a : b;
    case 6: return a == b;
    case 7: return a != b;
    case 8: return a < b;
    case 9: return a <= b;
    case 10: return a > b;
    default: return a >= b;
  }
}
TW_HANDLER(video) {
  const uint32_t *a = TW_SRC(uint32_t, 1), *b = TW_SRC(uint32_t, 2), *c = TW_SRC(uint32_t, 3);
  uint32_t* d = TW_DST(uint32_t, 0);
  int parts = i->count, bits = 32 / parts, is_signed = i->mod & 4;
  int32_t low = is_signed ? -(1 << (bits - 1)) : 0, high = (1 << (is_signed ? bits - 1 : bits)) - 1;
  TW_EACH(exec) {
    uint32_t sum = c[l], packed = 0;
    for (int k = 0; k < parts; k++) {
      int32_t value = tw_of_parts(tw_part(a[l], k, bits, i->mod & 1), tw_part(b[l], k, bits, i->mod & 2), i->flags);
      if (i->mod & 8) value = value < low ? low : value > high ? high : value;
      sum += (uint32_t)value;
      packed |= ((uint32_t)value & ((1u << bits) - 1)) << (k * bits);
    }
    d[l] = i->mod & 16 ? sum : packed;
  }
  return TW_NEXT;
}

#endif
