//! op      masked_softmax(scores, mask, scale: float = 0.125) -> y
//! out     y: scores.dtype[scores.shape]
//! need    scores.ndim == 3 and scores.dtype == f16 and mask.dtype == bool and mask.shape == scores.shape[1:]
//! let     batch = scores.shape[0], rows = scores.shape[1], cols = scores.shape[2]
//! tune    WARPS = 1 | 2 | 4                                                   # that share a row
//! tune    GROUP = 2 | 1 | 4 | 8                                               # batch items that share a loaded mask row
//! const   WIDTH = 8 if cols % 8 == 0 else 1
//! const   HELD = next_pow2(min(ceil_div(max(cols, 1), WARPS * 32 * WIDTH), 32 / WIDTH))
//! const   ROWS = 4 if WARPS == 1 else 1
//! let     row_blocks = ceil_div(rows, ROWS)
//! launch  masked_softmax<<<row_blocks * ceil_div(batch, GROUP), ROWS * WARPS * 32>>>(scores, mask, y, batch, rows, cols, row_blocks, scale)
#include <cuda_fp16.h>

constexpr int THREADS = WARPS * 32;   // of a row
template <int W> struct Packed;
template <> struct Packed<8> { using Scores = uint4; using Mask = uint2; };
template <> struct Packed<1> { using Scores = unsigned short; using Mask = unsigned char; };
using Scores = Packed<WIDTH>::Scores;
using Mask = Packed<WIDTH>::Mask;

__device__ __forceinline__ void widen(float (&v)[8], uint4 s, uint2 m, float scale) {
  const uint32_t words[4] = {s.x, s.y, s.z, s.w}, bits[2] = {m.x, m.y};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 f = __half22float2(*reinterpret_cast<const __half2*>(&words[i]));
    v[2 * i] = (bits[i / 2] & (0x000000ffu << (i % 2 * 16))) ? f.x * scale : -1e9f;
    v[2 * i + 1] = (bits[i / 2] & (0x0000ff00u << (i % 2 * 16))) ? f.y * scale : -1e9f;
  }
}
__device__ __forceinline__ void widen(float (&v)[1], unsigned short s, unsigned char m, float scale) {
  v[0] = m ? __half2float(__ushort_as_half(s)) * scale : -1e9f;
}
__device__ __forceinline__ void narrow(uint4& to, const float (&v)[8], float factor) {
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const __half2 two = __floats2half2_rn(v[2 * i] * factor, v[2 * i + 1] * factor);
    words[i] = *reinterpret_cast<const uint32_t*>(&two);
  }
  to = make_uint4(words[0], words[1], words[2], words[3]);
}
__device__ __forceinline__ void narrow(unsigned short& to, const float (&v)[1], float factor) {
  to = __half_as_ushort(__float2half_rn(v[0] * factor));
}

__device__ __forceinline__ float exp_below(float v, float top) {   // the difference first: exact where all are -1e9
  float e;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"((v - top) * 1.4426950408889634f));
  return e;
}

template <bool MAXIMUM> __device__ __forceinline__ float across_row(float v, float* partial) {
#pragma unroll
  for (int offset = 16; offset; offset /= 2) {
    const float other = __shfl_xor_sync(~0u, v, offset);
    v = MAXIMUM ? fmaxf(v, other) : v + other;
  }
  if constexpr (WARPS > 1) {
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
    __syncthreads();
    v = partial[0];
#pragma unroll
    for (int w = 1; w < WARPS; ++w) v = MAXIMUM ? fmaxf(v, partial[w]) : v + partial[w];
  }
  return v;
}

__global__ void __launch_bounds__(ROWS * THREADS) masked_softmax(const __half* __restrict__ scores,
    const unsigned char* __restrict__ mask, __half* __restrict__ y, long long batch, long long rows, int cols,
    int row_blocks, float scale) {
  __shared__ float partial[2][WARPS];   // maximum and sum take turns: each one's barrier protects the other's slots
  const long long row = (blockIdx.x % row_blocks) * (long long)ROWS + threadIdx.x / THREADS;
  if (row >= rows) return;   // whole warps, and only where ROWS > 1: there is no barrier then
  const int thread = threadIdx.x % THREADS, vectors = cols / WIDTH;
  const long long first = (long long)(blockIdx.x / row_blocks) * GROUP;
  const int items = batch - first < GROUP ? int(batch - first) : GROUP;
  const long long start = (first * rows + row) * cols, stride = rows * cols / WIDTH;
  const Mask* allow = reinterpret_cast<const Mask*>(mask + row * cols);
  const Scores* from = reinterpret_cast<const Scores*>(scores + start);
  Scores* to = reinterpret_cast<Scores*>(y + start);

  Scores raw[HELD];
  Mask allowed[HELD];
#pragma unroll
  for (int k = 0; k < HELD; ++k)
    if (k * THREADS + thread < vectors) raw[k] = from[k * THREADS + thread];
#pragma unroll
  for (int k = 0; k < HELD; ++k)
    if (k * THREADS + thread < vectors) allowed[k] = allow[k * THREADS + thread];

#pragma unroll 1
  for (int item = 0; item < items; ++item) {
    float held[HELD][WIDTH];
#pragma unroll
    for (int k = 0; k < HELD; ++k) {
      if (k * THREADS + thread < vectors) {
        widen(held[k], raw[k], allowed[k], scale);
      } else {
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) held[k][i] = -INFINITY;
      }
    }
    const Scores* here = from;
    from += stride;
    if (item + 1 < items) {   // the next row is on its way while this one is computed
#pragma unroll
      for (int k = 0; k < HELD; ++k)
        if (k * THREADS + thread < vectors) raw[k] = from[k * THREADS + thread];
    }

    float top = -INFINITY;
#pragma unroll
    for (int k = 0; k < HELD; ++k)
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) top = fmaxf(top, held[k][i]);
    for (int p = HELD * THREADS + thread; p < vectors; p += THREADS) {   // only rows too long for registers
      float v[WIDTH];
      widen(v, here[p], allow[p], scale);
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) top = fmaxf(top, v[i]);
    }
    top = across_row<true>(top, partial[0]);

    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < HELD; ++k)
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) {
        held[k][i] = exp_below(held[k][i], top);
        sum += held[k][i];
      }
    for (int p = HELD * THREADS + thread; p < vectors; p += THREADS) {
      float v[WIDTH];
      widen(v, here[p], allow[p], scale);
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) sum += exp_below(v[i], top);
    }
    const float factor = 1.0f / across_row<false>(sum, partial[1]);

#pragma unroll
    for (int k = 0; k < HELD; ++k)
      if (k * THREADS + thread < vectors) {
        Scores out;
        narrow(out, held[k], factor);
        to[k * THREADS + thread] = out;
      }
    for (int p = HELD * THREADS + thread; p < vectors; p += THREADS) {
      float v[WIDTH];
      widen(v, here[p], allow[p], scale);
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) v[i] = exp_below(v[i], top);
      Scores out;
      narrow(out, v, factor);
      to[p] = out;
    }
    to += stride;
  }
}
