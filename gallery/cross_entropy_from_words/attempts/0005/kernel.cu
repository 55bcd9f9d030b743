//! op      cross_entropy(logits, labels, smoothing: float = 0.1) -> losses
//! out     losses: f32[labels.shape]
//! let     rows = logits.shape[0], classes = logits.shape[1]
//! need    logits.ndim == 2 and logits.dtype == bf16 and labels.dtype == i64 and labels.shape == [rows] and classes > 0
//! tune    WARPS = 8 | 12                                               # of a row
//! tune    RESIDENT = 4 | 5                                             # blocks per SM the registers must allow
//! tune    KEEP = 10 | 8 | 6 | 12                                       # vectors per thread in registers, the others in shared memory
//! const   WIDTH = 8 if classes % 8 == 0 else 1                         # odd rows are not 16-byte aligned
//! const   VECTORS = classes / WIDTH
//! let     total = min(ceil_div(VECTORS, WARPS * 32), 16)               # vectors of the row that a thread holds
//! const   KEPT = min(total, KEEP), STAGED = total - min(total, KEEP) if WIDTH == 8 else 0
//! launch  cross_entropy<<<rows, WARPS * 32, STAGED * WARPS * 512>>>(logits, labels, losses, 1.0 / classes, smoothing)
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

// Adds the eight logits of every lane: lanes are rows of a, b is ones, so each sum of a row stands in all columns.
__device__ __forceinline__ void add_logits(float (&rows)[4], const Vector& v) {
  if constexpr (WIDTH == 8)
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %8}, {%0, %1, %2, %3};"
        : "+f"(rows[0]), "+f"(rows[1]), "+f"(rows[2]), "+f"(rows[3])
        : "r"(v.at[0]), "r"(v.at[1 % WORDS]), "r"(v.at[2 % WORDS]), "r"(v.at[3 % WORDS]), "r"(0x3f803f80u));
}

__global__ void __launch_bounds__(THREADS, RESIDENT) cross_entropy(const __nv_bfloat16* __restrict__ logits,
    const long long* __restrict__ labels, float* __restrict__ losses, float inverse_classes, float smoothing) {
  extern __shared__ __align__(16) uint4 staged[];
  __shared__ __align__(16) float maxima[WARPS];
  __shared__ float powers[WARPS], totals[WARPS], target;   // sums of exp(x - maximum) and of x; the label's logit
  constexpr float LOG2E = 1.4426950408889634f;
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const __nv_bfloat16* row = logits + blockIdx.x * ((long long)VECTORS * WIDTH);
  auto inside = [&](int k) { return (k + 1) * THREADS <= VECTORS || k * THREADS + thread < VECTORS; };
  auto from_stage = [&](int k) {   // written and read by the same thread: no barrier
    Vector v{};
    if constexpr (WIDTH == 8) {
      const uint4 u = staged[k * THREADS + thread];
      v.at[0] = u.x;
      v.at[1 % WORDS] = u.y;
      v.at[2 % WORDS] = u.z;
      v.at[3 % WORDS] = u.w;
    }
    return v;
  };
  const long long label = labels[blockIdx.x];

  if constexpr (STAGED > 0) {
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(staged + thread));
#pragma unroll
    for (int k = 0; k < STAGED; ++k)
      if (inside(KEPT + k))
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                     :: "r"(to + k * THREADS * 16), "l"(row + ((KEPT + k) * THREADS + thread) * WIDTH) : "memory");
  }
  Vector held[KEPT];
#pragma unroll
  for (int k = 0; k < KEPT; ++k)   // all loads first; zeros beyond the row
    held[k] = inside(k) ? load(row, k * THREADS + thread) : Vector{};

  unsigned most = 0xff80ff80u;   // -inf twice
  auto compare = [&](const Vector& v) {
#pragma unroll
    for (int w = 0; w < WORDS; ++w) most = larger(most, v.at[w]);
  };
#pragma unroll
  for (int k = 0; k < KEPT; ++k)
    if (inside(k)) compare(held[k]);
  if constexpr (STAGED > 0) {
    asm volatile("cp.async.wait_all;" ::: "memory");
#pragma unroll
    for (int k = 0; k < STAGED; ++k)
      if (inside(KEPT + k)) compare(from_stage(k));
  }
  for (long long p = (KEPT + STAGED) * THREADS + thread; p < VECTORS; p += THREADS) compare(load(row, p));   // longer rows
  const long long place = label / WIDTH;
  if (static_cast<int>(place % THREADS) == thread) {   // this thread has the label's logit
    const int which = static_cast<int>(place / THREADS), part = static_cast<int>(label % WIDTH);
    unsigned word = 0;
    if (which < KEPT) {
#pragma unroll
      for (int k = 0; k < KEPT; ++k) {
#pragma unroll
        for (int w = 0; w < WORDS; ++w)
          if (k == which && w == part / 2) word = held[k].at[w];
      }
    } else if (which < KEPT + STAGED) {
      word = reinterpret_cast<const unsigned*>(staged + (which - KEPT) * THREADS + thread)[part / 2];
    } else {
      word = reinterpret_cast<const unsigned short*>(row)[label] * 0x10001u;
    }
    target = __uint_as_float(part % 2 ? word & 0xffff0000u : word << 16);
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

  const float shift = maximum * LOG2E;
  float power_low = 0.0f, power_high = 0.0f, total = 0.0f;
  auto add = [&](const Vector& v) {
#pragma unroll
    for (int w = 0; w < WORDS; ++w) {
      power_high += power(fmaf(__uint_as_float(v.at[w] & 0xffff0000u), LOG2E, -shift));
      if constexpr (WIDTH > 1) power_low += power(fmaf(__uint_as_float(v.at[w] << 16), LOG2E, -shift));
    }
  };
  auto add_total = [&](const Vector& v) {   // where not all lanes of a warp have a vector, or it is one logit
#pragma unroll
    for (int w = 0; w < WORDS; ++w) {
      total += __uint_as_float(v.at[w] & 0xffff0000u);
      if constexpr (WIDTH > 1) total += __uint_as_float(v.at[w] << 16);
    }
  };
  float matrix_rows[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
  for (int k = 0; k < KEPT; ++k) {
    if (inside(k)) add(held[k]);
    if constexpr (WIDTH == 8) add_logits(matrix_rows, held[k]);
    else add_total(held[k]);
  }
#pragma unroll
  for (int k = 0; k < STAGED; ++k) {
    Vector v{};
    if (inside(KEPT + k)) {
      v = from_stage(k);
      add(v);
    }
    add_logits(matrix_rows, v);
  }
  for (long long p = (KEPT + STAGED) * THREADS + thread; p < VECTORS; p += THREADS) {
    const Vector v = load(row, p);
    add(v);
    add_total(v);
  }
  if (lane % 4 == 0) total += matrix_rows[0] + matrix_rows[2];   // four lanes share a row

  float sum = power_low + power_high;
#pragma unroll
  for (int offset = 16; offset; offset /= 2) {
    sum += __shfl_xor_sync(~0u, sum, offset);
    total += __shfl_xor_sync(~0u, total, offset);
  }
  if (lane == 0) {
    powers[warp] = sum;
    totals[warp] = total;
  }
  __syncthreads();
  if (warp == 0) {
    sum = lane < WARPS ? powers[lane] : 0.0f;
    total = lane < WARPS ? totals[lane] : 0.0f;
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
