// Warp-wide matrix instructions: mma.sync, wmma, and the lane layouts of ldmatrix, stmatrix and movmatrix.
//
// Pure functions on 32-lane registers; memory is accessed by the caller. An instruction is looked up once by its
// modifiers and then named by a small integer.
//
// Arithmetic model: that of Hopper, in which every recorded result of an H200 is met bit by bit.
// Integer and bit products: exact, the sum modulo 2^32 or, with .satfinite, clamped once at the end.
// f16, bf16, tf32: products exact; all of them and the accumulator are shifted to the largest exponent among them, cut
// off 25 bits below it and added exactly; the sum is cut off to f32, or rounded to the nearest f16.
// e4m3, e5m2: multiplied as f16, the even pairs of k first and then the odd ones, starting from zero; the accumulator is
// added last, rounded to nearest. f64: a fused multiply-add per k, in order.
// Other generations add in other groups: their results differ by a few units in the last place of the largest term.
#ifndef TW_TENSOR_H
#define TW_TENSOR_H

#include <stdint.h>

// -- mma.sync and wmma.mma --

// From the modifiers after "mma." ("sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"); -1: not known here.
int tw_mma_find(const char* modifiers);
// From the modifiers after "wmma.mma." ("sync.aligned.row.col.m16n16k16.f32.f32"); -1: not known here.
int tw_wmma_mma_find(const char* modifiers);

// Registers of d, a, b and c, in that order, and the bits of each register (32 or 64).
void tw_mma_registers(int mma, int counts[4], int bits[4]);

// d = a * b + c. Each pointer leads to the 32 lanes of one register (uint32_t or uint64_t); d may be c.
void tw_mma(int mma, void* const d[], const void* const a[], const void* const b[], const void* const c[]);

// -- wgmma --

// From the modifiers after "wgmma.mma_async." ("sync.aligned.m64n128k16.f32.bf16.bf16"); -1: not known here.
int tw_wgmma_find(const char* modifiers);
int tw_wgmma_columns(int wgmma);
int tw_wgmma_sums(int wgmma);          // registers of the accumulator; a in registers has four
int tw_wgmma_element_bits(int wgmma);  // of a and b: a row of k is 32 bytes, whatever they are
int tw_wgmma_is_float(int wgmma);      // may negate a and b

// One warp's 16 rows: d = a * b + c. `a`: the four registers of mma.sync's layout; `b`: for each 8 columns the two
// registers of that layout, which are the 8 x 16 bytes of a core matrix. The sums are those of mma.sync, but for
// fp8: there all products and the accumulator are added at once, with 13 bits.
void tw_wgmma(int wgmma, void* const d[], const void* const a[], const void* const b[], const void* const c[]);

// -- wmma.load and wmma.store --

// A fragment of wmma in registers. The layout is ours to choose: it is that of mma.sync's fragments, block after block,
// and where PTX gives a fragment more registers than its elements fill, they repeat from the first.
// From the modifiers after "wmma.": "load.a.sync.aligned.row.m16n16k16.shared.f16" or "store.d.sync...."; -1: unknown.
int tw_fragment_find(const char* modifiers);
int tw_fragment_registers(int fragment);             // registers per lane
int tw_fragment_register_bits(int fragment);         // 32 or 64
int tw_fragment_elements(int fragment);              // elements in one register
int tw_fragment_element_bits(int fragment);          // 4 and 1 too
int tw_fragment_default_stride(int fragment);        // elements between rows (or columns) when PTX gives none
// Where an element lies in memory: the number of elements from the base, given the stride in elements.
int64_t tw_fragment_offset(int fragment, int lane, int reg, int element, int64_t stride);

// -- ldmatrix, stmatrix, movmatrix: 8x8 matrices of 16-bit elements --

// Row r of matrix m is the 16 bytes at the address in lane 8 * m + r.
// ldmatrix: `rows[lane]` holds the 16 bytes read through that lane's address (lanes below 8 * count).
void tw_ldmatrix(const uint8_t rows[][16], int count, int transpose, uint32_t* const d[]);
// stmatrix: fills `rows[lane]` with the 16 bytes to write through that lane's address.
void tw_stmatrix(const uint32_t* const a[], int count, int transpose, uint8_t rows[][16]);
// movmatrix.sync.aligned.m8n8.trans.b16
void tw_movmatrix(const uint32_t a[32], uint32_t d[32]);

#endif
