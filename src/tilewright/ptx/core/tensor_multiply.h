// The multiplication, included by two translation units: one for any processor, one for wide vectors.
//
// Vectors of 8 lie along n. A product of two f16, bf16, tf32 or fp8 numbers is exact in f32, so that both give the
// same results whether or not a fused multiply-add exists.
#include <string.h>

#include "numeric_half.h"
#include "tensor_shape.h"

typedef float tw_f32x8 __attribute__((vector_size(32)));
typedef int32_t tw_s32x8 __attribute__((vector_size(32)));
typedef uint32_t tw_u32x8 __attribute__((vector_size(32)));

// -- floats --

static int tw_elements(int type) {
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
static void tw_decode_floats(int type, const void* source, float* out) {
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
      memcpy(bytes, words, sizeof bytes);
      if (type == TW_MMA_E4M3)
        for (int i = 0; i < 128; ++i) out[i] = tw_e4m3_to_f32(bytes[i]);
      else
        for (int i = 0; i < 128; ++i) out[i] = tw_e5m2_to_f32(bytes[i]);
    }
  }
}

static void tw_load_floats(const tw_mma_shape* shape, const void* const a[], const void* const b[],
                           float left[TW_MMA_MAX_M][TW_MMA_MAX_K], float right[][TW_MMA_MAX_K][8]) {
  float block[128];
  int width = 4 * tw_elements(shape->a); // columns of a that one register covers
  int row_blocks = shape->m / 8, k_blocks = shape->k / width;
  for (int r = 0; r < row_blocks * k_blocks; ++r) {
    tw_decode_floats(shape->a, a[r], block);
    for (int g = 0; g < 8; ++g)
      memcpy(&left[g + 8 * (r % row_blocks)][width * (r / row_blocks)], block + g * width, (size_t)width * 4);
  }
  for (int r = 0; r < shape->n / 8 * k_blocks; ++r) {
    tw_decode_floats(shape->b, b[r], block);
    for (int k = 0; k < width; ++k)
      for (int g = 0; g < 8; ++g) right[r / k_blocks][k + width * (r % k_blocks)][g] = block[g * width + k];
  }
}

static void tw_load_accumulator(const tw_mma_shape* shape, const void* const c[],
                                float sum[TW_MMA_MAX_N / 8][TW_MMA_MAX_M][8]) {
  int row_blocks = shape->m / 8;
  for (int p = 0; p < row_blocks * (shape->n / 8); ++p) {
    float(*block)[8] = sum[p / row_blocks] + 8 * (p % row_blocks);
    if (shape->c == TW_MMA_F16) {
      float pairs[64];
      tw_decode_floats(TW_MMA_F16, c[p], pairs);
      memcpy(block, pairs, sizeof pairs);
    } else {
      float first[32], second[32];
      memcpy(first, c[2 * p], sizeof first);
      memcpy(second, c[2 * p + 1], sizeof second);
      float* flat = &block[0][0]; // the 64 values of the block, lane by lane
      for (int lane = 0; lane < 32; ++lane) {
        flat[2 * lane] = first[lane];
        flat[2 * lane + 1] = second[lane];
      }
    }
  }
}

static void tw_store_accumulator(const tw_mma_shape* shape, void* const d[],
                                 float sum[TW_MMA_MAX_N / 8][TW_MMA_MAX_M][8]) {
  int row_blocks = shape->m / 8;
  for (int p = 0; p < row_blocks * (shape->n / 8); ++p) {
    const float* block = &sum[p / row_blocks][8 * (p % row_blocks)][0]; // 64 values, lane by lane
    if (shape->d == TW_MMA_F16) {
      uint16_t pairs[64];
      for (int i = 0; i < 64; ++i) pairs[i] = tw_f32_to_f16(block[i]);
      memcpy(d[p], pairs, sizeof pairs);
    } else {
      float first[32], second[32];
      for (int lane = 0; lane < 32; ++lane) {
        first[lane] = tw_canonical_f32(block[2 * lane]);
        second[lane] = tw_canonical_f32(block[2 * lane + 1]);
      }
      memcpy(d[2 * p], first, sizeof first);
      memcpy(d[2 * p + 1], second, sizeof second);
    }
  }
}

static void tw_multiply_floats(const tw_mma_shape* shape, void* const d[], const void* const a[],
                               const void* const b[], const void* const c[]) {
  float left[TW_MMA_MAX_M][TW_MMA_MAX_K], right[TW_MMA_MAX_N / 8][TW_MMA_MAX_K][8];
  float sum[TW_MMA_MAX_N / 8][TW_MMA_MAX_M][8];
  tw_load_floats(shape, a, b, left, right);
  tw_load_accumulator(shape, c, sum);
  for (int block = 0; block < shape->n / 8; ++block)
    for (int row = 0; row < shape->m; row += 8) {
      tw_f32x8 total[8];
      memcpy(total, sum[block][row], sizeof total);
      for (int k = 0; k < shape->k; ++k) {
        tw_f32x8 column;
        memcpy(&column, right[block][k], sizeof column);
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) total[i] += left[row + i][k] * column;
      }
      memcpy(sum[block][row], total, sizeof total);
    }
  tw_store_accumulator(shape, d, sum);
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

static void tw_decode_integers(int type, const void* source, int32_t* out) {
  uint32_t words[32];
  memcpy(words, source, sizeof words);
  int elements = tw_elements(type), bits = 32 / elements;
  for (int i = 0; i < 32; ++i)
    for (int j = 0; j < elements; ++j) {
      uint32_t field = words[i] >> (bits * j) & ((1u << bits) - 1);
      int is_signed = type == TW_MMA_S8 || type == TW_MMA_S4;
      out[i * elements + j] = (int32_t)field - (is_signed ? (int32_t)((field >> (bits - 1)) << bits) : 0);
    }
}

static void tw_load_integers(const tw_mma_shape* shape, const void* const a[], const void* const b[],
                             int32_t left[TW_MMA_MAX_M][TW_MMA_MAX_K], int32_t right[][TW_MMA_MAX_K][8]) {
  int32_t block[256];
  int width = 4 * tw_elements(shape->a), row_blocks = shape->m / 8, k_blocks = shape->k / width;
  for (int r = 0; r < row_blocks * k_blocks; ++r) {
    tw_decode_integers(shape->a, a[r], block);
    for (int g = 0; g < 8; ++g)
      memcpy(&left[g + 8 * (r % row_blocks)][width * (r / row_blocks)], block + g * width, (size_t)width * 4);
  }
  for (int r = 0; r < shape->n / 8 * k_blocks; ++r) {
    tw_decode_integers(shape->b, b[r], block);
    for (int k = 0; k < width; ++k)
      for (int g = 0; g < 8; ++g) right[r / k_blocks][k + width * (r % k_blocks)][g] = block[g * width + k];
  }
}

static uint32_t tw_add_products(uint32_t start, int32_t products, int saturate) {
  if (!saturate) return start + (uint32_t)products;
  int64_t total = (int64_t)(int32_t)start + products;
  return (uint32_t)(total > INT32_MAX ? INT32_MAX : total < INT32_MIN ? INT32_MIN : total);
}

// Register j of the accumulator in one lane: its row and column.
static void tw_place(const tw_mma_shape* shape, int j, int lane, int* row, int* column) {
  int row_blocks = shape->m / 8, pair = j / 2;
  *row = (lane >> 2) + 8 * (pair % row_blocks);
  *column = 8 * (pair / row_blocks) + 2 * (lane & 3) + j % 2;
}

static void tw_store_integers(const tw_mma_shape* shape, void* const d[], const void* const c[],
                              int32_t products[TW_MMA_MAX_N / 8][TW_MMA_MAX_M][8]) {
  for (int j = 0; j < shape->m * shape->n / 32; ++j) {
    uint32_t lanes[32];
    memcpy(lanes, c[j], sizeof lanes);
    for (int lane = 0; lane < 32; ++lane) {
      int row, column;
      tw_place(shape, j, lane, &row, &column);
      lanes[lane] = tw_add_products(lanes[lane], products[column / 8][row][column % 8], shape->saturate);
    }
    memcpy(d[j], lanes, sizeof lanes);
  }
}

static void tw_multiply_integers(const tw_mma_shape* shape, void* const d[], const void* const a[],
                                 const void* const b[], const void* const c[]) {
  int32_t left[TW_MMA_MAX_M][TW_MMA_MAX_K], right[TW_MMA_MAX_N / 8][TW_MMA_MAX_K][8];
  int32_t products[TW_MMA_MAX_N / 8][TW_MMA_MAX_M][8];
  tw_load_integers(shape, a, b, left, right);
  for (int block = 0; block < shape->n / 8; ++block)
    for (int row = 0; row < shape->m; row += 8) {
      tw_s32x8 total[8] = {{0}}; // at most 64 * 255 * 255: no overflow
      for (int k = 0; k < shape->k; ++k) {
        tw_s32x8 column;
        memcpy(&column, right[block][k], sizeof column);
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) total[i] += left[row + i][k] * column;
      }
      memcpy(products[block][row], total, sizeof total);
    }
  tw_store_integers(shape, d, c, products);
}

static void tw_multiply_bits(const tw_mma_shape* shape, void* const d[], const void* const a[], const void* const b[],
                             const void* const c[]) {
  uint32_t left[8][32], right[8][32]; // registers
  int words = shape->k / 32, row_blocks = shape->m / 8;
  int32_t products[TW_MMA_MAX_N / 8][TW_MMA_MAX_M][8];
  for (int r = 0; r < row_blocks * words / 4; ++r) memcpy(left[r], a[r], sizeof left[r]);
  for (int r = 0; r < words / 4; ++r) memcpy(right[r], b[r], sizeof right[r]);
  for (int row = 0; row < shape->m; ++row)
    for (int n = 0; n < 8; ++n) {
      int ones = 0;
      for (int w = 0; w < words; ++w) {
        uint32_t x = left[row / 8 + row_blocks * (w / 4)][4 * (row % 8) + w % 4], y = right[w / 4][4 * n + w % 4];
        ones += __builtin_popcount(shape->bit_and ? x & y : x ^ y);
      }
      products[0][row][n] = ones;
    }
  tw_store_integers(shape, d, c, products);
}

void TW_MULTIPLY(const tw_mma_shape* shape, void* const d[], const void* const a[], const void* const b[],
                 const void* const c[]) {
  if (shape->a == TW_MMA_F64)
    tw_multiply_f64(shape, d, a, b, c);
  else if (shape->a == TW_MMA_B1)
    tw_multiply_bits(shape, d, a, b, c);
  else if (shape->d == TW_MMA_S32)
    tw_multiply_integers(shape, d, a, b, c);
  else if (shape->m == 16 && shape->n == 8 && shape->k == 16 && shape->a == TW_MMA_F16 && shape->d == TW_MMA_F32) {
    // The most common one, with constants the compiler can unroll by.
    tw_mma_shape fixed = {16, 8, 16, TW_MMA_F16, TW_MMA_F16, TW_MMA_F32, TW_MMA_F32, 0, 0};
    tw_multiply_floats(&fixed, d, a, b, c);
  } else
    tw_multiply_floats(shape, d, a, b, c);
}
