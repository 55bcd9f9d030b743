// Handlers: moves, integers, bits, predicates and comparisons.
#ifndef TW_INTEGER_H
#define TW_INTEGER_H

#include "coverage.h"
#include "numeric.h"

typedef __int128 tw_s128;
typedef unsigned __int128 tw_u128;

// -- moves --

TW_HANDLER(nop) {
  (void)w, (void)i, (void)exec;
  return TW_NEXT;
}
TW_UNARY(mov_16, uint16_t, uint16_t, x)
TW_UNARY(mov_32, uint32_t, uint32_t, x)
TW_UNARY(mov_64, uint64_t, uint64_t, x)
TW_HANDLER(mov_pred) {
  tw_set_predicate(w, i->o[0], tw_predicate(w, i->o[1]), exec);
  return TW_NEXT;
}
TW_BINARY(pack_2x16, uint32_t, uint16_t, uint16_t, (uint32_t)x | (uint32_t)y << 16)
TW_BINARY(pack_2x32, uint64_t, uint32_t, uint32_t, (uint64_t)x | (uint64_t)y << 32)
TW_HANDLER(pack_4x16) {
  const uint16_t *a = TW_SRC(uint16_t, 1), *b = TW_SRC(uint16_t, 2), *c = TW_SRC(uint16_t, 3), *e = TW_SRC(uint16_t, 4);
  TW_RESULT(uint64_t, (uint64_t)a[l] | (uint64_t)b[l] << 16 | (uint64_t)c[l] << 32 | (uint64_t)e[l] << 48);
}
// Destinations o[0..], source o[4]; a negative destination is the sink. The source may be one of them in width only.
#define TW_UNPACK(name, parts, narrow, wide)                                     \
  TW_HANDLER(name) {                                                             \
    const wide* a = TW_SRC(wide, 4);                                             \
    for (int part = 0; part < (parts); part++) {                                 \
      if (i->o[part] < 0) continue;                                              \
      narrow* d = TW_DST(narrow, part);                                          \
      int shift = part * (int)sizeof(narrow) * 8;                                \
      narrow held[TW_LANES];                                                     \
      TW_LOOP held[l] = (narrow)(a[l] >> shift);                                 \
      TW_BLEND(d, held, exec);                                                   \
    }                                                                            \
    return TW_NEXT;                                                              \
  }
TW_UNPACK(unpack_2x16, 2, uint16_t, uint32_t)
TW_UNPACK(unpack_2x32, 2, uint32_t, uint64_t)
TW_UNPACK(unpack_4x16, 4, uint16_t, uint64_t)

#define TW_SELECT(width)                                                                          \
  TW_HANDLER(selp_##width) {                                                                      \
    const uint##width##_t *a = TW_SRC(uint##width##_t, 1), *b = TW_SRC(uint##width##_t, 2);       \
    uint32_t p = tw_predicate(w, i->o[3]);                                                        \
    tw_cover_choice(w, i, p, exec);                                                               \
    TW_RESULT(uint##width##_t, (p & tw_lane_bit[l]) ? a[l] : b[l]);                               \
  }                                                                                               \
  TW_TERNARY(slct_##width, uint##width##_t, uint##width##_t, uint##width##_t, int32_t, z >= 0 ? x : y) \
  TW_HANDLER(slct_f32_##width) {                                                                  \
    const uint##width##_t *a = TW_SRC(uint##width##_t, 1), *b = TW_SRC(uint##width##_t, 2);       \
    const float* c = TW_SRC(float, 3);                                                            \
    bool flush = i->mod & TW_MOD_FTZ;                                                             \
    TW_RESULT(uint##width##_t, (flush ? tw_flush_f32(c[l]) : c[l]) >= 0.0f ? a[l] : b[l]);        \
  }
TW_SELECT(16)
TW_SELECT(32)
TW_SELECT(64)

// -- arithmetic --

#define TW_INTEGER(W)                                                                              \
  TW_BINARY(add_##W, uint##W##_t, uint##W##_t, uint##W##_t, x + y)                                 \
  TW_BINARY(sub_##W, uint##W##_t, uint##W##_t, uint##W##_t, x - y)                                 \
  TW_BINARY(mul_##W, uint##W##_t, uint##W##_t, uint##W##_t, (uint64_t)x * y)                       \
  TW_TERNARY(mad_##W, uint##W##_t, uint##W##_t, uint##W##_t, uint##W##_t, (uint64_t)x * y + z)     \
  TW_UNARY(neg_##W, uint##W##_t, uint##W##_t, 0 - x)                                               \
  TW_BINARY(and_##W, uint##W##_t, uint##W##_t, uint##W##_t, x & y)                                 \
  TW_BINARY(or_##W, uint##W##_t, uint##W##_t, uint##W##_t, x | y)                                  \
  TW_BINARY(xor_##W, uint##W##_t, uint##W##_t, uint##W##_t, x ^ y)                                 \
  TW_UNARY(not_##W, uint##W##_t, uint##W##_t, ~x)                                                  \
  TW_UNARY(cnot_##W, uint##W##_t, uint##W##_t, x == 0)                                             \
  TW_BINARY(shl_##W, uint##W##_t, uint##W##_t, uint32_t, y < W ? (uint##W##_t)((uint64_t)x << (y & 63)) : 0)              \
  TW_BINARY(shr_u##W, uint##W##_t, uint##W##_t, uint32_t, y < W ? x >> (y & (W - 1)) : 0)          \
  TW_BINARY(shr_s##W, int##W##_t, int##W##_t, uint32_t, x >> (y < W ? y : W - 1))                  \
  TW_BINARY(min_s##W, int##W##_t, int##W##_t, int##W##_t, x < y ? x : y)                           \
  TW_BINARY(min_u##W, uint##W##_t, uint##W##_t, uint##W##_t, x < y ? x : y)                        \
  TW_BINARY(max_s##W, int##W##_t, int##W##_t, int##W##_t, x > y ? x : y)                           \
  TW_BINARY(max_u##W, uint##W##_t, uint##W##_t, uint##W##_t, x > y ? x : y)                        \
  TW_BINARY(div_u##W, uint##W##_t, uint##W##_t, uint##W##_t, y ? x / y : (uint##W##_t)-1)          \
  TW_BINARY(rem_u##W, uint##W##_t, uint##W##_t, uint##W##_t, y ? x % y : x)                        \
  TW_BINARY(div_s##W, int##W##_t, int##W##_t, int##W##_t,                                          \
            y == 0 ? (int##W##_t)-1 : y == -1 ? (int##W##_t)(0 - (uint##W##_t)x) : x / y)          \
  TW_BINARY(rem_s##W, int##W##_t, int##W##_t, int##W##_t, y == 0 ? x : y == -1 ? 0 : x % y)        \
  TW_UNARY(abs_s##W, uint##W##_t, int##W##_t, x < 0 ? 0 - (uint##W##_t)x : (uint##W##_t)x)         \
  TW_TERNARY(sad_s##W, uint##W##_t, int##W##_t, int##W##_t, uint##W##_t,                           \
             z + (x < y ? (uint##W##_t)y - (uint##W##_t)x : (uint##W##_t)x - (uint##W##_t)y))      \
  TW_TERNARY(sad_u##W, uint##W##_t, uint##W##_t, uint##W##_t, uint##W##_t, z + (x < y ? y - x : x - y))
TW_INTEGER(16)
TW_INTEGER(32)
TW_INTEGER(64)

#define TW_HIGH(W, signed_twice, unsigned_twice)                                                                      \
  TW_BINARY(mul_hi_s##W, int##W##_t, int##W##_t, int##W##_t, ((signed_twice)x * y) >> W)                              \
  TW_BINARY(mul_hi_u##W, uint##W##_t, uint##W##_t, uint##W##_t, ((unsigned_twice)x * y) >> W)                         \
  TW_TERNARY(mad_hi_s##W, uint##W##_t, int##W##_t, int##W##_t, uint##W##_t, (uint##W##_t)(((signed_twice)x * y) >> W) + z) \
  TW_TERNARY(mad_hi_u##W, uint##W##_t, uint##W##_t, uint##W##_t, uint##W##_t, (uint##W##_t)(((unsigned_twice)x * y) >> W) + z)
TW_HIGH(16, int32_t, uint32_t)
TW_HIGH(32, int64_t, uint64_t)
TW_HIGH(64, tw_s128, tw_u128)

TW_BINARY(mul_wide_s16, int32_t, int16_t, int16_t, (int32_t)x * y)
TW_BINARY(mul_wide_u16, uint32_t, uint16_t, uint16_t, (uint32_t)x * y)
TW_BINARY(mul_wide_s32, int64_t, int32_t, int32_t, (int64_t)x * y)
TW_BINARY(mul_wide_u32, uint64_t, uint32_t, uint32_t, (uint64_t)x * y)
TW_TERNARY(mad_wide_s16, uint32_t, int16_t, int16_t, uint32_t, (uint32_t)((int32_t)x * y) + z)
TW_TERNARY(mad_wide_u16, uint32_t, uint16_t, uint16_t, uint32_t, (uint32_t)x * y + z)
TW_TERNARY(mad_wide_s32, uint64_t, int32_t, int32_t, uint64_t, (uint64_t)((int64_t)x * y) + z)
TW_TERNARY(mad_wide_u32, uint64_t, uint32_t, uint32_t, uint64_t, (uint64_t)x * y + z)

static inline int32_t tw_clamp_s32(int64_t value) {
  return value > INT32_MAX ? INT32_MAX : value < INT32_MIN ? INT32_MIN : (int32_t)value;
}
TW_BINARY(add_sat_s32, int32_t, int32_t, int32_t, tw_clamp_s32((int64_t)x + y))
TW_BINARY(sub_sat_s32, int32_t, int32_t, int32_t, tw_clamp_s32((int64_t)x - y))
TW_TERNARY(mad_hi_sat_s32, int32_t, int32_t, int32_t, int32_t, tw_clamp_s32((((int64_t)x * y) >> 32) + z))

#define TW_SIGN24(x) ((int32_t)((uint32_t)(x) << 8) >> 8)
#define TW_LOW24(x) ((uint32_t)(x) & 0xffffffu)
#define TW_MUL24_S(x, y) ((int64_t)TW_SIGN24(x) * TW_SIGN24(y))
#define TW_MUL24_U(x, y) ((uint64_t)TW_LOW24(x) * TW_LOW24(y))
TW_BINARY(mul24_s32, uint32_t, uint32_t, uint32_t, TW_MUL24_S(x, y))
TW_BINARY(mul24_u32, uint32_t, uint32_t, uint32_t, TW_MUL24_U(x, y))
TW_BINARY(mul24_hi_s32, uint32_t, uint32_t, uint32_t, TW_MUL24_S(x, y) >> 16)
TW_BINARY(mul24_hi_u32, uint32_t, uint32_t, uint32_t, TW_MUL24_U(x, y) >> 16)
TW_TERNARY(mad24_s32, uint32_t, uint32_t, uint32_t, uint32_t, (uint32_t)TW_MUL24_S(x, y) + z)
TW_TERNARY(mad24_u32, uint32_t, uint32_t, uint32_t, uint32_t, (uint32_t)TW_MUL24_U(x, y) + z)
TW_TERNARY(mad24_hi_s32, uint32_t, uint32_t, uint32_t, uint32_t, (uint32_t)(TW_MUL24_S(x, y) >> 16) + z)
TW_TERNARY(mad24_hi_u32, uint32_t, uint32_t, uint32_t, uint32_t, (uint32_t)(TW_MUL24_U(x, y) >> 16) + z)

// Carry chains: add.cc, addc, sub.cc, subc, mad.cc, madc. The carry is one bit per lane. Subtraction adds the complement,
// so that the bit it leaves says "no borrow": the compiler's own 128-bit division reads it with addc after subc.cc.
#define TW_CARRY(name, W, wide, exact)                                                                        \
  TW_HANDLER(name) {                                                                                          \
    const uint##W##_t *a = TW_SRC(uint##W##_t, 1), *b = TW_SRC(uint##W##_t, 2);                               \
    const uint##W##_t* c = i->o[3] < 0 ? a : TW_SRC(uint##W##_t, 3);                                          \
    uint##W##_t* d = TW_DST(uint##W##_t, 0);                                                                  \
    uint32_t in = i->mod & TW_MOD_CARRY_IN ? w->carry : 0, out = 0;                                           \
    (void)c;                                                                                                  \
    TW_EACH(exec) {                                                                                           \
      wide x = a[l], y = b[l], z = c[l], carry = in >> l & 1;                                                 \
      (void)z;                                                                                                \
      wide sum = (exact);                                                                                     \
      out |= (uint32_t)(sum >> W & 1) << l;                                                                   \
      d[l] = (uint##W##_t)sum;                                                                                \
    }                                                                                                         \
    if (i->mod & TW_MOD_CARRY_OUT) w->carry = (w->carry & ~exec) | out;                                       \
    return TW_NEXT;                                                                                           \
  }
TW_CARRY(carry_add_32, 32, uint64_t, x + y + carry)
TW_CARRY(carry_add_64, 64, tw_u128, x + y + carry)
TW_CARRY(carry_sub_32, 32, uint64_t, x + (uint32_t)~y + (i->mod & TW_MOD_CARRY_IN ? carry : 1))
TW_CARRY(carry_sub_64, 64, tw_u128, x + (uint64_t)~y + (i->mod & TW_MOD_CARRY_IN ? carry : 1))
// flags: 0 lo, 1 hi unsigned, 2 hi signed
static inline uint32_t tw_product_32(uint64_t x, uint64_t y, int part) {
  if (part == 2) return (uint32_t)(((int64_t)(int32_t)x * (int32_t)y) >> 32);
  return (uint32_t)(part ? (x * y) >> 32 : x * y);
}
static inline uint64_t tw_product_64(tw_u128 x, tw_u128 y, int part) {
  if (part == 2) return (uint64_t)(((tw_s128)(int64_t)x * (int64_t)y) >> 64);
  return (uint64_t)(part ? (x * y) >> 64 : x * y);
}
TW_CARRY(carry_mad_32, 32, uint64_t, (uint64_t)tw_product_32(x, y, i->flags & 3) + z + carry)
TW_CARRY(carry_mad_64, 64, tw_u128, (tw_u128)tw_product_64(x, y, i->flags & 3) + z + carry)

#define TW_PAIRS(name, half, expression)                                                        \
  TW_HANDLER(name) {                                                                            \
    const half *a = TW_SRC(half, 1), *b = TW_SRC(half, 2);                                      \
    half held[2 * TW_LANES] __attribute__((aligned(64)));                                       \
    for (int k = 0; k < 2 * TW_LANES; k++) {                                                    \
      half x = a[k], y = b[k];                                                                  \
      held[k] = (half)(expression);                                                             \
    }                                                                                           \
    uint32_t* d = TW_DST(uint32_t, 0);                                                          \
    uint32_t whole[TW_LANES];                                                                   \
    memcpy(whole, held, sizeof whole);                                                          \
    TW_BLEND(d, whole, exec);                                                                   \
    return TW_NEXT;                                                                             \
  }
TW_PAIRS(min_s16x2, int16_t, x < y ? x : y)
TW_PAIRS(max_s16x2, int16_t, x > y ? x : y)
TW_PAIRS(min_u16x2, uint16_t, x < y ? x : y)
TW_PAIRS(max_u16x2, uint16_t, x > y ? x : y)
TW_PAIRS(add_16x2, uint16_t, x + y)

// -- predicates --

#define TW_PREDICATES(name, expression)                                             \
  TW_HANDLER(name) {                                                                \
    uint32_t x = tw_predicate(w, i->o[1]), y = tw_predicate(w, i->o[2]);            \
    tw_set_predicate(w, i->o[0], expression, exec);                                 \
    return TW_NEXT;                                                                 \
  }
TW_PREDICATES(and_pred, x & y)
TW_PREDICATES(or_pred, x | y)
TW_PREDICATES(xor_pred, x ^ y)
TW_HANDLER(not_pred) {
  tw_set_predicate(w, i->o[0], ~tw_predicate(w, i->o[1]), exec);
  return TW_NEXT;
}
TW_HANDLER(selp_pred) {
  uint32_t x = tw_predicate(w, i->o[1]), y = tw_predicate(w, i->o[2]), p = tw_predicate(w, i->o[3]);
  tw_cover_choice(w, i, p, exec);
  tw_set_predicate(w, i->o[0], (p & x) | (~p & y), exec);
  return TW_NEXT;
}

#endif
