//! op      masked_softmax(scores, mask, scale: float = 0.125) -> y
//! out     y: scores.dtype[scores.shape]
//! need    scores.ndim == 3 and scores.dtype == f16 and mask.dtype == bool and mask.shape == scores.shape[1:] and device.cc >= 80
//! let     batch = scores.shape[0], rows = scores.shape[1], cols = scores.shape[2]
//! tune    SPLIT = 1 | 2                                                       # times the warps that a row needs
//! tune    RECOMPUTE = 1 | 0                                                   # hold the packed halves, or their powers
//! tune    OCC = 48 | 64 | 40                                                  # warps on an SM to leave registers for
//! tune    TOGETHER = 4 | 8                                                    # rows of one warp in a block
//! const   WARPS = min(16, SPLIT * next_pow2(ceil_div(max(cols, 1), 1024)))    # that share a row
//! const   WIDTH = 8 if cols % 8 == 0 else 1
//! const   HELD = next_pow2(min(ceil_div(max(cols, 1), WARPS * 32 * WIDTH), 32 / WIDTH))   # vectors in a thread's registers
//! const   FITS = cols <= HELD * WARPS * 32 * WIDTH, FULL = cols == HELD * WARPS * 32 * WIDTH
//! const   ROWS = TOGETHER if WARPS == 1 else 1
//! launch  masked_softmax<<<dim3(ceil_div(rows, ROWS), min(batch, 65535), ceil_div(batch, 65535)), ROWS * WARPS * 32>>>(scores, mask, y, batch, rows, cols, scale)
#include <cuda_fp16.h>

constexpr int THREADS = WARPS * 32;                 // of a row
constexpr int WORDS = WIDTH == 8 ? 4 : 1;           // of a vector
constexpr int PER = WIDTH == 8 ? 2 : 1;             // elements in a word; the upper half of a lone one is -inf
constexpr int BLOCKS = OCC / (ROWS * WARPS) > 0 ? OCC / (ROWS * WARPS) : 1;
constexpr uint32_t NONE = 0xfc00fc00u;              // two halves of -inf

template <int W> struct Packed;
template <> struct Packed<8> { using Scores = uint4; using Mask = uint2; };
template <> struct Packed<1> { using Scores = unsigned short; using Mask = unsigned char; };
using Scores = Packed<WIDTH>::Scores;
using Mask = Packed<WIDTH>::Mask;

__device__ __forceinline__ void unpack(uint32_t (&w)[4], uint4 s) { w[0] = s.x; w[1] = s.y; w[2] = s.z; w[3] = s.w; }
__device__ __forceinline__ void unpack(uint32_t (&w)[1], unsigned short s) { w[0] = s; }

// Bytes of 0 or 1 to halves of all zeros or all ones: prmt repeats the top bit of the chosen byte.
__device__ __forceinline__ void spread(uint32_t (&w)[4], uint2 m) {
  asm("prmt.b32 %0, %1, 0, 0x9988;" : "=r"(w[0]) : "r"(m.x << 7));
  asm("prmt.b32 %0, %1, 0, 0xbbaa;" : "=r"(w[1]) : "r"(m.x << 7));
  asm("prmt.b32 %0, %1, 0, 0x9988;" : "=r"(w[2]) : "r"(m.y << 7));
  asm("prmt.b32 %0, %1, 0, 0xbbaa;" : "=r"(w[3]) : "r"(m.y << 7));
}
__device__ __forceinline__ void spread(uint32_t (&w)[1], unsigned char m) { w[0] = m ? 0x0000ffffu : 0u; }

__device__ __forceinline__ __half2 as_half2(uint32_t w) { return *reinterpret_cast<const __half2*>(&w); }
__device__ __forceinline__ uint32_t two(float low, float high) {
  const __half2 h = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&h);
}
__device__ __forceinline__ void store(uint4* to, const float (&v)[4][2], float f) {
  *to = make_uint4(two(v[0][0] * f, v[0][1] * f), two(v[1][0] * f, v[1][1] * f),
                   two(v[2][0] * f, v[2][1] * f), two(v[3][0] * f, v[3][1] * f));
}
__device__ __forceinline__ void store(unsigned short* to, const float (&v)[1][1], float f) {
  *to = __half_as_ushort(__float2half_rn(v[0][0] * f));
}

__device__ __forceinline__ float exp2_of(float v) {
  float e;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(v));
  return e;
}

// Halves ordered as integers; its own inverse.
__device__ __forceinline__ int ordered(int h) { return h ^ ((h >> 31) & 0x7fff); }

__device__ __forceinline__ float warp_max(__half2 v) {
  const short bits = __half_as_short(__hmax(__low2half(v), __high2half(v)));
  return __half2float(__short_as_half((short)ordered(__reduce_max_sync(~0u, ordered(bits)))));
}
__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int offset = 16; offset; offset /= 2) v += __shfl_xor_sync(~0u, v, offset);
  return v;
}

// Any row and any scale, from memory: long rows, and rows where -1e9 itself matters (nothing above it is left).
__device__ __forceinline__ void general(const __half* __restrict__ from, const unsigned char* __restrict__ allow, __half* __restrict__ to,
    int cols, int thread, float scale, float (&partial)[2][WARPS]) {
  auto value = [&](int p) { return allow[p] ? __half2float(from[p]) * scale : -1e9f; };
  float top = -INFINITY;
#pragma unroll 4
  for (int p = thread; p < cols; p += THREADS) top = fmaxf(top, value(p));
#pragma unroll
  for (int offset = 16; offset; offset /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, offset));
  if constexpr (WARPS > 1) {
    if (threadIdx.x % 32 == 0) partial[0][threadIdx.x / 32] = top;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < WARPS; ++w) top = fmaxf(top, partial[0][w]);
  }
  float sum = 0.0f;
#pragma unroll 4
  for (int p = thread; p < cols; p += THREADS) sum += exp2_of((value(p) - top) * 1.4426950408889634f);
  sum = warp_sum(sum);
  if constexpr (WARPS > 1) {
    if (threadIdx.x % 32 == 0) partial[1][threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) sum += partial[1][w];
  }
  const float factor = 1.0f / sum;
#pragma unroll 4
  for (int p = thread; p < cols; p += THREADS)
    to[p] = __float2half_rn(exp2_of((value(p) - top) * 1.4426950408889634f) * factor);
}

__global__ void __launch_bounds__(ROWS * THREADS, BLOCKS) masked_softmax(const __half* __restrict__ scores,
    const unsigned char* __restrict__ mask, __half* __restrict__ y, long long batch, long long rows, int cols, float scale) {
  __shared__ float2 merged[WARPS];
  __shared__ float partial[2][WARPS];
  const long long row = blockIdx.x * (long long)ROWS + threadIdx.x / THREADS;
  const long long item = blockIdx.z * 65535LL + blockIdx.y;
  if (row >= rows || item >= batch) return;   // whole blocks, or whole warps where ROWS > 1 and there is no barrier
  const int thread = threadIdx.x % THREADS, vectors = cols / WIDTH;
  const long long start = (item * rows + row) * cols;
  const unsigned char* allow = mask + row * cols;
  const __half* from = scores + start;
  __half* to = y + start;
  const float k2 = scale * 1.4426950408889634f;
  auto inside = [&](int k) { return FULL || k * THREADS + thread < vectors; };

  if (FITS && scale >= 1e-30f && scale <= 1024.0f) {   // -1e9 is then far below every finite value
    Scores s[HELD];
    Mask m[HELD];
#pragma unroll
    for (int k = 0; k < HELD; ++k) {
      s[k] = Scores{};
      if (inside(k)) s[k] = reinterpret_cast<const Scores*>(from)[k * THREADS + thread];
    }
#pragma unroll
    for (int k = 0; k < HELD; ++k) {
      m[k] = Mask{};
      if (inside(k)) m[k] = reinterpret_cast<const Mask*>(allow)[k * THREADS + thread];
    }
    uint32_t word[HELD][WORDS];
    __half2 most = as_half2(NONE);
#pragma unroll
    for (int k = 0; k < HELD; ++k) {
      uint32_t keep[WORDS];
      unpack(word[k], s[k]);
      spread(keep, m[k]);
#pragma unroll
      for (int i = 0; i < WORDS; ++i) {
        word[k][i] = (word[k][i] & keep[i]) | (NONE & ~keep[i]);
        most = __hmax2(most, as_half2(word[k][i]));
      }
    }
    const float top = warp_max(most);
    const float shift = top == -INFINITY ? 0.0f : -top * k2;   // nothing here: every power is 0, not NaN

    auto powers = [&](float (&to)[WORDS][PER], const uint32_t (&from)[WORDS]) {
#pragma unroll
      for (int i = 0; i < WORDS; ++i) {
        const float2 f = __half22float2(as_half2(from[i]));
        to[i][0] = exp2_of(fmaf(f.x, k2, shift));
        if constexpr (PER == 2) to[i][PER - 1] = exp2_of(fmaf(f.y, k2, shift));
      }
    };
    float held[RECOMPUTE ? 1 : HELD][WORDS][PER], sum = 0.0f;
#pragma unroll
    for (int k = 0; k < HELD; ++k) {
      float(&v)[WORDS][PER] = held[RECOMPUTE ? 0 : k];
      powers(v, word[k]);
#pragma unroll
      for (int i = 0; i < WORDS; ++i)
#pragma unroll
        for (int j = 0; j < PER; ++j) sum += v[i][j];
    }
    sum = warp_sum(sum);
    float highest = top, weight = 1.0f;
    if constexpr (WARPS > 1) {
      if (threadIdx.x % 32 == 0) merged[threadIdx.x / 32] = make_float2(top, sum);
      __syncthreads();
#pragma unroll
      for (int w = 0; w < WARPS; ++w) highest = fmaxf(highest, merged[w].x);
      sum = 0.0f;
#pragma unroll
      for (int w = 0; w < WARPS; ++w) {
        const float2 each = merged[w];
        sum += each.y * exp2_of((each.x - highest) * k2);
      }
      weight = exp2_of((top - highest) * k2);
    }
    if (highest != -INFINITY) {
      const float factor = __fdividef(weight, sum);
      // Opaque here, so that the powers are not kept from above after all.
      if constexpr (RECOMPUTE) {
#pragma unroll
        for (int k = 0; k < HELD; ++k)
#pragma unroll
          for (int i = 0; i < WORDS; ++i) asm volatile("" : "+r"(word[k][i]));
      }
#pragma unroll
      for (int k = 0; k < HELD; ++k) {
        float(&v)[WORDS][PER] = held[RECOMPUTE ? 0 : k];
        if constexpr (RECOMPUTE) powers(v, word[k]);
        if (inside(k)) store(reinterpret_cast<Scores*>(to) + k * THREADS + thread, v, factor);
      }
      return;   // the same for every thread of the row
    }
  }
  general(from, allow, to, cols, thread, scale, partial);
}
