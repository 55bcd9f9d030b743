//! op      cross_entropy(logits, labels, smoothing: float = 0.1) -> losses
//! out     losses: f32[labels.shape]
//! let     rows = logits.shape[0], classes = logits.shape[1]
//! need    logits.ndim == 2 and logits.dtype == bf16 and labels.dtype == i64 and labels.shape == [rows] and classes > 0
//! tune    CHUNK = 4 | 2                                                # vectors of a thread between two maxima
//! tune    RING = 2 | 3 | 4                                             # chunks under way
//! tune    RESIDENT = 6 | 4 | 8                                         # blocks per SM the registers must allow
//! const   WARPS = 8                                                    # of a row
//! need    (RING * CHUNK * WARPS * 512 + 1280) * RESIDENT <= device.smem_sm
//! const   WIDTH = 8 if classes % 8 == 0 else 1                         # odd rows are not 16-byte aligned
//! const   VECTORS = classes / WIDTH
//! const   CHUNKS = ceil_div(VECTORS, WARPS * 32 * CHUNK)
//! launch  cross_entropy<<<rows, WARPS * 32, RING * CHUNK * WARPS * 512>>>(logits, labels, losses, 1.0 / classes, smoothing)
#include <cuda_bf16.h>

constexpr int THREADS = WARPS * 32, WORDS = WIDTH == 8 ? 4 : 1, UNROLL = CHUNKS <= 16 ? CHUNKS : 1;
struct Vector { unsigned at[WORDS]; };   // pairs of logits; with WIDTH 1 one logit twice

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

// Exponents are x * log2(e) - shift. Finite, so that places without a logit and logits of -inf give 0.
__device__ __forceinline__ float shift_of(float maximum) { return fmaxf(maximum * 1.4426950408889634f, -3e38f); }

// Adds the eight logits of every lane: lanes are rows of a, b is ones, so each sum of a row stands in all columns.
__device__ __forceinline__ void add_logits(float (&rows)[4], const Vector& v) {
  if constexpr (WIDTH == 8)
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %8}, {%0, %1, %2, %3};"
        : "+f"(rows[0]), "+f"(rows[1]), "+f"(rows[2]), "+f"(rows[3])
        : "r"(v.at[0]), "r"(v.at[1 % WORDS]), "r"(v.at[2 % WORDS]), "r"(v.at[3 % WORDS]), "r"(0x3f803f80u));
}

__global__ void __launch_bounds__(THREADS, RESIDENT) cross_entropy(const __nv_bfloat16* __restrict__ logits,
    const long long* __restrict__ labels, float* __restrict__ losses, float inverse_classes, float smoothing) {
  extern __shared__ __align__(16) uint4 ring[];
  __shared__ float maxima[WARPS], powers[WARPS], totals[WARPS];   // of the warps: maximum, sum of 2^exponent, sum of x
  constexpr float LOG2E = 1.4426950408889634f;
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const __nv_bfloat16* row = logits + blockIdx.x * ((long long)VECTORS * WIDTH);
  long long label = 0;
  if (thread == 0) label = labels[blockIdx.x];

  const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(ring + thread));
  auto inside = [&](int k) { return (k + 1ll) * THREADS <= VECTORS || (long long)k * THREADS + thread < VECTORS; };
  auto issue = [&](int chunk) {   // a thread reads only what it copied itself: no barriers
    if constexpr (WIDTH == 8) {
#pragma unroll
      for (int i = 0; i < CHUNK; ++i) {
        const int k = chunk * CHUNK + i;
        if (chunk < CHUNKS && inside(k))
          asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to + (chunk % RING * CHUNK + i) * (THREADS * 16)),
                       "l"(row + ((long long)k * THREADS + thread) * WIDTH) : "memory");
      }
      asm volatile("cp.async.commit_group;" ::: "memory");
    }
  };
#pragma unroll
  for (int r = 0; r < RING; ++r) issue(r);
  float target = 0.0f;
  if (thread == 0) target = __bfloat162float(row[label]);

  unsigned most = 0xff80ff80u;   // -inf twice
  float shift = -3e38f, power_low = 0.0f, power_high = 0.0f, total = 0.0f;
  float matrix_rows[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll UNROLL
  for (int chunk = 0; chunk < CHUNKS; ++chunk) {
    if constexpr (WIDTH == 8) asm volatile("cp.async.wait_group %0;" :: "n"(RING - 1) : "memory");
    Vector v[CHUNK];
#pragma unroll
    for (int i = 0; i < CHUNK; ++i) {
      const int k = chunk * CHUNK + i;
      v[i] = Vector{};
      if (inside(k)) {
        if constexpr (WIDTH == 8) {
          const uint4 u = ring[(chunk % RING * CHUNK + i) * THREADS + thread];
          v[i].at[0] = u.x;
          v[i].at[1 % WORDS] = u.y;
          v[i].at[2 % WORDS] = u.z;
          v[i].at[3 % WORDS] = u.w;
        } else {
          v[i].at[0] = reinterpret_cast<const unsigned short*>(row)[(long long)k * THREADS + thread] * 0x10001u;
        }
#pragma unroll
        for (int w = 0; w < WORDS; ++w) most = larger(most, v[i].at[w]);
      }
    }
    issue(chunk + RING);
    const float old = shift;
    shift = shift_of(fmaxf(__uint_as_float(most << 16), __uint_as_float(most & 0xffff0000u)));
    const float rescale = power(old - shift);
    power_low *= rescale;
    power_high *= rescale;
#pragma unroll
    for (int i = 0; i < CHUNK; ++i) {
      if (inside(chunk * CHUNK + i)) {
#pragma unroll
        for (int w = 0; w < WORDS; ++w) {
          power_high += power(fmaf(__uint_as_float(v[i].at[w] & 0xffff0000u), LOG2E, -shift));
          if constexpr (WIDTH > 1) power_low += power(fmaf(__uint_as_float(v[i].at[w] << 16), LOG2E, -shift));
        }
      }
      if constexpr (WIDTH == 8) add_logits(matrix_rows, v[i]);   // zeros beyond the row
      else total += __uint_as_float(v[i].at[0] & 0xffff0000u);
    }
  }
  if (lane % 4 == 0) total += matrix_rows[0] + matrix_rows[2];   // four lanes share a row

  float maximum = fmaxf(__uint_as_float(most << 16), __uint_as_float(most & 0xffff0000u));
#pragma unroll
  for (int offset = 16; offset; offset /= 2) maximum = fmaxf(maximum, __shfl_xor_sync(~0u, maximum, offset));
  float sum = (power_low + power_high) * power(shift - shift_of(maximum));
#pragma unroll
  for (int offset = 16; offset; offset /= 2) {
    sum += __shfl_xor_sync(~0u, sum, offset);
    total += __shfl_xor_sync(~0u, total, offset);
  }
  if (lane == 0) {
    maxima[warp] = maximum;
    powers[warp] = sum;
    totals[warp] = total;
  }
  __syncthreads();
  if (warp == 0) {
    const float own = lane < WARPS ? maxima[lane] : -INFINITY;
    maximum = own;
    sum = lane < WARPS ? powers[lane] : 0.0f;
    total = lane < WARPS ? totals[lane] : 0.0f;
#pragma unroll
    for (int offset = 16; offset; offset /= 2) maximum = fmaxf(maximum, __shfl_xor_sync(~0u, maximum, offset));
    shift = shift_of(maximum);
    sum *= power(shift_of(own) - shift);
#pragma unroll
    for (int offset = 16; offset; offset /= 2) {
      sum += __shfl_xor_sync(~0u, sum, offset);
      total += __shfl_xor_sync(~0u, total, offset);
    }
    if (lane == 0) {
      // The maximum's own term is not quite 1, since shift was rounded; all terms have that factor.
      const float log_sum = logf(sum / power(fmaf(maximum, LOG2E, -shift)));
      losses[blockIdx.x] = log_sum + smoothing * (maximum - total * inverse_classes) + (1.0f - smoothing) * (maximum - target);
    }
  }
}
