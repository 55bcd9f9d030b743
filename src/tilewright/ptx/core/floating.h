// Handlers: f32, f64, f16 and bf16 arithmetic.
//
// The plain handlers are vector loops; those ending in `_any` read rounding, ftz and sat from the instruction.
#ifndef TW_FLOATING_H
#define TW_FLOATING_H

#include "lanes.h"
#include "numeric.h"

#define TW_FLUSH tw_flush_f32
TW_BINARY(add_f32, float, float, float, tw_add_f32(x, y))
TW_BINARY(sub_f32, float, float, float, tw_sub_f32(x, y))
TW_BINARY(mul_f32, float, float, float, tw_mul_f32(x, y))
TW_TERNARY(fma_f32, float, float, float, float, tw_fma_f32(x, y, z))
TW_BINARY(add_ftz_f32, float, float, float, TW_FLUSH(tw_add_f32(TW_FLUSH(x), TW_FLUSH(y))))
TW_BINARY(sub_ftz_f32, float, float, float, TW_FLUSH(tw_sub_f32(TW_FLUSH(x), TW_FLUSH(y))))
TW_BINARY(mul_ftz_f32, float, float, float, TW_FLUSH(tw_mul_f32(TW_FLUSH(x), TW_FLUSH(y))))
TW_TERNARY(fma_ftz_f32, float, float, float, float, TW_FLUSH(tw_fma_f32(TW_FLUSH(x), TW_FLUSH(y), TW_FLUSH(z))))

static inline float tw_in(float x, uint32_t mod) { return mod & TW_MOD_FTZ ? tw_flush_f32(x) : x; }
static inline float tw_out(float x, uint32_t mod) {
  if (mod & TW_MOD_SAT) x = tw_saturate_f32(x);
  return mod & TW_MOD_FTZ ? tw_flush_f32(x) : x;
}
#define TW_MODE ((tw_rounding)(i->mod & TW_MOD_ROUNDING))
#define TW_F32_ANY(name, plain, moded)                                                          \
  TW_BINARY(name##_f32_any, float, float, float, ({                                             \
              x = tw_in(x, i->mod), y = tw_in(y, i->mod);                                       \
              tw_out(TW_MODE == TW_RN ? plain(x, y) : moded(x, y, TW_MODE), i->mod);            \
            }))
TW_F32_ANY(add, tw_add_f32, tw_add_f32_mode)
TW_F32_ANY(sub, tw_sub_f32, tw_sub_f32_mode)
TW_F32_ANY(mul, tw_mul_f32, tw_mul_f32_mode)
TW_F32_ANY(div, tw_div_f32, tw_div_f32_mode)
TW_TERNARY(fma_f32_any, float, float, float, float, ({
             x = tw_in(x, i->mod), y = tw_in(y, i->mod), z = tw_in(z, i->mod);
             tw_out(TW_MODE == TW_RN ? tw_fma_f32(x, y, z) : tw_fma_f32_mode(x, y, z, TW_MODE), i->mod);
           }))
TW_BINARY(div_f32, float, float, float, tw_div_f32(x, y))
TW_UNARY(sqrt_f32, float, float, tw_sqrt_f32(x))
TW_UNARY(sqrt_f32_any, float, float, tw_out(tw_sqrt_f32_mode(tw_in(x, i->mod), TW_MODE), i->mod))
TW_UNARY(rcp_f32_any, float, float, tw_out(tw_rcp_f32_mode(tw_in(x, i->mod), TW_MODE), i->mod))

TW_BINARY(add_f64, double, double, double, x + y)
TW_BINARY(sub_f64, double, double, double, x - y)
TW_BINARY(mul_f64, double, double, double, x * y)
TW_TERNARY(fma_f64, double, double, double, double, tw_fma_f64(x, y, z))
TW_BINARY(div_f64, double, double, double, x / y)
TW_UNARY(sqrt_f64, double, double, __builtin_sqrt(x))
TW_BINARY(add_f64_any, double, double, double, tw_add_f64_mode(x, y, TW_MODE))
TW_BINARY(sub_f64_any, double, double, double, tw_sub_f64_mode(x, y, TW_MODE))
TW_BINARY(mul_f64_any, double, double, double, tw_mul_f64_mode(x, y, TW_MODE))
TW_TERNARY(fma_f64_any, double, double, double, double, tw_fma_f64_mode(x, y, z, TW_MODE))
TW_BINARY(div_f64_any, double, double, double, tw_div_f64_mode(x, y, TW_MODE))
TW_UNARY(sqrt_f64_any, double, double, tw_sqrt_f64_mode(x, TW_MODE))
TW_UNARY(rcp_f64_any, double, double, tw_rcp_f64_mode(x, TW_MODE))

// -- minimum, maximum, sign --

TW_BINARY(min_f32, float, float, float, tw_min_f32(x, y))
TW_BINARY(max_f32, float, float, float, tw_max_f32(x, y))
TW_BINARY(min_f64, double, double, double, tw_min_f64(x, y))
TW_BINARY(max_f64, double, double, double, tw_max_f64(x, y))
static inline float tw_extreme(float x, float y, uint32_t mod, int largest) {
  x = tw_in(x, mod), y = tw_in(y, mod);
  uint32_t sign = (tw_f32_bits(x) ^ tw_f32_bits(y)) & 0x80000000u;
  if (mod & TW_MOD_ABS) x = tw_f32_of(tw_f32_bits(x) & 0x7fffffffu), y = tw_f32_of(tw_f32_bits(y) & 0x7fffffffu);
  float r = mod & TW_MOD_NAN ? (largest ? tw_max_nan_f32(x, y) : tw_min_nan_f32(x, y))
                             : (largest ? tw_max_f32(x, y) : tw_min_f32(x, y));
  if (mod & TW_MOD_XORSIGN && r == r) r = tw_f32_of(tw_f32_bits(r) | sign);
  return r;
}
TW_BINARY(min_f32_any, float, float, float, tw_extreme(x, y, i->mod, 0))
TW_BINARY(max_f32_any, float, float, float, tw_extreme(x, y, i->mod, 1))
TW_TERNARY(min3_f32, float, float, float, float, tw_extreme(tw_extreme(x, y, i->mod, 0), z, i->mod, 0))
TW_TERNARY(max3_f32, float, float, float, float, tw_extreme(tw_extreme(x, y, i->mod, 1), z, i->mod, 1))
TW_UNARY(neg_f32, uint32_t, uint32_t, x ^ 0x80000000u)
TW_UNARY(abs_f32, uint32_t, uint32_t, x & 0x7fffffffu)
TW_UNARY(neg_ftz_f32, uint32_t, uint32_t, tw_flush_f32_bits(x) ^ 0x80000000u)
TW_UNARY(abs_ftz_f32, uint32_t, uint32_t, tw_flush_f32_bits(x) & 0x7fffffffu)
TW_UNARY(neg_f64, uint64_t, uint64_t, x ^ 1ull << 63)
TW_UNARY(abs_f64, uint64_t, uint64_t, x & ~(1ull << 63))
TW_BINARY(copysign_f32, uint32_t, uint32_t, uint32_t, (x & 0x80000000u) | (y & 0x7fffffffu))
TW_BINARY(copysign_f64, uint64_t, uint64_t, uint64_t, (x & 1ull << 63) | (y & ~(1ull << 63)))

// -- approximations --

#define TW_APPROXIMATE(name, plain, flushed)                              \
  TW_HANDLER(name) {                                                      \
    const float* a = TW_SRC(float, 1);                                    \
    if (i->mod & TW_MOD_FTZ) {                                            \
      TW_RESULT(float, flushed(a[l]));                                    \
    } else {                                                              \
      TW_RESULT(float, plain(a[l]));                                      \
    }                                                                     \
  }
TW_APPROXIMATE(ex2_f32, tw_ex2_f32, tw_ex2_ftz_f32)
TW_APPROXIMATE(lg2_f32, tw_lg2_f32, tw_lg2_ftz_f32)
TW_APPROXIMATE(sin_f32, tw_sin_f32, tw_sin_ftz_f32)
TW_APPROXIMATE(cos_f32, tw_cos_f32, tw_cos_ftz_f32)
TW_APPROXIMATE(rcp_approx_f32, tw_rcp_approx_f32, tw_rcp_approx_ftz_f32)
TW_APPROXIMATE(sqrt_approx_f32, tw_sqrt_approx_f32, tw_sqrt_approx_ftz_f32)
TW_APPROXIMATE(rsqrt_f32, tw_rsqrt_f32, tw_rsqrt_ftz_f32)
TW_UNARY(tanh_f32, float, float, tw_tanh_f32(x))
TW_BINARY(div_approx_f32, float, float, float,
          i->mod & TW_MOD_FTZ ? tw_div_approx_ftz_f32(x, y) : tw_div_approx_f32(x, y))
TW_BINARY(div_full_f32, float, float, float, i->mod & TW_MOD_FTZ ? tw_div_full_ftz_f32(x, y) : tw_div_full_f32(x, y))
TW_UNARY(rcp_approx_f64, double, double, tw_rcp_approx_ftz_f64(x))
TW_UNARY(rsqrt_f64, double, double, i->mod & TW_MOD_FTZ ? tw_rsqrt_ftz_f64(x) : tw_rsqrt_f64(x))

// -- f16 and bf16, alone and in pairs --

static inline uint16_t tw_half_in(uint16_t x, uint32_t mod) { return mod & TW_MOD_FTZ ? tw_flush_f16(x) : x; }
static inline uint16_t tw_half_out_f16(uint16_t x, uint32_t mod) {
  if (mod & TW_MOD_SAT) x = tw_saturate_f16(x);
  if (mod & TW_MOD_RELU) x = tw_relu_f16(x);
  return mod & TW_MOD_FTZ ? tw_flush_f16(x) : x;
}
static inline uint16_t tw_half_out_bf16(uint16_t x, uint32_t mod) { return mod & TW_MOD_RELU ? tw_relu_bf16(x) : x; }
#define tw_half_in_f16(x, mod) tw_half_in(x, mod)
#define tw_half_in_bf16(x, mod) (x)

#define TW_EXTREME_OF(format)                                                                              \
  static inline uint16_t tw_extreme_##format(uint16_t x, uint16_t y, uint32_t mod, int largest) {          \
    uint16_t sign = (uint16_t)((x ^ y) & 0x8000u);                                                         \
    if (mod & TW_MOD_ABS) x &= 0x7fffu, y &= 0x7fffu;                                                      \
    uint16_t r = mod & TW_MOD_NAN ? (largest ? tw_max_nan_##format(x, y) : tw_min_nan_##format(x, y))      \
                                  : (largest ? tw_max_##format(x, y) : tw_min_##format(x, y));             \
    return mod & TW_MOD_XORSIGN && !tw_is_nan_##format(r) ? (uint16_t)(r | sign) : r;                      \
  }
TW_EXTREME_OF(f16)
TW_EXTREME_OF(bf16)

// The body of a handler over `lanes` 16-bit elements; a pair is two of them.
#define TW_HALF_LOOP(count, expression)                                                   \
  uint16_t held[2 * TW_LANES] __attribute__((aligned(64)));                               \
  _Pragma("GCC ivdep") for (int k = 0; k < (count); k++) held[k] = (uint16_t)(expression);
#define TW_HALF_STORE(count)                                     \
  if ((count) == TW_LANES) {                                     \
    uint16_t* d = TW_DST(uint16_t, 0);                           \
    TW_BLEND(d, held, exec);                                     \
  } else {                                                       \
    uint32_t* d = TW_DST(uint32_t, 0);                           \
    uint32_t whole[TW_LANES];                                    \
    memcpy(whole, held, sizeof whole);                           \
    TW_BLEND(d, whole, exec);                                    \
  }                                                              \
  return TW_NEXT;
#define TW_HALF(name, count, format, expression)                                                          \
  TW_HANDLER(name) {                                                                                      \
    const uint16_t *a = TW_SRC(uint16_t, 1), *b = TW_SRC(uint16_t, 2), *c = TW_SRC(uint16_t, 3);          \
    (void)a, (void)b, (void)c;                                                                            \
    TW_HALF_LOOP(count, ({                                                                                \
                   uint16_t x = tw_half_in_##format(a[k], i->mod);                                        \
                   uint16_t y = tw_half_in_##format(b[k], i->mod);                                        \
                   uint16_t z = tw_half_in_##format(c[k], i->mod);                                        \
                   (void)x, (void)y, (void)z;                                                             \
                   tw_half_out_##format((uint16_t)(expression), i->mod);                                  \
                 }))                                                                                      \
    TW_HALF_STORE(count)                                                                                  \
  }
#define TW_HALVES_OF(name, format, expression)                   \
  TW_HALF(name##_##format, TW_LANES, format, expression)         \
  TW_HALF(name##_##format##x2, 2 * TW_LANES, format, expression)
// Lowering points the operands an operation does not have at its first source, so that reading them is harmless.
#define TW_HALF_ARITHMETIC(format)                                   \
  TW_HALVES_OF(add, format, tw_add_##format(x, y))                   \
  TW_HALVES_OF(sub, format, tw_sub_##format(x, y))                   \
  TW_HALVES_OF(mul, format, tw_mul_##format(x, y))                   \
  TW_HALVES_OF(fma, format, tw_fma_##format(x, y, z))                \
  TW_HALVES_OF(min, format, tw_extreme_##format(x, y, i->mod, 0))    \
  TW_HALVES_OF(max, format, tw_extreme_##format(x, y, i->mod, 1))    \
  TW_HALVES_OF(neg, format, tw_neg_half(x))                          \
  TW_HALVES_OF(abs, format, tw_abs_half(x))                          \
  TW_HALVES_OF(tanh, format, tw_tanh_##format(x))
TW_HALF_ARITHMETIC(f16)
TW_HALF_ARITHMETIC(bf16)
TW_HALVES_OF(ex2, f16, tw_ex2_f16(x))
TW_HALVES_OF(ex2, bf16, tw_ex2_ftz_bf16(x))

#endif
