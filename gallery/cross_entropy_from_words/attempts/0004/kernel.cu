//! op      cross_entropy_smoothed(logits, labels, label_smoothing: float = 0.1) -> losses
//! out     losses: f32[labels.shape]
//! need    logits.dtype == bf16 and labels.dtype == i64 and logits.ndim == 2 and labels.ndim == 1
//! need    labels.shape[0] == logits.shape[0]
//! let     rows = logits.shape[0], classes = logits.shape[1]
//! tune    THREADS = 448 | 512 | 256
//! tune    UNROLL = 9 | 8 | 4                # vectors of a thread in flight
//! tune    RESIDENT = 1536 | 1024 | 2048     # threads per SM that the registers must allow
//! need    (THREADS == 448 and UNROLL == 9) or (THREADS != 448 and UNROLL != 9)
//! const   CLASSES = classes
//! const   WIDTH = (8 if classes % 8 == 0 else (4 if classes % 4 == 0 else (2 if classes % 2 == 0 else 1)))
//! launch  row_loss<<<rows, THREADS>>>(logits, labels, losses, label_smoothing)

#include <cuda_bf16.h>

constexpr int WARPS = THREADS / 32;
constexpr int WORDS = WIDTH > 1 ? WIDTH / 2 : 1;
constexpr int COUNT = CLASSES / WIDTH;          // vectors of a row
constexpr int CHUNK = THREADS * UNROLL;         // vectors the block holds at a time
constexpr int FULL = COUNT / CHUNK;
constexpr int REST = COUNT % CHUNK;
constexpr unsigned LOWEST = 0xfe96fe96u;        // two bf16 of about -1e38: finite also times LOG2E
constexpr float BOTTOM = -1.4e38f;              // about LOWEST times LOG2E: where nothing was summed
constexpr unsigned ONES = 0x3f803f80u;          // two bf16 of 1
constexpr float LOG2E = 1.4426950408889634f;
constexpr float LN2 = 0.6931471805599453f;

__device__ __forceinline__ float low_of(unsigned w) { return __uint_as_float(w << 16); }
__device__ __forceinline__ float high_of(unsigned w) { return __uint_as_float(w & 0xffff0000u); }

__device__ __forceinline__ unsigned max_pair(unsigned a, unsigned b) {
  unsigned r;
  asm("max.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}

__device__ __forceinline__ float power_of_2(float t) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(t));
  return r;
}

template <int N>
__device__ __forceinline__ void load(const __nv_bfloat16* __restrict__ p, unsigned* w) {
  if constexpr (N == 8) {
    const uint4 v = *reinterpret_cast<const uint4*>(p);
    w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
  } else if constexpr (N == 4) {
    const uint2 v = *reinterpret_cast<const uint2*>(p);
    w[0] = v.x, w[1] = v.y;
  } else if constexpr (N == 2) {
    w[0] = *reinterpret_cast<const unsigned*>(p);
  } else {
    w[0] = (unsigned)*reinterpret_cast<const unsigned short*>(p) << 16;   // the low half counts as 0 in sums
  }
}

// Times a matrix of ones: acc[0] and acc[2] gain the sums of two rows of the warp's 16 x 16 values,
// the same in the four lanes of a quad.
template <int N>
__device__ __forceinline__ void add_rows(float (&acc)[4], const unsigned* w) {
  unsigned a1 = 0, a2 = 0, a3 = 0;
  if constexpr (N >= 2) a1 = w[1];
  if constexpr (N >= 4) a2 = w[2], a3 = w[3];
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
      : "r"(w[0]), "r"(a1), "r"(a2), "r"(a3), "r"(ONES), "r"(ONES));
}

// exps is the sum of 2^(x * LOG2E - top), where top is the greatest x * LOG2E, rounded once: that each
// term is off by the same factor is put right at the end.
struct State {
  float top = BOTTOM;
  float exps[2] = {0.f, 0.f};
  float sum = 0.f;
};

template <int LIMIT, bool ONLY>
__device__ __forceinline__ void take(const __nv_bfloat16* __restrict__ p, State& state) {
  const int me = threadIdx.x;
  unsigned w[UNROLL][WORDS];
#pragma unroll
  for (int k = 0; k < UNROLL; ++k) {
    if (k * THREADS >= LIMIT) continue;
    if ((k + 1) * THREADS <= LIMIT || me + k * THREADS < LIMIT) {
      load<WIDTH>(p + (me + k * THREADS) * WIDTH, w[k]);
    } else {
#pragma unroll
      for (int j = 0; j < WORDS; ++j) w[k][j] = 0;
    }
  }

  float acc[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
  for (int k = 0; k < UNROLL; ++k) {
    if (k * THREADS >= LIMIT) continue;
    add_rows<WORDS>(acc, w[k]);
  }
  state.sum += acc[0] + acc[2];

  unsigned pair = LOWEST;
#pragma unroll
  for (int k = 0; k < UNROLL; ++k) {
    if (k * THREADS >= LIMIT) continue;
    if ((k + 1) * THREADS <= LIMIT || me + k * THREADS < LIMIT) {
#pragma unroll
      for (int j = 0; j < WORDS; ++j) pair = max_pair(pair, w[k][j]);
    }
  }
  float top = high_of(pair);
  if constexpr (WIDTH > 1) top = fmaxf(top, low_of(pair));
  top = __fmul_rn(top, LOG2E);
  if constexpr (!ONLY) {
    top = fmaxf(top, state.top);
    const float scale = power_of_2(state.top - top);
    state.exps[0] *= scale, state.exps[1] *= scale;
  }
  state.top = top;

#pragma unroll
  for (int k = 0; k < UNROLL; ++k) {
    if (k * THREADS >= LIMIT) continue;
    if ((k + 1) * THREADS <= LIMIT || me + k * THREADS < LIMIT) {
#pragma unroll
      for (int j = 0; j < WORDS; ++j) {
        state.exps[1] += power_of_2(__fmaf_rn(high_of(w[k][j]), LOG2E, -top));
        if constexpr (WIDTH > 1) state.exps[0] += power_of_2(__fmaf_rn(low_of(w[k][j]), LOG2E, -top));
      }
    }
  }
}

// Sums differ only between lanes SUM_TO or more apart.
template <int SUM_TO>
__device__ __forceinline__ void merge_warp(float& top, float& exps, float& sum) {
  const float mine = top;
#pragma unroll
  for (int offset = 16; offset; offset /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, offset));
  exps *= power_of_2(mine - top);
#pragma unroll
  for (int offset = 16; offset; offset /= 2) exps += __shfl_xor_sync(~0u, exps, offset);
#pragma unroll
  for (int offset = 16; offset >= SUM_TO; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
}

__global__ void __launch_bounds__(THREADS, RESIDENT / THREADS) row_loss(const __nv_bfloat16* __restrict__ logits,
    const long long* __restrict__ labels, float* __restrict__ losses, float smoothing) {
  __shared__ float4 parts[WARPS];
  const long long row = blockIdx.x;
  const __nv_bfloat16* p = logits + row * (long long)CLASSES;
  int label = -1;
  if (threadIdx.x == 0) label = (int)labels[row];

  State state;
#pragma unroll 1
  for (int c = 0; c < FULL; ++c) take<CHUNK, false>(p + (long long)c * CHUNK * WIDTH, state);
  if constexpr (REST > 0) take<REST, FULL == 0>(p + (long long)FULL * CHUNK * WIDTH, state);

  const bool valid = label >= 0 && label < CLASSES;   // in thread 0; others, and an ignored label, have none
  float target = 0.f;
  if (valid) target = __bfloat162float(p[label]);

  float top = state.top, exps = state.exps[0] + state.exps[1], sum = state.sum;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  merge_warp<4>(top, exps, sum);
  if (lane == 0) parts[warp] = make_float4(top, exps, sum, 0.f);
  __syncthreads();
  if (warp != 0) return;
  top = BOTTOM, exps = 0.f, sum = 0.f;
  if (lane < WARPS) {
    const float4 part = parts[lane];
    top = part.x, exps = part.y, sum = part.z;
  }
  merge_warp<1>(top, exps, sum);
  if (lane == 0) {
    // The greatest logit is the only bf16 near top * LN2; `off` is what rounding took from its product, exactly.
    const float greatest = __bfloat162float(__float2bfloat16_rn(top * LN2));
    const float off = __fmaf_rn(greatest, LOG2E, -top);
    const float log_sum = CLASSES == 1 ? 0.f : logf(exps) - off * LN2;
    float loss = log_sum - (1.f - smoothing) * (target - greatest);
    if (smoothing != 0.f) loss -= smoothing * (sum * (1.f / CLASSES) - greatest);
    losses[row] = valid ? loss : 0.f;
  }
}
