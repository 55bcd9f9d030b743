// Mean and variance of rows in two ways, and the logarithm of the sum of exponentials.
//! op      statistics(x) -> mean, variance, same_variance, lse
//! need    device.cc >= 80 and x.dtype == f32 and x.ndim == 2
//! let     rows = x.shape[0], columns = x.shape[1]
//! out     mean: f32[rows]
//! out     variance: f32[rows]
//! out     same_variance: f32[rows]
//! out     lse: f32[rows]
//! launch  statistics<<<rows, 64>>>(x, mean, variance, same_variance, lse, columns)
#include <tilewright/moments.cuh>
#include <tilewright/online_softmax.cuh>
#include <tilewright/reduce.cuh>

__global__ void statistics(const float* x, float* mean, float* variance, float* same_variance, float* lse, int columns) {
  __shared__ tw::Moments partial[2], partial_again[2];
  __shared__ tw::SoftmaxState partial_softmax[2];
  const float* row = x + blockIdx.x * (long long)columns;
  tw::Moments of_vectors = {}, one_by_one = {};
  tw::SoftmaxState state = {-INFINITY, 0.f};
  for (int first = threadIdx.x * 4; first < columns; first += 256) {
    if (first + 4 <= columns) {
      const float values[4] = {row[first], row[first + 1], row[first + 2], row[first + 3]};
      of_vectors = tw::JoinMoments{}(of_vectors, tw::moments_of(values));
      state = tw::softmax_add(state, values);
    } else {
      for (int i = first; i < columns; ++i) {
        const float value[1] = {row[i]};
        of_vectors = tw::moments_add(of_vectors, row[i]);
        state = tw::softmax_add(state, value);
      }
    }
    for (int i = first; i < min(first + 4, columns); ++i) one_by_one = tw::moments_add(one_by_one, row[i]);
  }
  of_vectors = tw::team_reduce<64>(of_vectors, tw::JoinMoments{}, partial);
  one_by_one = tw::team_reduce<64>(one_by_one, tw::JoinMoments{}, partial_again);
  state = tw::team_reduce<64>(state, tw::JoinSoftmax{}, partial_softmax);
  if (threadIdx.x != 0) return;
  mean[blockIdx.x] = of_vectors.mean;
  variance[blockIdx.x] = of_vectors.squares / of_vectors.count;
  same_variance[blockIdx.x] = one_by_one.squares / one_by_one.count;
  lse[blockIdx.x] = state.largest + logf(state.sum);
}
