//! op      cross_entropy(logits, labels, smoothing: float = 0.1) -> losses
//! out     losses: f32[labels.shape]
//! let     rows = logits.shape[0], classes = logits.shape[1]
//! need    logits.ndim == 2 and logits.dtype == bf16 and labels.dtype == i64 and labels.shape == [rows] and classes > 0
//! tune    WARPS = 16 | 8 | 32                                          # of a row
//! tune    RESIDENT = 2 | 3 | 1 | 4                                     # blocks per SM the registers must allow
//! need    WARPS * RESIDENT <= 64
//! const   WIDTH = 8 if classes % 8 == 0 else 1                         # odd rows are not 16-byte aligned
//! const   VECTORS = classes / WIDTH
//! const   HELD = min(ceil_div(VECTORS, WARPS * 32), 16)                # vectors of the row in a thread's registers
//! launch  cross_entropy<<<rows, WARPS * 32>>>(logits, labels, losses, 1.0 / classes, smoothing)
#include <cuda_bf16.h>

constexpr int THREADS = WARPS * 32, WORDS = WIDTH == 8 ? 4 : 1;
struct Vector { unsigned at[WORDS]; };   // pairs of logits; with WIDTH 1 one logit twice

__device__ __forceinline__ Vector load(const __nv_bfloat16* row, long long place) {
  Vector v;
  if constexpr (WIDTH == 8) {
    const uint4 u = reinterpret_cast<const uint4*>(row)[place];
    v.at[0] = u.x;
    v.at[1] = u.y;
    v.at[2] = u.z;
    v.at[3] = u.w;
  } else {
    v.at[0] = reinterpret_cast<const unsigned short*>(row)[place] * 0x10001u;
  }
  return v;
}

__device__ __forceinline__ unsigned larger(unsigned a, unsigned b) {
  unsigned r;
  asm("max.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}

__device__ __forceinline__ float power(float e) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(e));
  return r;
}

__global__ void __launch_bounds__(THREADS, RESIDENT) cross_entropy(const __nv_bfloat16* __restrict__ logits,
    const long long* __restrict__ labels, float* __restrict__ losses, float inverse_classes, float smoothing) {
  __shared__ __align__(16) float maxima[WARPS];
  __shared__ float powers[WARPS], exponents[WARPS];
  constexpr float LOG2E = 1.4426950408889634f, LN2 = 0.6931471805599453f;
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const __nv_bfloat16* row = logits + blockIdx.x * ((long long)VECTORS * WIDTH);
  long long label = 0;
  if (thread == 0) label = labels[blockIdx.x];

  Vector held[HELD];
#pragma unroll
  for (int k = 0; k < HELD; ++k)   // all loads first
    if ((k + 1) * THREADS <= VECTORS || k * THREADS + thread < VECTORS) held[k] = load(row, k * THREADS + thread);
  float target = 0.0f;
  if (thread == 0) target = __bfloat162float(row[label]);

  unsigned most = 0xff80ff80u;   // -inf twice
#pragma unroll
  for (int k = 0; k < HELD; ++k) {
    if ((k + 1) * THREADS <= VECTORS || k * THREADS + thread < VECTORS) {
#pragma unroll
      for (int w = 0; w < WORDS; ++w) most = larger(most, held[k].at[w]);
    }
  }
  for (long long p = HELD * THREADS + thread; p < VECTORS; p += THREADS) {   // only rows too long for registers
    const Vector v = load(row, p);
#pragma unroll
    for (int w = 0; w < WORDS; ++w) most = larger(most, v.at[w]);
  }
  float maximum = fmaxf(__uint_as_float(most << 16), __uint_as_float(most & 0xffff0000u));
#pragma unroll
  for (int offset = 16; offset; offset /= 2) maximum = fmaxf(maximum, __shfl_xor_sync(~0u, maximum, offset));
  if (lane == 0) maxima[warp] = maximum;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < WARPS; w += 4) {
    const float4 m = *reinterpret_cast<const float4*>(maxima + w);
    maximum = fmaxf(fmaxf(fmaxf(maximum, m.x), m.y), fmaxf(m.z, m.w));
  }

  // Every exponent e = x log2(e) - shift has the same error of shift, which cancels in the loss: log2(sum 2^e) - e.
  const float shift = maximum * LOG2E;
  float power_low = 0.0f, power_high = 0.0f, exponent_low = 0.0f, exponent_high = 0.0f;
  auto add = [&](const Vector& v) {
#pragma unroll
    for (int w = 0; w < WORDS; ++w) {
      const float high = fmaf(__uint_as_float(v.at[w] & 0xffff0000u), LOG2E, -shift);
      exponent_high += high;
      power_high += power(high);
      if constexpr (WIDTH > 1) {
        const float low = fmaf(__uint_as_float(v.at[w] << 16), LOG2E, -shift);
        exponent_low += low;
        power_low += power(low);
      }
    }
  };
#pragma unroll
  for (int k = 0; k < HELD; ++k)
    if ((k + 1) * THREADS <= VECTORS || k * THREADS + thread < VECTORS) add(held[k]);
  for (long long p = HELD * THREADS + thread; p < VECTORS; p += THREADS) add(load(row, p));

  float sum = power_low + power_high, total = exponent_low + exponent_high;
#pragma unroll
  for (int offset = 16; offset; offset /= 2) {
    sum += __shfl_xor_sync(~0u, sum, offset);
    total += __shfl_xor_sync(~0u, total, offset);
  }
  if (lane == 0) {
    powers[warp] = sum;
    exponents[warp] = total;
  }
  __syncthreads();
  if (warp == 0) {
    sum = lane < WARPS ? powers[lane] : 0.0f;
    total = lane < WARPS ? exponents[lane] : 0.0f;
#pragma unroll
    for (int offset = 16; offset; offset /= 2) {
      sum += __shfl_xor_sync(~0u, sum, offset);
      total += __shfl_xor_sync(~0u, total, offset);
    }
    if (lane == 0) {
      const float e = fmaf(target, LOG2E, -shift);
      losses[blockIdx.x] = LN2 * (log2f(sum) - smoothing * (total * inverse_classes) - (1.0f - smoothing) * e);
    }
  }
}
