// bf16 to int8 with one scale per row: scale = max|x| / 127, q = round(x / scale).
//
// Two launches: the first finds the scales, the second quantises. `pdl` (programmatic dependent launch) lets the second
// start while the first is still running, so that its launch and its first loads are hidden: the first kernel says at
// once that dependents may be launched, and the second loads x, which the first does not write, before it waits for the
// scales. A row of zeros gets the scale 1.

//! op      quantize_rows(x) -> q, scale
//! let     cols = x.shape[-1], rows = prod(x.shape[:-1])
//! out     q: i8[x.shape]
//! out     scale: f32[x.shape[:-1]]
//! need    device.cc >= 90 and x.dtype == bf16 and cols > 0 and cols % 8 == 0
//! tune    THREADS = 256 | 128 | 512
//! let     row_vectors = cols / 8, vectors = rows * row_vectors
//! need    vectors <= 2000000000                           # so that a quick 32-bit division finds the row
//! launch  row_scale<<<rows, THREADS>>>(x, scale, row_vectors)
//! launch  quantize<<<ceil_div(vectors, THREADS), THREADS>>>(x, scale, q, vectors, row_vectors) pdl

#include <cuda_bf16.h>

constexpr int WARPS = THREADS / 32;

struct alignas(16) Vector {
  __nv_bfloat16 at[8];
};

struct alignas(8) Packed {
  signed char at[8];
};

// Greatest absolute value of every row. Without its sign bit, a bf16 compares as an integer does.
__global__ void __launch_bounds__(THREADS)
    row_scale(const uint4* __restrict__ x, float* __restrict__ scale, int vectors) {
  asm volatile("griddepcontrol.launch_dependents;");
  const uint4* row = x + blockIdx.x * static_cast<long long>(vectors);

  unsigned pair = 0;  // two running maxima, one in each half
#pragma unroll 4
  for (int place = threadIdx.x; place < vectors; place += THREADS) {
    const uint4 loaded = row[place];
    pair = __vmaxu2(pair, loaded.x & 0x7fff7fffu);
    pair = __vmaxu2(pair, loaded.y & 0x7fff7fffu);
    pair = __vmaxu2(pair, loaded.z & 0x7fff7fffu);
    pair = __vmaxu2(pair, loaded.w & 0x7fff7fffu);
  }
  const unsigned of_warp = __reduce_max_sync(~0u, max(pair & 0xffffu, pair >> 16));

  __shared__ unsigned of_warps[WARPS];
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = of_warp;
  __syncthreads();
  if (threadIdx.x == 0) {
    unsigned greatest = 0;
    for (int warp = 0; warp < WARPS; ++warp) greatest = max(greatest, of_warps[warp]);
    // A bf16 is the upper half of an f32.
    scale[blockIdx.x] = greatest == 0 ? 1.0f : __uint_as_float(greatest << 16) / 127.0f;
  }
}

// `scale` is not __restrict__: the compiler must not move its load above the wait.
__global__ void __launch_bounds__(THREADS)
    quantize(const Vector* __restrict__ x, const float* scale, Packed* __restrict__ q, unsigned vectors,
             unsigned row_vectors) {
  const unsigned place = blockIdx.x * THREADS + threadIdx.x;
  Vector loaded = {};
  if (place < vectors) loaded = x[place];

  asm volatile("griddepcontrol.wait;" ::: "memory");  // until the scales are written and visible
  if (place >= vectors) return;
  const float divisor = scale[place / row_vectors];
  Packed result;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float rounded = rintf(static_cast<float>(loaded.at[i]) / divisor);
    result.at[i] = static_cast<signed char>(fminf(fmaxf(rounded, -127.0f), 127.0f));
  }
  q[place] = result;
}
