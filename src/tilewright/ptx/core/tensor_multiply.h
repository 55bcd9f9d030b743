// The multiplication, included by two translation units: one for any processor, one for wide vectors.
//
// Vectors of 8 lie along n. A product of two f16, bf16, tf32 or fp8 numbers is exact in f32.
#include <string.h>

#include "numeric_half.h"
#include "tensor_shape.h"

typedef float tw_f32x8 __attribute__((vector_size(32)));
typedef int32_t tw_s32x8 __attribute__((vector_size(32)));
typedef uint32_t tw_u32x8 __attribute__((vector_size(32)));

// -- floats --

TW_INLINE int tw_elements(int type) {
  switch (type) {
    case TW_MMA_F16:
    case TW_MMA_BF16: return 2;
    case TW_MMA_E4M3:
    case TW_MMA_E5M2:
    case TW_MMA_S8:
    case TW_MMA_U8: return 4;
    case TW_MMA_S4:
    case TW_MMA_U4: return 8;
    default: return 1;
  }
}

// One register of 32 lanes as floats, in the order of lanes and elements.
TW_INLINE void tw_decode_floats(int type, const void* source, float* out) {
  uint32_t words[32];
  memcpy(words, source, sizeof words);
  switch (type) {
    case TW_MMA_F16: {
      uint16_t halves[64];
      memcpy(halves, words, sizeof halves);
      tw_f16_to_f32_lanes(halves, out, 64);
      break;
    }
    case TW_MMA_BF16:
      for (int i = 0; i < 32; ++i) {
        out[2 * i] = tw_f32_of(words[i] << 16);
        out[2 * i + 1] = tw_f32_of(words[i] & 0xffff0000u);
      }
      break;
    case TW_MMA_TF32:
      for (int i = 0; i < 32; ++i) out[i] = tw_tf32_operand(words[i]);
      break;
    default: {
      uint8_t bytes[128];
      uint16_t halves[128];
      memcpy(bytes, words, sizeof bytes);
      if (type == TW_MMA_E4M3)
        for (int i = 0; i < 128; ++i) halves[i] = tw_e4m3_to_scaled_f16(bytes[i]);
      else
        for (int i = 0; i < 128; ++i) halves[i] = (uint16_t)(bytes[i] << 8);
      tw_f16_to_f32_lanes(halves, out, 128);
      if (type == TW_MMA_E4M3)
        for (int i = 0; i < 128; ++i) out[i] *= 256.0f;
    }
  }
}

// Operands as f32 with the exponents of their leading bits: all of a, and eight columns of b at a time.
typedef struct {
  float left[TW_MMA_MAX_M][TW_MMA_MAX_K];
  int32_t left_exponent[TW_MMA_MAX_M][TW_MMA_MAX_K];
  float right[TW_MMA_MAX_K][8];
  int32_t right_exponent[TW_MMA_MAX_K][8];
} tw_operands;

// Far below every exponent, and far above: sums of two stay far out, so that a product's exponent tells them apart.
enum { TW_EXPONENT_ZERO = -600, TW_EXPONENT_NONE = -400, TW_EXPONENT_SPECIAL = 5000 };

// `least`: of the format; its subnormal numbers all have that one.
TW_INLINE int32_t tw_exponent(float value, int32_t least) {
  uint32_t magnitude = tw_f32_bits(value) & 0x7fffffffu;
  int32_t field = (int32_t)(magnitude >> 23);
  int32_t exponent = field - 127 > least ? field - 127 : least;
  exponent = field == 255 ? TW_EXPONENT_SPECIAL : exponent;
  return magnitude ? exponent : TW_EXPONENT_ZERO;
}

// mma.sync multiplies fp8 as f16, the even pairs of elements before the odd ones.
TW_INLINE int tw_is_fp8(int type) { return type == TW_MMA_E4M3 || type == TW_MMA_E5M2; }
TW_INLINE int tw_is_fp8_as_f16(const tw_mma_shape* shape) { return tw_is_fp8(shape->a) && !shape->warpgroup; }
TW_INLINE int tw_column(const tw_mma_shape* shape, int k) {
  return tw_is_fp8_as_f16(shape) ? (k / 4) * 2 + k % 2 + (k / 2 % 2) * (shape->k / 2) : k;
}
TW_INLINE int32_t tw_least_exponent(const tw_mma_shape* shape, int type) {
  if (type == TW_MMA_BF16 || type == TW_MMA_TF32) return -126;
  return type == TW_MMA_E4M3 && shape->warpgroup ? -6 : -14;
}

TW_INLINE void tw_load_left(const tw_mma_shape* shape, const void* const a[], tw_operands* operands) {
  float block[128];
  int width = 4 * tw_elements(shape->a); // columns of a that one register covers
  int row_blocks = shape->m / 8, k_blocks = shape->k / width, r = 0;
  for (int kb = 0; kb < k_blocks; ++kb)
    for (int rb = 0; rb < row_blocks; ++rb) {
      tw_decode_floats(shape->a, a[r++], block);
      for (int g = 0; g < 8; ++g)
        for (int k = 0; k < width; ++k)
          operands->left[g + 8 * rb][tw_column(shape, width * kb + k)] = block[g * width + k];
    }
  int32_t least = tw_least_exponent(shape, shape->a);
  for (int row = 0; row < shape->m; ++row)
    for (int k = 0; k < shape->k; ++k) operands->left_exponent[row][k] = tw_exponent(operands->left[row][k], least);
}

// `b`: the registers of these eight columns.
TW_INLINE void tw_load_right(const tw_mma_shape* shape, const void* const b[], tw_operands* operands) {
  float block[128];
  int width = 4 * tw_elements(shape->b), k_blocks = shape->k / width;
  for (int kb = 0; kb < k_blocks; ++kb) {
    tw_decode_floats(shape->b, b[kb], block);
    for (int k = 0; k < width; ++k)
      for (int g = 0; g < 8; ++g) operands->right[tw_column(shape, width * kb + k)][g] = block[g * width + k];
  }
  int32_t least = tw_least_exponent(shape, shape->b);
  for (int k = 0; k < shape->k; ++k)
    for (int g = 0; g < 8; ++g) operands->right_exponent[k][g] = tw_exponent(operands->right[k][g], least);
}

// Registers of an accumulator that hold eight columns.
TW_INLINE int tw_accumulator_registers(const tw_mma_shape* shape, int type) {
  return shape->m / 8 * (type == TW_MMA_F16 ? 1 : 2);
}

TW_INLINE void tw_load_accumulator(const tw_mma_shape* shape, const void* const c[], float sum[TW_MMA_MAX_M][8]) {
  for (int rb = 0; rb < shape->m / 8; ++rb) {
    float(*block)[8] = sum + 8 * rb;
    if (shape->c == TW_MMA_F16) {
      float pairs[64];
      tw_decode_floats(TW_MMA_F16, c[rb], pairs);
      memcpy(block, pairs, sizeof pairs);
    } else {
      float first[32], second[32];
      memcpy(first, c[2 * rb], sizeof first);
      memcpy(second, c[2 * rb + 1], sizeof second);
      float* flat = &block[0][0]; // the 64 values of the block, lane by lane
      for (int lane = 0; lane < 32; ++lane) {
        flat[2 * lane] = first[lane];
        flat[2 * lane + 1] = second[lane];
      }
    }
  }
}

TW_INLINE void tw_store_accumulator(const tw_mma_shape* shape, void* const d[], float sum[TW_MMA_MAX_M][8]) {
  for (int rb = 0; rb < shape->m / 8; ++rb) {
    const float* block = &sum[8 * rb][0]; // 64 values, lane by lane
    if (shape->d == TW_MMA_F16) {
      uint16_t pairs[64];
      for (int i = 0; i < 64; ++i) pairs[i] = tw_f32_to_f16(block[i]);
      memcpy(d[rb], pairs, sizeof pairs);
    } else {
      float first[32], second[32];
      for (int lane = 0; lane < 32; ++lane) {
        first[lane] = tw_canonical_f32(block[2 * lane]);
        second[lane] = tw_canonical_f32(block[2 * lane + 1]);
      }
      memcpy(d[2 * rb], first, sizeof first);
      memcpy(d[2 * rb + 1], second, sizeof second);
    }
  }
}

// -- one addition of many terms, as the hardware does it --
//
// All products of a group and the accumulator are shifted to the largest exponent among them (a product's is the sum of
// its operands'), cut off 25 bits below it, and added exactly; the sum is cut off to f32, or rounded to f16. wgmma of fp8
// keeps 13 bits, of the terms and of the sum.

// A range of columns of the operands.
typedef struct {
  int first, end;
} tw_group;

enum { TW_EXPONENT_LIMIT = 100 };

typedef struct {
  int kept;      // bits of a term below the largest exponent
  int to_f16;    // the sum is to become an f16
  uint32_t cut;  // bits of an f32 result that are always zero
} tw_sum_rule;

TW_INLINE tw_sum_rule tw_rule_of(const tw_mma_shape* shape) {
  int narrow = shape->warpgroup && tw_is_fp8(shape->a);
  return (tw_sum_rule){narrow ? 13 : 25, shape->d == TW_MMA_F16, narrow && shape->d != TW_MMA_F16 ? 0x3ffu : 0u};
}

// One sum in general: special values, and exponents that f32 cannot scale by.
static double tw_add_terms(const double* terms, const int* exponents, int count, int kept) {
  int largest = TW_EXPONENT_ZERO;
  double plain = 0.0, total = 0.0;
  for (int i = 0; i < count; ++i) {
    plain += terms[i];
    if (terms[i] != 0.0 && exponents[i] > largest) largest = exponents[i];
  }
  if (!(plain - plain == 0.0) || largest < TW_EXPONENT_NONE) return plain;
  double unit = tw_f64_of((uint64_t)(1023 + largest - kept) << 52);
  for (int i = 0; i < count; ++i) total += __builtin_trunc(terms[i] / unit);
  return total * unit;
}

// The last step of a sum: cut off to f32, the last bit set if that lost anything and an f16 is to come of it. Too large
// becomes infinite.
static float tw_finish_sum(double value, tw_sum_rule rule) {
  if (!(value < 0x1p128 && value > -0x1p128)) return (float)value; // NaN too
  float cut = tw_f64_to_f32_mode(value, TW_RZ);
  uint32_t lost = rule.to_f16 && (double)cut != value;
  return tw_f32_of((tw_f32_bits(cut) | lost) & ~rule.cut);
}

static void tw_add_group_slowly(const tw_operands* o, tw_group group, int row, float sum[8], tw_sum_rule rule) {
  for (int n = 0; n < 8; ++n) {
    double terms[TW_MMA_MAX_K + 1];
    int exponents[TW_MMA_MAX_K + 1], count = 0;
    for (int k = group.first; k < group.end; ++k) {
      terms[count] = (double)o->left[row][k] * (double)o->right[k][n];
      exponents[count++] = o->left_exponent[row][k] + o->right_exponent[k][n];
    }
    terms[count] = sum[n];
    exponents[count++] = tw_exponent(sum[n], -126);
    sum[n] = tw_finish_sum(tw_add_terms(terms, exponents, count, rule.kept), rule);
  }
}

#ifdef __AVX2__ // the compiler does not find this instruction by itself
TW_INLINE tw_s32x8 tw_larger(tw_s32x8 a, tw_s32x8 b) { return (tw_s32x8)_mm256_max_epi32((__m256i)a, (__m256i)b); }
#else
TW_INLINE tw_s32x8 tw_larger(tw_s32x8 a, tw_s32x8 b) {
  tw_s32x8 above = a > b;
  return (a & above) | (b & ~above);
}
#endif

// Eight sums of a row, in place, `exponents` theirs; an f16 result is rounded when it is stored.
TW_INLINE void tw_add_group(const tw_operands* o, tw_group group, int row, const int32_t exponents[8], float sum[8],
                            tw_sum_rule rule) {
  int32_t evens[8], odds[8], units[8];
  tw_s32x8 largest, exponent;
  memcpy(&largest, exponents, sizeof largest);
#pragma GCC unroll 16
  for (int k = group.first; k < group.end; ++k) {
    memcpy(&exponent, o->right_exponent[k], sizeof exponent);
    exponent += o->left_exponent[row][k];
    largest = tw_larger(exponent, largest);
  }
  tw_s32x8 far = (largest > TW_EXPONENT_LIMIT) | ((largest < -TW_EXPONENT_LIMIT) & (largest > TW_EXPONENT_NONE));
  uint64_t any[4];
  memcpy(any, &far, sizeof any);
  if (any[0] | any[1] | any[2] | any[3]) {
    tw_add_group_slowly(o, group, row, sum, rule);
    return;
  }
  largest &= ~(largest < -TW_EXPONENT_LIMIT); // nothing but zeros: any scale will do
  tw_s32x8 scale_bits = (127 + rule.kept - largest) << 23;
  tw_f32x8 scale, column, start;
  memcpy(&scale, &scale_bits, sizeof scale);
  memcpy(&start, sum, sizeof start);
  // Two partial sums: sixteen products of up to 2^27 would not fit in one.
  tw_s32x8 even = __builtin_convertvector(start * scale, tw_s32x8), odd = {0};
#pragma GCC unroll 8
  for (int k = group.first; k < group.end; k += 2) {
    memcpy(&column, o->right[k], sizeof column);
    even += __builtin_convertvector(o->left[row][k] * column * scale, tw_s32x8);
    memcpy(&column, o->right[k + 1], sizeof column);
    odd += __builtin_convertvector(o->left[row][k + 1] * column * scale, tw_s32x8);
  }
  memcpy(evens, &even, sizeof evens);
  memcpy(odds, &odd, sizeof odds);
  memcpy(units, &largest, sizeof units);
  double exact[8];
  for (int n = 0; n < 8; ++n)
    exact[n] = ((double)evens[n] + (double)odds[n]) * tw_f64_of((uint64_t)(1023 - rule.kept + units[n]) << 52);
  for (int n = 0; n < 8; ++n) { // 24 bits, of a number well inside f32's range
    uint64_t bits = tw_f64_bits(exact[n]), lost = bits & 0x1fffffffull;
    float cut = (float)tw_f64_of(bits - lost);
    uint32_t sticky = rule.to_f16 ? lost != 0 : 0;
    sum[n] = tw_f32_of((tw_f32_bits(cut) | sticky) & ~rule.cut);
  }
}

// One row of eight sums where mma.sync multiplies fp8 as f16: two halves from zero, then the accumulator.
TW_INLINE void tw_add_halves(const tw_operands* o, int k, int row, float sum[8], tw_sum_rule rule) {
  tw_group halves[2] = {{0, k / 2}, {k / 2, k}};
  float part[8] = {0};
  int32_t exponents[8];
  for (int half = 0; half < 2; ++half) {
    for (int n = 0; n < 8; ++n) exponents[n] = tw_exponent(part[n], -126);
    tw_add_group(o, halves[half], row, exponents, part, rule);
    for (int n = 0; n < 8; ++n) part[n] = rule.to_f16 ? tw_f16_to_f32(tw_f32_to_f16(part[n])) : part[n];
  }
  for (int n = 0; n < 8; ++n) sum[n] += part[n];
}

TW_INLINE void tw_multiply_floats(const tw_mma_shape* shape, void* const d[], const void* const a[],
                                  const void* const b[], const void* const c[]) {
  tw_operands operands;
  float sum[TW_MMA_MAX_M][8];
  int32_t exponents[TW_MMA_MAX_M][8];
  tw_sum_rule rule = tw_rule_of(shape);
  tw_group whole = {0, shape->k};
  int b_registers = shape->k / (4 * tw_elements(shape->b));
  tw_load_left(shape, a, &operands);
  for (int block = 0; block < shape->n / 8; ++block) {
    tw_load_right(shape, b + block * b_registers, &operands);
    tw_load_accumulator(shape, c + block * tw_accumulator_registers(shape, shape->c), sum);
    for (int row = 0; row < shape->m; ++row)
      for (int n = 0; n < 8; ++n) exponents[row][n] = tw_exponent(sum[row][n], -126);
    for (int row = 0; row < shape->m; ++row) {
      if (tw_is_fp8_as_f16(shape)) tw_add_halves(&operands, shape->k, row, sum[row], rule);
      else tw_add_group(&operands, whole, row, exponents[row], sum[row], rule);
    }
    tw_store_accumulator(shape, d + block * tw_accumulator_registers(shape, shape->d), sum);
  }
}

// -- f64 --

static void tw_multiply_f64(const tw_mma_shape* shape, void* const d[], const void* const a[], const void* const b[],
                            const void* const c[]) {
  double left[TW_MMA_MAX_M][16], right[16][8], sum[TW_MMA_MAX_M][8];
  int row_blocks = shape->m / 8;
  double lanes[32];
  for (int r = 0; r < row_blocks * (shape->k / 4); ++r) {
    memcpy(lanes, a[r], sizeof lanes);
    for (int l = 0; l < 32; ++l) left[(l >> 2) + 8 * (r % row_blocks)][(l & 3) + 4 * (r / row_blocks)] = lanes[l];
  }
  for (int r = 0; r < shape->k / 4; ++r) {
    memcpy(lanes, b[r], sizeof lanes);
    for (int l = 0; l < 32; ++l) right[(l & 3) + 4 * r][l >> 2] = lanes[l];
  }
  for (int j = 0; j < 2 * row_blocks; ++j) {
    memcpy(lanes, c[j], sizeof lanes);
    for (int l = 0; l < 32; ++l) sum[(l >> 2) + 8 * (j / 2)][2 * (l & 3) + j % 2] = lanes[l];
  }
  for (int row = 0; row < shape->m; ++row)
    for (int k = 0; k < shape->k; ++k)
      for (int n = 0; n < 8; ++n) sum[row][n] = __builtin_fma(left[row][k], right[k][n], sum[row][n]);
  for (int j = 0; j < 2 * row_blocks; ++j) {
    for (int l = 0; l < 32; ++l) lanes[l] = sum[(l >> 2) + 8 * (j / 2)][2 * (l & 3) + j % 2];
    memcpy(d[j], lanes, sizeof lanes);
  }
}

// -- integers and bits --

TW_INLINE void tw_decode_integers(int type, const void* source, int32_t* out) {
  uint32_t words[32];
  memcpy(words, source, sizeof words);
  if (type == TW_MMA_S4 || type == TW_MMA_U4) {
    for (int i = 0; i < 256; ++i) {
      int32_t field = (int32_t)(words[i >> 3] >> (4 * (i & 7)) & 15u);
      out[i] = field - (type == TW_MMA_S4 ? (field & 8) << 1 : 0);
    }
    return;
  }
  uint8_t bytes[128];
  memcpy(bytes, words, sizeof bytes);
  if (type == TW_MMA_S8)
    for (int i = 0; i < 128; ++i) out[i] = (int8_t)bytes[i];
  else
    for (int i = 0; i < 128; ++i) out[i] = bytes[i];
}

TW_INLINE void tw_load_left_integers(const tw_mma_shape* shape, const void* const a[],
                                     int32_t left[TW_MMA_MAX_M][TW_MMA_MAX_K]) {
  int32_t block[256];
  int width = 4 * tw_elements(shape->a), row_blocks = shape->m / 8, r = 0;
  for (int kb = 0; kb < shape->k / width; ++kb)
    for (int rb = 0; rb < row_blocks; ++rb) {
      tw_decode_integers(shape->a, a[r++], block);
      for (int g = 0; g < 8; ++g) memcpy(&left[g + 8 * rb][width * kb], block + g * width, (size_t)width * 4);
    }
}
TW_INLINE void tw_load_right_integers(const tw_mma_shape* shape, const void* const b[],
                                      int32_t right[TW_MMA_MAX_K][8]) {
  int32_t block[256];
  int width = 4 * tw_elements(shape->b);
  for (int kb = 0; kb < shape->k / width; ++kb) {
    tw_decode_integers(shape->b, b[kb], block);
    for (int k = 0; k < width; ++k)
      for (int g = 0; g < 8; ++g) right[k + width * kb][g] = block[g * width + k];
  }
}

static uint32_t tw_add_products(uint32_t start, int32_t products, int saturate) {
  if (!saturate) return start + (uint32_t)products;
  int64_t total = (int64_t)(int32_t)start + products;
  return (uint32_t)(total > INT32_MAX ? INT32_MAX : total < INT32_MIN ? INT32_MIN : total);
}

// Eight columns of products, added to the accumulator's registers of these columns.
TW_INLINE void tw_store_integers(const tw_mma_shape* shape, void* const d[], const void* const c[],
                                 int32_t products[TW_MMA_MAX_M][8]) {
  for (int j = 0; j < shape->m / 4; ++j) {
    uint32_t lanes[32];
    memcpy(lanes, c[j], sizeof lanes);
    for (int lane = 0; lane < 32; ++lane) {
      int row = (lane >> 2) + 8 * (j / 2), column = 2 * (lane & 3) + j % 2;
      lanes[lane] = tw_add_products(lanes[lane], products[row][column], shape->saturate);
    }
    memcpy(d[j], lanes, sizeof lanes);
  }
}

TW_INLINE void tw_multiply_integers(const tw_mma_shape* shape, void* const d[], const void* const a[],
                                    const void* const b[], const void* const c[]) {
  int32_t left[TW_MMA_MAX_M][TW_MMA_MAX_K], right[TW_MMA_MAX_K][8], products[TW_MMA_MAX_M][8];
  int b_registers = shape->k / (4 * tw_elements(shape->b)), sums = shape->m / 4;
  tw_load_left_integers(shape, a, left);
  for (int block = 0; block < shape->n / 8; ++block) {
    tw_load_right_integers(shape, b + block * b_registers, right);
    for (int row = 0; row < shape->m; row += 8) {
      tw_s32x8 total[8] = {{0}}; // at most 64 * 255 * 255: no overflow
      for (int k = 0; k < shape->k; ++k) {
        tw_s32x8 column;
        memcpy(&column, right[k], sizeof column);
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) total[i] += left[row + i][k] * column;
      }
      memcpy(products[row], total, sizeof total);
    }
    tw_store_integers(shape, d + block * sums, c + block * sums, products);
  }
}

static void tw_multiply_bits(const tw_mma_shape* shape, void* const d[], const void* const a[], const void* const b[],
                             const void* const c[]) {
  uint32_t left[8][32], right[2][32]; // registers
  int words = shape->k / 32, row_blocks = shape->m / 8, sums = shape->m / 4;
  int32_t products[TW_MMA_MAX_M][8];
  for (int r = 0; r < row_blocks * words / 4; ++r) memcpy(left[r], a[r], sizeof left[r]);
  for (int block = 0; block < shape->n / 8; ++block) {
    for (int r = 0; r < words / 4; ++r) memcpy(right[r], b[block * (words / 4) + r], sizeof right[r]);
    for (int row = 0; row < shape->m; ++row)
      for (int n = 0; n < 8; ++n) {
        int ones = 0;
        for (int w = 0; w < words; ++w) {
          uint32_t x = left[row / 8 + row_blocks * (w / 4)][4 * (row % 8) + w % 4], y = right[w / 4][4 * n + w % 4];
          ones += __builtin_popcount(shape->bit_and ? x & y : x ^ y);
        }
        products[row][n] = ones;
      }
    tw_store_integers(shape, d + block * sums, c + block * sums, products);
  }
}

// -- the choice --

static void tw_multiply_any_floats(const tw_mma_shape* shape, void* const d[], const void* const a[],
                                   const void* const b[], const void* const c[]) {
  tw_multiply_floats(shape, d, a, b, c);
}
static void tw_multiply_any_integers(const tw_mma_shape* shape, void* const d[], const void* const a[],
                                     const void* const b[], const void* const c[]) {
  tw_multiply_integers(shape, d, a, b, c);
}

// The common ones, with constants the compiler unrolls by; any number of columns.
#define TW_FIXED(name, k, operand, accumulator, warpgroup)                                                             \
  static void name(int n, void* const d[], const void* const a[], const void* const b[], const void* const c[]) {     \
    const tw_mma_shape fixed = {16, n, k, operand, operand, accumulator, accumulator, 0, 0, warpgroup};                \
    tw_multiply_floats(&fixed, d, a, b, c);                                                                            \
  }
TW_FIXED(tw_f16_k16_f32, 16, TW_MMA_F16, TW_MMA_F32, 0)
TW_FIXED(tw_f16_k16_f16, 16, TW_MMA_F16, TW_MMA_F16, 0)
TW_FIXED(tw_f16_k8_f32, 8, TW_MMA_F16, TW_MMA_F32, 0)
TW_FIXED(tw_bf16_k16_f32, 16, TW_MMA_BF16, TW_MMA_F32, 0)
TW_FIXED(tw_tf32_k8_f32, 8, TW_MMA_TF32, TW_MMA_F32, 0)
TW_FIXED(tw_e4m3_k32_f32, 32, TW_MMA_E4M3, TW_MMA_F32, 0)
TW_FIXED(tw_e4m3_k32_f32_warpgroup, 32, TW_MMA_E4M3, TW_MMA_F32, 1)
#undef TW_FIXED

void TW_MULTIPLY(const tw_mma_shape* shape, void* const d[], const void* const a[], const void* const b[],
                 const void* const c[]) {
  if (shape->a == TW_MMA_F64) return tw_multiply_f64(shape, d, a, b, c);
  if (shape->a == TW_MMA_B1) return tw_multiply_bits(shape, d, a, b, c);
  if (shape->d == TW_MMA_S32) return tw_multiply_any_integers(shape, d, a, b, c);
  if (shape->m == 16 && shape->c == shape->d && shape->a == shape->b) {
    int wide = shape->d == TW_MMA_F32, n = shape->n;
    if (shape->a == TW_MMA_F16 && shape->k == 16) return wide ? tw_f16_k16_f32(n, d, a, b, c) : tw_f16_k16_f16(n, d, a, b, c);
    if (shape->a == TW_MMA_F16 && wide) return tw_f16_k8_f32(n, d, a, b, c);
    if (shape->a == TW_MMA_BF16 && shape->k == 16) return tw_bf16_k16_f32(n, d, a, b, c);
    if (shape->a == TW_MMA_TF32 && shape->k == 8) return tw_tf32_k8_f32(n, d, a, b, c);
    if (shape->a == TW_MMA_E4M3 && shape->k == 32 && wide)
      return shape->warpgroup ? tw_e4m3_k32_f32_warpgroup(n, d, a, b, c) : tw_e4m3_k32_f32(n, d, a, b, c);
  }
  tw_multiply_any_floats(shape, d, a, b, c);
}
