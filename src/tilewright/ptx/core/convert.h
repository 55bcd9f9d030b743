// Handlers: cvt. The common pairs are vector loops; every other conversion goes lane by lane through tw_convert.
#ifndef TW_CONVERT_H
#define TW_CONVERT_H

#include "lanes.h"
#include "numeric.h"

TW_UNARY(cvt_f32_f16, float, uint16_t, tw_f16_to_f32(x))
TW_UNARY(cvt_f16_f32, uint16_t, float, tw_f32_to_f16(x))
TW_UNARY(cvt_f32_bf16, float, uint16_t, tw_cvt_f32_bf16(x))
TW_UNARY(cvt_bf16_f32, uint16_t, float, tw_f32_to_bf16(x))
TW_UNARY(cvt_f32_s32, float, int32_t, x)
TW_UNARY(cvt_f32_u32, float, uint32_t, x)
TW_UNARY(cvt_s32_f32, int32_t, float, tw_f32_to_s32_rz(x))
TW_UNARY(cvt_f64_f32, double, float, x)
TW_UNARY(cvt_f32_f64, float, double, (float)x)  // a NaN keeps what fits of its payload
TW_UNARY(cvt_64_s32, int64_t, int32_t, x)
TW_UNARY(cvt_64_u32, uint64_t, uint32_t, x)
TW_UNARY(cvt_32_64, uint32_t, uint64_t, x)
TW_UNARY(cvt_32_16, uint32_t, uint16_t, x)
TW_UNARY(cvt_16_32, uint16_t, uint32_t, x)
TW_UNARY(cvt_s32_s16, int32_t, int16_t, x)
// cvt.rn.bf16x2.f32 d, a, b: a in the upper half
TW_BINARY(cvt_pack_bf16x2, uint32_t, float, float, (uint32_t)tw_f32_to_bf16(x) << 16 | tw_f32_to_bf16(y))
TW_BINARY(cvt_pack_f16x2, uint32_t, float, float, (uint32_t)tw_f32_to_f16(x) << 16 | tw_f32_to_f16(y))

static inline uint64_t tw_lane_value(const void* slot, int log2_bytes, int lane) {
  switch (log2_bytes) {
    case 1: return ((const uint16_t*)slot)[lane];
    case 2: return ((const uint32_t*)slot)[lane];
    default: return ((const uint64_t*)slot)[lane];
  }
}
// imm: the tw_conversion. flags: log2 bytes of the destination register (2 bits), then of the source (2 bits).
// mod: bits the result has (8, 16, 32, 64), and 128 if it is signed and so extended into its register.
TW_HANDLER(cvt) {
  int to = i->flags & 3, from = i->flags >> 2 & 3, bits = (int)(i->mod & 127);
  void* d = tw_slot(w, i->o[0]);
  const void *a = tw_slot(w, i->o[1]), *b = tw_slot(w, i->o[2]);
  TW_EACH(exec) {
    uint64_t value = tw_convert((tw_conversion)i->imm, tw_lane_value(a, from, (int)l), tw_lane_value(b, from, (int)l));
    if (bits < 64) {
      value &= (1ull << bits) - 1;
      if (i->mod & 128 && value >> (bits - 1) & 1) value |= ~0ull << bits;
    }
    switch (to) {
      case 1: ((uint16_t*)d)[l] = (uint16_t)value; break;
      case 2: ((uint32_t*)d)[l] = (uint32_t)value; break;
      default: ((uint64_t*)d)[l] = value; break;
    }
  }
  return TW_NEXT;
}

// cvt.pack.sat: two s32 clamped into narrow parts above what c holds. flags: 0 s16, 1 u16, 2 s8, 3 u8, 4 s4, 5 u4, 6 s2, 7 u2
TW_HANDLER(cvt_pack_int) {
  static const int width[8] = {16, 16, 8, 8, 4, 4, 2, 2};
  int bits = width[i->flags & 7], is_unsigned = i->flags & 1;
  int64_t low = is_unsigned ? 0 : -(1ll << (bits - 1)), high = is_unsigned ? (1ll << bits) - 1 : (1ll << (bits - 1)) - 1;
  const int32_t *a = TW_SRC(int32_t, 1), *b = TW_SRC(int32_t, 2);
  const uint32_t* c = i->o[3] < 0 ? NULL : TW_SRC(uint32_t, 3);
  uint32_t* d = TW_DST(uint32_t, 0);
  uint32_t part = (1u << bits) - 1;
  TW_EACH(exec) {
    int64_t x = a[l] < low ? low : a[l] > high ? high : a[l], y = b[l] < low ? low : b[l] > high ? high : b[l];
    uint64_t above = c ? (uint64_t)c[l] << (2 * bits) : 0;
    d[l] = (uint32_t)above | ((uint32_t)x & part) << bits | ((uint32_t)y & part);
  }
  return TW_NEXT;
}

#endif
