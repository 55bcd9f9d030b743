// Handlers: setp of every type, set, testp.
#ifndef TW_COMPARE_H
#define TW_COMPARE_H

#include "lanes.h"
#include "numeric.h"

// p = comparison op c, q = !comparison op c. o: p, q (or the sink), a, b, c (negative: none). flags: 1 and, 2 or, 3 xor.
static inline int tw_compared(tw_warp* w, const tw_instr* i, uint32_t exec, uint32_t bits) {
  uint32_t p = bits, q = ~bits;
  if (i->o[4] >= 0) {
    uint32_t c = tw_predicate(w, i->o[4]);
    switch (i->flags & 3) {
      case 1: p &= c, q &= c; break;
      case 2: p |= c, q |= c; break;
      default: p ^= c, q ^= c; break;
    }
  }
  tw_set_predicate(w, i->o[0], p, exec);
  tw_set_predicate(w, i->o[1], q, exec);
  return TW_NEXT;
}

#define TW_SETP(name, type, load, expression)                        \
  TW_HANDLER(setp_##name) {                                          \
    const type *a = TW_SRC(type, 2), *b = TW_SRC(type, 3);           \
    uint8_t flags[TW_LANES] __attribute__((aligned(64)));            \
    TW_LOOP {                                                        \
      __auto_type x = load(a[l]);                                    \
      __auto_type y = load(b[l]);                                    \
      flags[l] = (uint8_t)(expression);                              \
    }                                                                \
    return tw_compared(w, i, exec, tw_pack_bytes(flags));            \
  }
#define TW_PLAIN(x) (x)
#define TW_SETP_ORDERED(suffix, type, load)        \
  TW_SETP(eq_##suffix, type, load, x == y)         \
  TW_SETP(lt_##suffix, type, load, x < y)          \
  TW_SETP(le_##suffix, type, load, x <= y)         \
  TW_SETP(gt_##suffix, type, load, x > y)          \
  TW_SETP(ge_##suffix, type, load, x >= y)
#define TW_SETP_INTEGER(suffix, type)              \
  TW_SETP_ORDERED(suffix, type, TW_PLAIN)          \
  TW_SETP(ne_##suffix, type, TW_PLAIN, x != y)
TW_SETP_INTEGER(s16, int16_t)
TW_SETP_INTEGER(s32, int32_t)
TW_SETP_INTEGER(s64, int64_t)
TW_SETP_INTEGER(u16, uint16_t)
TW_SETP_INTEGER(u32, uint32_t)
TW_SETP_INTEGER(u64, uint64_t)

// A NaN makes the plain comparisons false (ne too) and the ...u ones true.
#define TW_SETP_FLOAT(suffix, type, load)                        \
  TW_SETP_ORDERED(suffix, type, load)                            \
  TW_SETP(ne_##suffix, type, load, (x < y) | (x > y))            \
  TW_SETP(equ_##suffix, type, load, !((x < y) | (x > y)))        \
  TW_SETP(neu_##suffix, type, load, x != y)                      \
  TW_SETP(ltu_##suffix, type, load, !(x >= y))                   \
  TW_SETP(leu_##suffix, type, load, !(x > y))                    \
  TW_SETP(gtu_##suffix, type, load, !(x <= y))                   \
  TW_SETP(geu_##suffix, type, load, !(x < y))                    \
  TW_SETP(num_##suffix, type, load, (x == x) & (y == y))         \
  TW_SETP(nan_##suffix, type, load, (x != x) | (y != y))
#define TW_MAYBE_FLUSH(x) (i->mod & TW_MOD_FTZ ? tw_flush_f32(x) : (x))
#define TW_HALF_OPERAND(x) (tw_f16_to_f32(i->mod & TW_MOD_FTZ ? tw_flush_f16(x) : (x)))
TW_SETP_FLOAT(f32, float, TW_MAYBE_FLUSH)
TW_SETP_FLOAT(f64, double, TW_PLAIN)
TW_SETP_FLOAT(f16, uint16_t, TW_HALF_OPERAND)
TW_SETP_FLOAT(bf16, uint16_t, tw_bf16_to_f32)

// set: true as `imm`, false as zero
TW_HANDLER(set_value_32) {
  uint32_t p = tw_predicate(w, i->o[1]), yes = (uint32_t)i->imm;
  TW_RESULT(uint32_t, p & tw_lane_bit[l] ? yes : 0);
}
TW_HANDLER(set_value_16) {
  uint32_t p = tw_predicate(w, i->o[1]);
  uint16_t yes = (uint16_t)i->imm;
  TW_RESULT(uint16_t, p & tw_lane_bit[l] ? yes : 0);
}
TW_HANDLER(set_value_2x16) {
  uint32_t p = tw_predicate(w, i->o[1]), q = tw_predicate(w, i->o[2]), yes = (uint32_t)i->imm & 0xffffu;
  TW_RESULT(uint32_t, (p & tw_lane_bit[l] ? yes : 0) | (q & tw_lane_bit[l] ? yes << 16 : 0));
}

// testp; flags: 0 finite, 1 infinite, 2 number, 3 notanumber, 4 normal (zero too), 5 subnormal
#define TW_TESTP(name, type, magnitude, infinity, least)                                  \
  TW_HANDLER(testp_##name) {                                                              \
    const type* a = TW_SRC(type, 1);                                                      \
    uint32_t bits = 0;                                                                    \
    for (int l = 0; l < TW_LANES; l++) {                                                  \
      type x = a[l] & (magnitude);                                                        \
      bool yes;                                                                           \
      switch (i->flags & 7) {                                                             \
        case 0: yes = x < (infinity); break;                                              \
        case 1: yes = x == (infinity); break;                                             \
        case 2: yes = x <= (infinity); break;                                             \
        case 3: yes = x > (infinity); break;                                              \
        case 4: yes = x == 0 || (x >= (least) && x < (infinity)); break;                              \
        default: yes = x != 0 && x < (least); break;                                      \
      }                                                                                   \
      bits |= (uint32_t)yes << l;                                                         \
    }                                                                                     \
    tw_set_predicate(w, i->o[0], bits, exec);                                             \
    return TW_NEXT;                                                                       \
  }
TW_TESTP(f32, uint32_t, 0x7fffffffu, 0x7f800000u, 0x00800000u)
TW_TESTP(f64, uint64_t, 0x7fffffffffffffffull, 0x7ff0000000000000ull, 0x0010000000000000ull)

#endif
