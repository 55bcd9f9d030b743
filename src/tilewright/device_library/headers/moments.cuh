// Mean and variance without cancellation: counts, means and sums of squares about them.
#pragma once

namespace tw {

// What is known of some values: how many, their mean, the sum of squared differences from it.
// cost: three registers
// arch: sm_80
struct Moments {
  float count, mean, squares;
};

// The moments of N values in registers: their mean first, then the squares about it.
// cost: about 3 N instructions
// arch: sm_80
template <int N> __device__ __forceinline__ Moments moments_of(const float (&values)[N]) {
  float mean = 0.f, squares = 0.f;
#pragma unroll
  for (int i = 0; i < N; ++i) mean += values[i];
  mean *= 1.f / N;
#pragma unroll
  for (int i = 0; i < N; ++i) squares += (values[i] - mean) * (values[i] - mean);
  return {float(N), mean, squares};
}

// One more value (Welford's step).
// cost: one division and four instructions
// arch: sm_80
__device__ __forceinline__ Moments moments_add(Moments m, float value) {
  const float count = m.count + 1.f, off = value - m.mean, mean = m.mean + off / count;
  return {count, mean, m.squares + off * (value - mean)};
}

// The operator that joins the moments of two sets of values (Chan's formula); either may be empty.
// cost: one division and about eight instructions
// arch: sm_80
struct JoinMoments {
  __device__ __forceinline__ Moments operator()(Moments a, Moments b) const {
    const float count = a.count + b.count, share = count > 0.f ? __fdividef(b.count, count) : 0.f, off = b.mean - a.mean;
    return {count, a.mean + off * share, a.squares + b.squares + off * off * a.count * share};
  }
};

}  // namespace tw
