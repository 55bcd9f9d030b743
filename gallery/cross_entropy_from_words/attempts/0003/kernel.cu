//! op      cross_entropy_smoothed(logits, labels, label_smoothing: float = 0.1) -> losses
//! out     losses: f32[labels.shape]
//! need    logits.dtype == bf16 and labels.dtype == i64 and logits.ndim == 2 and labels.ndim == 1
//! need    labels.shape[0] == logits.shape[0]
//! let     rows = logits.shape[0], classes = logits.shape[1]
//! let     width = (8 if classes % 8 == 0 else (4 if classes % 4 == 0 else (2 if classes % 2 == 0 else 1)))
//! let     count = classes / width
//! tune    THREADS = 512 | 672 | 640 | 448
//! tune    SUB = 4 | 3 | 8 | 2               # vectors of a thread in registers
//! const   CLASSES = classes, WIDTH = width
//! const   PER = max(1, min(ceil_div(count, THREADS), 4608 / THREADS))   # of a thread in shared memory: 72 KB per block
//! launch  row_loss<<<rows, THREADS, min(count, THREADS * PER) * width * 2>>>(logits, labels, losses, label_smoothing)

#include <cuda_bf16.h>

constexpr int WARPS = THREADS / 32;
constexpr int BLOCKS = THREADS * 3 <= 2048 ? 3 : 2;   // per SM
constexpr int WORDS = WIDTH > 1 ? WIDTH / 2 : 1;
constexpr int COUNT = CLASSES / WIDTH;                // vectors of a row
constexpr int CHUNK = THREADS * PER;                  // vectors the block holds at a time
constexpr int FULL = COUNT / CHUNK;
constexpr int REST = COUNT % CHUNK;
constexpr unsigned LOWEST = 0xff7fff7fu;              // two bf16, the lowest finite one
constexpr float BOTTOM = -3.3895313892515355e38f;     // the same: finite, so that no difference is NaN where nothing was summed
constexpr unsigned ONES = 0x3f803f80u;                // two bf16 of 1
constexpr float LOG2E = 1.4426950408889634f;

constexpr int half_of_power(int n) {
  int p = 1;
  while (p < n) p *= 2;
  return p / 2;
}

__device__ __forceinline__ float low_of(unsigned w) { return __uint_as_float(w << 16); }
__device__ __forceinline__ float high_of(unsigned w) { return __uint_as_float(w & 0xffff0000u); }

__device__ __forceinline__ unsigned max_pair(unsigned a, unsigned b) {
  unsigned r;
  asm("max.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}

__device__ __forceinline__ float exp_of(float d) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(d * LOG2E));
  return r;
}

template <int N>
__device__ __forceinline__ void fetch(__nv_bfloat16* to, const __nv_bfloat16* __restrict__ from) {
  if constexpr (N == 1) {
    *to = *from;
  } else {
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(to));
    if constexpr (N == 8) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
    if constexpr (N == 4) asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(at), "l"(from) : "memory");
    if constexpr (N == 2) asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(from) : "memory");
  }
}

template <int N>
__device__ __forceinline__ void load(const __nv_bfloat16* p, unsigned* w) {
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

struct State {
  float top = BOTTOM;
  float exps[2] = {0.f, 0.f};
  float acc[4] = {0.f, 0.f, 0.f, 0.f};
};

// A thread reads back only what it fetched itself, so no barrier is needed here.
template <int LIMIT>
__device__ __forceinline__ void take(const __nv_bfloat16* __restrict__ p, __nv_bfloat16* held, State& state) {
  const int me = threadIdx.x;
#pragma unroll
  for (int k = 0; k < PER; ++k) {
    const int i = (me + k * THREADS) * WIDTH;
    if ((k + 1) * THREADS <= LIMIT || me + k * THREADS < LIMIT) fetch<WIDTH>(held + i, p + i);
  }
  asm volatile("cp.async.commit_group;" ::: "memory");
  asm volatile("cp.async.wait_group 0;" ::: "memory");

#pragma unroll
  for (int first = 0; first < PER; first += SUB) {
    if (first * THREADS >= LIMIT) continue;
    unsigned w[SUB][WORDS];
    unsigned pair = LOWEST;
#pragma unroll
    for (int s = 0; s < SUB; ++s) {
      const int k = first + s;
      if (k * THREADS >= LIMIT) continue;
      if ((k + 1) * THREADS <= LIMIT || me + k * THREADS < LIMIT) {
        load<WIDTH>(held + (me + k * THREADS) * WIDTH, w[s]);
#pragma unroll
        for (int j = 0; j < WORDS; ++j) pair = max_pair(pair, w[s][j]);
      } else {
#pragma unroll
        for (int j = 0; j < WORDS; ++j) w[s][j] = 0;
      }
    }
    float top = fmaxf(state.top, high_of(pair));
    if constexpr (WIDTH > 1) top = fmaxf(top, low_of(pair));
    const float scale = exp_of(state.top - top);
    state.exps[0] *= scale, state.exps[1] *= scale;
    state.top = top;
#pragma unroll
    for (int s = 0; s < SUB; ++s) {
      const int k = first + s;
      if (k * THREADS >= LIMIT) continue;
      add_rows<WORDS>(state.acc, w[s]);
      if ((k + 1) * THREADS <= LIMIT || me + k * THREADS < LIMIT) {
#pragma unroll
        for (int j = 0; j < WORDS; ++j) {
          state.exps[1] += exp_of(high_of(w[s][j]) - top);
          if constexpr (WIDTH > 1) state.exps[0] += exp_of(low_of(w[s][j]) - top);
        }
      }
    }
  }
}

// Over lanes at most 2 * FROM - 1 apart; sums differ only between lanes SUM_TO or more apart.
template <int FROM, int SUM_TO>
__device__ __forceinline__ void merge_warp(float& top, float& exps, float& sum) {
  const float mine = top;
#pragma unroll
  for (int offset = FROM; offset; offset /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, offset));
  exps *= exp_of(mine - top);
#pragma unroll
  for (int offset = FROM; offset; offset /= 2) exps += __shfl_xor_sync(~0u, exps, offset);
#pragma unroll
  for (int offset = FROM; offset >= SUM_TO; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
}

__global__ void __launch_bounds__(THREADS, BLOCKS) row_loss(const __nv_bfloat16* __restrict__ logits,
    const long long* __restrict__ labels, float* __restrict__ losses, float smoothing) {
  extern __shared__ uint4 space[];
  __shared__ float tops[WARPS], exps_of[WARPS], sums[WARPS];
  __nv_bfloat16* held = reinterpret_cast<__nv_bfloat16*>(space);
  const long long row = blockIdx.x;
  const __nv_bfloat16* p = logits + row * (long long)CLASSES;
  long long label = -1;
  if (threadIdx.x == 0) label = labels[row];

  State state;
#pragma unroll 1
  for (int c = 0; c < FULL; ++c) take<CHUNK>(p + (long long)c * CHUNK * WIDTH, held, state);
  if constexpr (REST > 0) take<REST>(p + (long long)FULL * CHUNK * WIDTH, held, state);

  float top = state.top, exps = state.exps[0] + state.exps[1], sum = state.acc[0] + state.acc[2];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  merge_warp<16, 4>(top, exps, sum);
  if (lane == 0) tops[warp] = top, exps_of[warp] = exps, sums[warp] = sum;
  __syncthreads();
  if (warp != 0) return;
  top = BOTTOM, exps = 0.f, sum = 0.f;
  if (lane < WARPS) top = tops[lane], exps = exps_of[lane], sum = sums[lane];
  merge_warp<half_of_power(WARPS), 1>(top, exps, sum);
  if (lane == 0) {
    float loss = 0.f;                                 // of an ignored label
    if (label >= 0 && label < CLASSES) {
      const float target = __bfloat162float(COUNT <= CHUNK ? held[label] : p[label]);
      loss = logf(exps) - (1.f - smoothing) * (target - top);
      if (smoothing != 0.f) loss -= smoothing * (sum / (float)CLASSES - top);
    }
    losses[row] = loss;
  }
}
