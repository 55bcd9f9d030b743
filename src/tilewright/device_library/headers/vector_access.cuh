// Global memory 16 bytes at a time, and conversions between packed dtypes and f32.
#pragma once

namespace tw {

// 16 bytes of a dtype: `at[i]`, SIZE of them.
// cost: four registers
// arch: sm_80
template <typename T> struct alignas(16) Vector {
  static constexpr int SIZE = 16 / sizeof(T);
  T at[SIZE];
};

// Loads 16 aligned bytes.
// cost: one instruction
// arch: sm_80
template <typename T> __device__ __forceinline__ Vector<T> load_vector(const T* from) {
  const uint4 bits = *reinterpret_cast<const uint4*>(from);
  Vector<T> vector;
  memcpy(&vector, &bits, 16);
  return vector;
}

// Loads 16 aligned bytes that nobody reads again soon: they leave the caches first.
// cost: one instruction
// arch: sm_80
template <typename T> __device__ __forceinline__ Vector<T> load_vector_streaming(const T* from) {
  const uint4 bits = __ldcs(reinterpret_cast<const uint4*>(from));
  Vector<T> vector;
  memcpy(&vector, &bits, 16);
  return vector;
}

// Stores 16 aligned bytes.
// cost: one instruction
// arch: sm_80
template <typename T> __device__ __forceinline__ void store_vector(T* to, const Vector<T>& vector) {
  uint4 bits;
  memcpy(&bits, &vector, 16);
  *reinterpret_cast<uint4*>(to) = bits;
}

// Stores 16 aligned bytes that nobody reads again soon.
// cost: one instruction
// arch: sm_80
template <typename T> __device__ __forceinline__ void store_vector_streaming(T* to, const Vector<T>& vector) {
  uint4 bits;
  memcpy(&bits, &vector, 16);
  __stcs(reinterpret_cast<uint4*>(to), bits);
}

// The bits of BYTES (1, 2, 4, 8 or 16), as one instruction moves them.
// cost: none
// arch: sm_80
template <int BYTES> struct WordOf { using type = uint4; };
template <> struct WordOf<8> { using type = uint2; };
template <> struct WordOf<4> { using type = unsigned; };
template <> struct WordOf<2> { using type = unsigned short; };
template <> struct WordOf<1> { using type = unsigned char; };

// N neighbouring elements, N a power of two: `at[i]`.
// cost: their registers
// arch: sm_80
template <typename T, int N> struct Packed {
  static constexpr int BYTES = N * int(sizeof(T)), WORDS = BYTES < 16 ? 1 : BYTES / 16;
  using Word = typename WordOf<BYTES / WORDS>::type;
  T at[N];
};

// Loads N elements that begin at a multiple of N, or of 16 bytes.
// cost: one instruction for 16 bytes or fewer
// arch: sm_80
template <int N, typename T> __device__ __forceinline__ Packed<T, N> load_packed(const T* from) {
  using P = Packed<T, N>;
  typename P::Word words[P::WORDS];
#pragma unroll
  for (int word = 0; word < P::WORDS; ++word) words[word] = reinterpret_cast<const typename P::Word*>(from)[word];
  P packed;
  memcpy(&packed, words, P::BYTES);
  return packed;
}

// The same of the first `count` elements alone; the others are zero, and are not read.
// cost: as above, and a comparison, where all are there
// arch: sm_80
template <int N, typename T, typename C> __device__ __forceinline__ Packed<T, N> load_packed(const T* from, C count) {
  if (count >= N) return load_packed<N>(from);
  Packed<T, N> packed;
  memset(&packed, 0, sizeof(packed));
#pragma unroll
  for (int i = 0; i < N; ++i)
    if (i < count) packed.at[i] = from[i];
  return packed;
}

// Stores N elements that begin at a multiple of N, or of 16 bytes.
// cost: one instruction for 16 bytes or fewer
// arch: sm_80
template <int N, typename T> __device__ __forceinline__ void store_packed(T* to, const Packed<T, N>& packed) {
  using P = Packed<T, N>;
  typename P::Word words[P::WORDS];
  memcpy(words, &packed, P::BYTES);
#pragma unroll
  for (int word = 0; word < P::WORDS; ++word) reinterpret_cast<typename P::Word*>(to)[word] = words[word];
}

// Stores the first `count` of them.
// cost: as above, and a comparison, where all are there
// arch: sm_80
template <int N, typename T, typename C>
__device__ __forceinline__ void store_packed(T* to, const Packed<T, N>& packed, C count) {
  if (count >= N) return store_packed(to, packed);
#pragma unroll
  for (int i = 0; i < N; ++i)
    if (i < count) to[i] = packed.at[i];
}

// An element as f32.
// cost: one conversion
// arch: sm_80
template <typename T> __device__ __forceinline__ float to_float(T value) { return float(value); }

// f32 as an element, rounded to nearest. For float8 as torch has it include float8.cuh.
// cost: one conversion
// arch: sm_80
template <typename T> __device__ __forceinline__ T from_float(float value) { return T(value); }

// The elements of 16 bytes as f32.
// cost: one instruction per element
// arch: sm_80
template <typename T> __device__ __forceinline__ void unpack(const Vector<T>& vector, float (&values)[16 / sizeof(T)]) {
#pragma unroll
  for (int i = 0; i < Vector<T>::SIZE; ++i) values[i] = to_float(vector.at[i]);
}

// f32 as 16 bytes of elements, rounded to nearest.
// cost: half an instruction to one per element
// arch: sm_80
template <typename T> __device__ __forceinline__ Vector<T> pack(const float (&values)[16 / sizeof(T)]) {
  Vector<T> vector;
#pragma unroll
  for (int i = 0; i < Vector<T>::SIZE; ++i) vector.at[i] = from_float<T>(values[i]);
  return vector;
}

// Two f32 as two 16-bit elements in a register, `low` first in memory.
// cost: one instruction
// arch: sm_80
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
__device__ __forceinline__ uint32_t pack_f16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// Eight unsigned 4-bit numbers, the lowest bits first, as four registers of two bf16: n becomes n - OFFSET exactly. The bits
// of n are set into those of 128, of which bf16 has the ones as its last bits.
// cost: nine logic instructions and four additions of pairs for eight numbers
// arch: sm_80
template <int OFFSET> __device__ __forceinline__ void unpack_int4(uint32_t packed, uint32_t (&pairs)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t two = packed >> (8 * i), bits = (two & 0xfu) | (two & 0xf0u) << 12 | 0x43004300u;
    const __nv_bfloat162 base = __float2bfloat162_rn(128.f + OFFSET);
    __nv_bfloat162 value;
    memcpy(&value, &bits, 4);
    value = __hsub2(value, base);
    memcpy(&pairs[i], &value, 4);
  }
}

}  // namespace tw
