// The state of a softmax that is computed in one pass: the largest value so far and the sum of exponentials about it.
#pragma once

namespace tw {

// The largest value, and the sum of exp(value - largest). {-INFINITY, 0} is that of no value.
// cost: two registers
// arch: sm_80
struct SoftmaxState {
  float largest, sum;
};

// exp(x - largest), 0 where both are -inf (a row that is masked so far).
// cost: three instructions
// arch: sm_80
__device__ __forceinline__ float softmax_term(float x, float largest) {
  return exp2f((x - (largest == -INFINITY ? 0.f : largest)) * 1.4426950408889634f);
}

// The state after N more values: one change of the largest for all of them.
// cost: N + 1 exponentials
// arch: sm_80
template <int N> __device__ __forceinline__ SoftmaxState softmax_add(SoftmaxState state, const float (&values)[N]) {
  float largest = state.largest;
#pragma unroll
  for (int i = 0; i < N; ++i) largest = (values[i] != values[i] || values[i] > largest) ? values[i] : largest;
  float sum = state.sum * softmax_term(state.largest, largest);
#pragma unroll
  for (int i = 0; i < N; ++i) sum += softmax_term(values[i], largest);
  return {largest, sum};
}

// The operator that joins two states.
// cost: two exponentials
// arch: sm_80
struct JoinSoftmax {
  __device__ __forceinline__ SoftmaxState operator()(SoftmaxState a, SoftmaxState b) const {
    const float largest = (a.largest != a.largest || a.largest > b.largest) ? a.largest : b.largest;
    return {largest, a.sum * softmax_term(a.largest, largest) + b.sum * softmax_term(b.largest, largest)};
  }
};

}  // namespace tw
