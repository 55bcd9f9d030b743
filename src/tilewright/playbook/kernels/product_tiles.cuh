// Operands of matrix products in shared memory, for mma.sync: tiles of any dtype's numbers as one or three 16-bit parts.
#pragma once
#include <tilewright/cp_async.cuh>
#include <tilewright/matrix_fragments.cuh>
#include <tilewright/mma.cuh>
#include <tilewright/shared_memory.cuh>
#include <tilewright/vector_access.cuh>

namespace tw {

// Three parts that have all 24 bits of an f32, big to small. An infinite one is its sign and, as the last part, itself:
// the last meets none but the other operand's first, and infinity times a small part that is 0 would be no number.
template <typename T> struct Parts { T at[3]; };
__device__ __forceinline__ Parts<__nv_bfloat16> split_parts(float value) {
  Parts<__nv_bfloat16> parts;
  const bool is_finite = fabsf(value) < 3.38e38f;
  float left = is_finite ? value : copysignf(1.0f, value);
#pragma unroll
  for (int part = 0; part < 3; ++part) {
    parts.at[part] = __float2bfloat16(left);
    left -= __bfloat162float(parts.at[part]);
  }
  if (!is_finite) parts.at[2] = __float2bfloat16(value);
  return parts;
}

// A tile of OUTER x DEPTH numbers (rows of the first operand, or columns of the second, by k), contiguous along k or
// along the other direction, as PARTS planes in the `swizzled_chunk` layout.
template <typename T, int OUTER, int DEPTH, bool ALONG_K, int PARTS> struct ProductTile {
  static constexpr int LINE = ALONG_K ? DEPTH : OUTER, LINES = ALONG_K ? OUTER : DEPTH, CHUNKS = LINE / 8;
  static constexpr int PLANE = OUTER * DEPTH * 2, BYTES = PLANE * PARTS, ALL_CHUNKS = OUTER * DEPTH / 8;

  // Where chunk `number`, 8 elements, lies: which line of the tile, and how far along it.
  static __device__ __forceinline__ int line_of(int number) { return number / CHUNKS; }
  static __device__ __forceinline__ int along_of(int number) { return number % CHUNKS * 8; }
  static __device__ __forceinline__ uint32_t place_of(uint32_t tile, int number) {
    return tile + swizzled_chunk<CHUNKS>(number / CHUNKS, number % CHUNKS);
  }

  // Stores a chunk: as it is, or split.
  static __device__ __forceinline__ void put(uint32_t tile, int number, const Packed<T, 8>& chunk) {
    uint4 bits;
    memcpy(&bits, &chunk, 16);
    const uint32_t to = place_of(tile, number);
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(bits.x), "r"(bits.y), "r"(bits.z), "r"(bits.w) : "memory");
  }
  static __device__ __forceinline__ void put(uint32_t tile, int number, const Packed<float, 8>& chunk) {
    Packed<T, 8> planes[PARTS];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const Parts<T> parts = split_parts(chunk.at[i]);
#pragma unroll
      for (int part = 0; part < PARTS; ++part) planes[part].at[i] = parts.at[part];
    }
#pragma unroll
    for (int part = 0; part < PARTS; ++part) put(tile + part * PLANE, number, planes[part]);
  }

  // A fragment of the first operand: rows `outer` to `outer` + 15, k 16 `step` on.
  static __device__ __forceinline__ void rows(uint32_t (&r)[4], uint32_t plane, int outer, int step, int lane) {
    if constexpr (ALONG_K) ldmatrix_x4(r, plane + swizzled_chunk<CHUNKS>(outer + lane % 16, step * 2 + lane / 16));
    else ldmatrix_x4_trans(r, plane + swizzled_chunk<CHUNKS>(step * 16 + lane / 16 * 8 + lane % 8, outer / 8 + lane / 8 % 2));
  }

  // Two fragments of the second operand: columns `outer` to `outer` + 15; registers 0 and 1, then 2 and 3.
  static __device__ __forceinline__ void columns(uint32_t (&r)[4], uint32_t plane, int outer, int step, int lane) {
    if constexpr (ALONG_K) ldmatrix_x4(r, plane + swizzled_chunk<CHUNKS>(outer + lane / 16 * 8 + lane % 8, step * 2 + lane / 8 % 2));
    else ldmatrix_x4_trans(r, plane + swizzled_chunk<CHUNKS>(step * 16 + lane % 16, outer / 8 + lane / 16));
  }
};

// Whether a 16-bit element is an f16.
template <typename T> struct IsHalf { static constexpr bool value = false; };
template <> struct IsHalf<__half> { static constexpr bool value = true; };

// d (16 x 8) += a (16 x 16) * b (16 x 8) in bf16 or f16.
template <typename T> __device__ __forceinline__ void mma_16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (!IsHalf<T>::value) mma_bf16(d, a, b0, b1);
  else mma_f16(d, a, b0, b1);
}

// The same of operands in parts: products of parts from the small to the big, summed from zero and added to d outside
// of the tensor core, which cuts bits off when it adds.
template <typename T, int PARTS_A, int PARTS_B>
__device__ __forceinline__ void mma_parts(float (&d)[4], const uint32_t (&a)[PARTS_A][4], const uint32_t (&b)[PARTS_B][2]) {
  if constexpr (PARTS_A * PARTS_B == 1) {
    mma_16<T>(d, a[0], b[0][0], b[0][1]);
  } else {
    float sums[4] = {};
#pragma unroll
    for (int order = 2; order >= 0; --order)
#pragma unroll
      for (int part = 0; part <= order; ++part)
        if (part < PARTS_A && order - part < PARTS_B) mma_16<T>(sums, a[part], b[order - part][0], b[order - part][1]);
#pragma unroll
    for (int i = 0; i < 4; ++i) d[i] += sums[i];
  }
}

}  // namespace tw
