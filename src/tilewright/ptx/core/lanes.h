// Reading and writing registers: 32 lanes at a time, blended under a mask where not every live lane takes part.
//
// Lanes that have left (or never existed) may be written freely, so that "all live lanes" needs no blending.
#ifndef TW_LANES_H
#define TW_LANES_H

#include "machine.h"

#define TW_LOOP _Pragma("GCC ivdep") for (int l = 0; l < TW_LANES; l++)

static const uint32_t tw_lane_bit[TW_LANES] __attribute__((unused)) = {
    1u << 0,  1u << 1,  1u << 2,  1u << 3,  1u << 4,  1u << 5,  1u << 6,  1u << 7,  1u << 8,  1u << 9,  1u << 10,
    1u << 11, 1u << 12, 1u << 13, 1u << 14, 1u << 15, 1u << 16, 1u << 17, 1u << 18, 1u << 19, 1u << 20, 1u << 21,
    1u << 22, 1u << 23, 1u << 24, 1u << 25, 1u << 26, 1u << 27, 1u << 28, 1u << 29, 1u << 30, 1u << 31};

static inline void* tw_slot(const tw_warp* w, int32_t operand) { return w->base[operand & 1] + (operand & ~3); }
static inline uint32_t tw_predicate(const tw_warp* w, int32_t operand) {
  uint32_t bits = *(const uint32_t*)tw_slot(w, operand);
  return operand & 2 ? ~bits : bits;
}
static inline void tw_set_predicate(tw_warp* w, int32_t operand, uint32_t bits, uint32_t exec) {
  if (operand < 0) return;  // the sink
  uint32_t* slot = tw_slot(w, operand);
  *slot = (*slot & ~exec) | (bits & exec);
}

#define TW_SRC(type, k) ((const type*)__builtin_assume_aligned(tw_slot(w, i->o[k]), 64))
#define TW_DST(type, k) ((type*)__builtin_assume_aligned(tw_slot(w, i->o[k]), 64))

#define TW_BLEND(d, t, exec) TW_LOOP (d)[l] = ((exec)&tw_lane_bit[l]) ? (t)[l] : (d)[l]

// A handler whose destination lane is an expression of the source lanes x, y, z.
#define TW_HANDLER(name) static int op_##name(tw_warp* w, const tw_instr* i, uint32_t exec)
#define TW_RESULT(type, expression)                            \
  type* d = TW_DST(type, 0);                                   \
  type held[TW_LANES] __attribute__((aligned(64)));            \
  if (exec == w->live) {                                       \
    TW_LOOP d[l] = (type)(expression);                         \
  } else {                                                     \
    TW_LOOP held[l] = (type)(expression);                      \
    TW_BLEND(d, held, exec);                                   \
  }                                                            \
  return TW_NEXT

#define TW_UNARY(name, result, ta, expression) \
  TW_HANDLER(name) {                           \
    const ta* a = TW_SRC(ta, 1);               \
    TW_RESULT(result, ({ ta x = a[l]; expression; })); \
  }
#define TW_BINARY(name, result, ta, tb, expression) \
  TW_HANDLER(name) {                                \
    const ta* a = TW_SRC(ta, 1);                    \
    const tb* b = TW_SRC(tb, 2);                    \
    TW_RESULT(result, ({ ta x = a[l]; tb y = b[l]; expression; })); \
  }
#define TW_TERNARY(name, result, ta, tb, tc, expression) \
  TW_HANDLER(name) {                                     \
    const ta* a = TW_SRC(ta, 1);                         \
    const tb* b = TW_SRC(tb, 2);                         \
    const tc* c = TW_SRC(tc, 3);                         \
    TW_RESULT(result, ({ ta x = a[l]; tb y = b[l]; tc z = c[l]; expression; })); \
  }

// Bytes 0 or 1 of 32 lanes to a mask.
static inline uint32_t tw_pack_bytes(const uint8_t flags[TW_LANES]) {
  uint32_t mask = 0;
  for (int part = 0; part < 4; part++) {
    uint64_t eight;
    memcpy(&eight, flags + 8 * part, 8);
    mask |= (uint32_t)((eight * 0x0102040810204080ull) >> 56) << (8 * part);
  }
  return mask;
}

#define TW_EACH(mask) for (uint32_t rest_ = (mask), l = 0; rest_ && ((l = (uint32_t)__builtin_ctz(rest_)), 1); rest_ &= rest_ - 1)

#endif
