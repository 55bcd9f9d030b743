// bf16 to int8 with one scale per row: scale = max|x| / 127, q = round(x / scale).
//
// A row that fits the registers of a block is read once: one launch finds its scale and quantises it (WHOLE). Longer
// rows take two launches, the first for the scales. `pdl` (programmatic dependent launch) lets the second start while the
// first is still running, so that its launch and its first loads are hidden: the first kernel says at once that dependents
// may be launched, and the second loads x, which the first does not write, before it waits for the scales. A launch whose
// `when` is false is left out. A row of zeros gets the scale 1.

//! op      quantize_rows(x) -> q, scale
//! let     cols = x.shape[-1], rows = prod(x.shape[:-1])
//! out     q: i8[x.shape]
//! out     scale: f32[x.shape[:-1]]
//! need    device.cc >= 90 and x.dtype == bf16 and cols > 0 and cols % 8 == 0
//! tune    THREADS = 256 | 128 | 512
//! let     row_vectors = cols / 8, vectors = rows * row_vectors
//! need    vectors <= 2000000000                           # so that a quick 32-bit division finds the row
//! const   VECTORS = min(next_pow2(ceil_div(row_vectors, THREADS)), 8)   # loads per thread
//! let     whole = row_vectors <= THREADS * VECTORS
//! need    whole or THREADS == 512
//! launch  quantize_whole<<<rows, THREADS>>>(x, scale, q, row_vectors) when whole
//! launch  row_scale<<<rows, THREADS>>>(x, scale, row_vectors) when not whole
//! launch  quantize<<<ceil_div(vectors, THREADS), THREADS>>>(x, scale, q, vectors, row_vectors) pdl when not whole

#include <cuda_bf16.h>

constexpr int WARPS = THREADS / 32;

// Eight elements, and what becomes of them.
struct alignas(16) Vector {
  unsigned pairs[4];
};
struct alignas(8) Packed {
  unsigned quads[2];
};

// Running maxima of absolute values, one in each half. Without its sign bit, a bf16 compares as an integer does.
__device__ unsigned greater_pair(unsigned pair, Vector loaded) {
#pragma unroll
  for (int i = 0; i < 4; ++i) pair = __vmaxu2(pair, loaded.pairs[i] & 0x7fff7fffu);
  return pair;
}

// The scale of the block's row, the same in every thread, from the maxima of each.
__device__ float block_scale(unsigned pair) {
  __shared__ unsigned of_warps[WARPS];
  const unsigned of_warp = __reduce_max_sync(~0u, max(pair & 0xffffu, pair >> 16));
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = of_warp;
  __syncthreads();
  unsigned greatest = 0;
#pragma unroll
  for (int warp = 0; warp < WARPS; ++warp) greatest = max(greatest, of_warps[warp]);
  // A bf16 is the upper half of an f32.
  return greatest == 0 ? 1.0f : __uint_as_float(greatest << 16) / 127.0f;
}

// Every element divided by the scale and rounded. A quotient is guessed with the reciprocal and corrected by what remains,
// which is how a division ends too: the result is the same, at a third of the work. So that a tiny scale has a
// reciprocal, x and scale are raised together by a power of two.
__device__ Packed quantized(Vector loaded, float scale) {
  const float raise = scale < 1e-20f ? 0x1p64f : 1.0f;
  const float divisor = scale * raise, inverse = 1.0f / divisor;
  Packed result;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    unsigned rounded[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const unsigned pair = loaded.pairs[2 * i + j / 2];
      const float x = __uint_as_float(j % 2 == 0 ? pair << 16 : pair & 0xffff0000u) * raise;
      const float guess = x * inverse;
      const float quotient = fmaf(fmaf(-guess, divisor, x), inverse, guess);
      // Added to 1.5 * 2^23, a small number is rounded to an integer, which then stands in the lowest bits.
      rounded[j] = __float_as_uint(quotient + 12582912.0f);
    }
    const unsigned low = __byte_perm(rounded[0], rounded[1], 0x0040), high = __byte_perm(rounded[2], rounded[3], 0x0040);
    result.quads[i] = __byte_perm(low, high, 0x5410);
  }
  return result;
}

__global__ void __launch_bounds__(THREADS, 1024 / THREADS)
    quantize_whole(const Vector* __restrict__ x, float* __restrict__ scale, Packed* __restrict__ q, int vectors) {
  const long long start = blockIdx.x * static_cast<long long>(vectors);
  Vector held[VECTORS] = {};  // zeros past the end of the row change no maximum
#pragma unroll
  for (int k = 0; k < VECTORS; ++k) {
    if (k * THREADS + threadIdx.x < vectors) held[k] = x[start + k * THREADS + threadIdx.x];
  }
  unsigned pair = 0;
#pragma unroll
  for (int k = 0; k < VECTORS; ++k) pair = greater_pair(pair, held[k]);
  const float of_row = block_scale(pair);
  if (threadIdx.x == 0) scale[blockIdx.x] = of_row;
#pragma unroll
  for (int k = 0; k < VECTORS; ++k) {
    if (k * THREADS + threadIdx.x < vectors) q[start + k * THREADS + threadIdx.x] = quantized(held[k], of_row);
  }
}

__global__ void __launch_bounds__(THREADS)
    row_scale(const Vector* __restrict__ x, float* __restrict__ scale, int vectors) {
  asm volatile("griddepcontrol.launch_dependents;");
  const Vector* row = x + blockIdx.x * static_cast<long long>(vectors);
  unsigned pair = 0;
#pragma unroll 4
  for (int place = threadIdx.x; place < vectors; place += THREADS) pair = greater_pair(pair, row[place]);
  const float of_row = block_scale(pair);
  if (threadIdx.x == 0) scale[blockIdx.x] = of_row;
}

// `scale` is not __restrict__: the compiler must not move its load above the wait.
__global__ void __launch_bounds__(THREADS)
    quantize(const Vector* __restrict__ x, const float* scale, Packed* __restrict__ q, unsigned vectors,
             unsigned row_vectors) {
  const unsigned place = blockIdx.x * THREADS + threadIdx.x;
  Vector loaded = {};
  if (place < vectors) loaded = x[place];
  asm volatile("griddepcontrol.wait;" ::: "memory");  // until the scales are written and visible
  if (place < vectors) q[place] = quantized(loaded, scale[place / row_vectors]);
}
