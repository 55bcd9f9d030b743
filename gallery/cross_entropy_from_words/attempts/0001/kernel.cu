//! op      cross_entropy_smoothed(logits, labels, label_smoothing: float = 0.1) -> losses
//! out     losses: f32[labels.shape]
//! need    logits.dtype == bf16 and labels.dtype == i64 and logits.ndim == 2 and labels.ndim == 1
//! need    labels.shape[0] == logits.shape[0]
//! let     rows = logits.shape[0], classes = logits.shape[1]
//! tune    THREADS = 512 | 256 | 1024
//! tune    UNROLL = 4 | 8                    # vectors of a thread in flight
//! tune    RESIDENT = 1536 | 1024 | 2048     # threads per SM that the registers must allow
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
constexpr unsigned LOWEST = 0xff80ff80u;        // two bf16 of -infinity
constexpr float LOG2E = 1.4426950408889634f;

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

// What a sum relative to `from` is multiplied by to be relative to `to`; nothing was summed yet at -infinity.
__device__ __forceinline__ float rescale(float from, float to) { return from == -INFINITY ? 0.f : exp_of(from - to); }

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
    const unsigned v = *reinterpret_cast<const unsigned short*>(p);
    w[0] = v | (v << 16);                       // only the high half is summed
  }
}

struct State {
  float top = -INFINITY;
  float exps[2] = {0.f, 0.f};
  float sum[2] = {0.f, 0.f};
};

template <int LIMIT>
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
      for (int j = 0; j < WORDS; ++j) w[k][j] = LOWEST;
    }
  }
  unsigned pair = LOWEST;
#pragma unroll
  for (int k = 0; k < UNROLL; ++k) {
    if (k * THREADS >= LIMIT) continue;
#pragma unroll
    for (int j = 0; j < WORDS; ++j) pair = max_pair(pair, w[k][j]);
  }
  const float top = fmaxf(state.top, fmaxf(low_of(pair), high_of(pair)));
  const float scale = rescale(state.top, top);
  state.exps[0] *= scale, state.exps[1] *= scale;
  state.top = top;
  const float base = top == -INFINITY ? 0.f : top;
#pragma unroll
  for (int k = 0; k < UNROLL; ++k) {
    if (k * THREADS >= LIMIT) continue;
    if ((k + 1) * THREADS <= LIMIT || me + k * THREADS < LIMIT) {
#pragma unroll
      for (int j = 0; j < WORDS; ++j) {
        const float high = high_of(w[k][j]);
        state.sum[1] += high;
        state.exps[1] += exp_of(high - base);
        if constexpr (WIDTH > 1) {
          const float low = low_of(w[k][j]);
          state.sum[0] += low;
          state.exps[0] += exp_of(low - base);
        }
      }
    }
  }
}

__device__ __forceinline__ void merge_warp(float& top, float& exps, float& sum) {
  const float mine = top;
#pragma unroll
  for (int offset = 16; offset; offset /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, offset));
  exps *= rescale(mine, top);
#pragma unroll
  for (int offset = 16; offset; offset /= 2) {
    exps += __shfl_xor_sync(~0u, exps, offset);
    sum += __shfl_xor_sync(~0u, sum, offset);
  }
}

__global__ void __launch_bounds__(THREADS, RESIDENT / THREADS) row_loss(const __nv_bfloat16* __restrict__ logits,
    const long long* __restrict__ labels, float* __restrict__ losses, float smoothing) {
  __shared__ float tops[WARPS], exps_of[WARPS], sums[WARPS];
  const long long row = blockIdx.x;
  const __nv_bfloat16* p = logits + row * (long long)CLASSES;
  long long label = -1;
  if (threadIdx.x == 0) label = labels[row];

  State state;
#pragma unroll 1
  for (int c = 0; c < FULL; ++c) take<CHUNK>(p + (long long)c * CHUNK * WIDTH, state);
  if constexpr (REST > 0) take<REST>(p + (long long)FULL * CHUNK * WIDTH, state);

  const bool valid = label >= 0 && label < CLASSES;   // in thread 0; others, and an ignored label, have none
  float target = 0.f;
  if (valid) target = __bfloat162float(p[label]);

  float top = state.top, exps = state.exps[0] + state.exps[1], sum = state.sum[0] + state.sum[1];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  merge_warp(top, exps, sum);
  if (lane == 0) tops[warp] = top, exps_of[warp] = exps, sums[warp] = sum;
  __syncthreads();
  if (warp != 0) return;
  top = -INFINITY, exps = 0.f, sum = 0.f;
  if (lane < WARPS) top = tops[lane], exps = exps_of[lane], sum = sums[lane];
  merge_warp(top, exps, sum);
  if (lane == 0) {
    float loss = logf(exps) - (1.f - smoothing) * (target - top);
    if (smoothing != 0.f) loss -= smoothing * (sum / (float)CLASSES - top);
    losses[row] = valid ? loss : 0.f;
  }
}
