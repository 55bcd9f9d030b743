// What tensor.c finds out about a matrix instruction and hands to the multiplication. Internal to these files.
#ifndef TW_TENSOR_SHAPE_H
#define TW_TENSOR_SHAPE_H

#include <stdint.h>

typedef enum {
  TW_MMA_F16, TW_MMA_BF16, TW_MMA_TF32, TW_MMA_E4M3, TW_MMA_E5M2, TW_MMA_F32, TW_MMA_F64,
  TW_MMA_S8, TW_MMA_U8, TW_MMA_S4, TW_MMA_U4, TW_MMA_B1, TW_MMA_S32,
  TW_MMA_TYPES
} tw_mma_type;

// d[m][n] = a[m][k] * b[k][n] + c[m][n].
typedef struct {
  int m, n, k;
  int a, b, c, d; // tw_mma_type
  int saturate;
  int bit_and;    // .b1: and.popc instead of xor.popc
  int warpgroup;  // one warp's 16 rows of a wgmma
} tw_mma_shape;

#define TW_MMA_MAX_M 32 // n: any multiple of 8
#define TW_MMA_MAX_K 64 // elements; .b1 is handled in 32-bit words

// The layout of every fragment, in blocks of 8 rows (8 columns for b). In lane 4 * g + t:
//   a: register r holds row g + 8 * (r % (m / 8)), columns 4 e * (r / (m / 8)) + t e .. + e - 1   (e elements a register)
//   b: register r holds column g + 8 * (r / (k / 4e)), rows 4 e * (r % (k / 4e)) + t e .. + e - 1
//   c, d: pair p holds row g + 8 * (p % (m / 8)), columns 8 * (p / (m / 8)) + 2 t and + 1
// For m16n8 and m8n8 these are the tables of the PTX ISA.

typedef void tw_multiply_function(const tw_mma_shape* shape, void* const d[], const void* const a[],
                                  const void* const b[], const void* const c[]);
tw_multiply_function tw_multiply_plain; // any processor
tw_multiply_function tw_multiply_wide;  // AVX2, FMA and F16C where the compiler can target them

#endif
