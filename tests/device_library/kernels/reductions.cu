// Rows by teams of LANES threads: sum, largest, smallest, where they are, and a pair at once.
//! op      reductions(x) -> total, largest, smallest, where_largest, where_smallest
//! need    device.cc >= 80 and x.dtype == f32 and x.ndim == 2
//! let     rows = x.shape[0], columns = x.shape[1]
//! out     total: f32[rows]
//! out     largest: f32[rows]
//! out     smallest: f32[rows]
//! out     where_largest: i64[rows]
//! out     where_smallest: i64[rows]
//! tune    LANES = 64 | 8 | 32 | 128
//! const   THREADS = 128
//! launch  reductions<<<ceil_div(rows, THREADS / LANES), THREADS>>>(x, total, largest, smallest, where_largest, where_smallest, rows, columns)
#include <tilewright/reduce.cuh>

__global__ void __launch_bounds__(THREADS) reductions(const float* x, float* total, float* largest, float* smallest, long long* where_largest,
                                                      long long* where_smallest, long long rows, long long columns) {
  using Both = tw::Pair<float, float>;
  using Where = tw::Indexed<float>;
  __shared__ float of_sum[THREADS / 32];
  __shared__ Both of_pair[THREADS / 32];
  __shared__ Where of_most[THREADS / 32], of_least[THREADS / 32];
  const int lane = threadIdx.x % LANES;
  const long long row = blockIdx.x * (long long)(THREADS / LANES) + threadIdx.x / LANES;
  const float* from = x + min(row, rows - 1) * columns;
  float sum = 0.f;
  Both both = {-INFINITY, INFINITY};
  Where most = {-INFINITY, columns}, least = {INFINITY, columns};
  for (long long i = lane; i < columns; i += LANES) {
    sum += from[i];
    both = tw::PairOf<tw::Max, tw::Min>{}(both, {from[i], from[i]});
    most = tw::ArgMax{}(most, {from[i], i});
    least = tw::ArgMin{}(least, {from[i], i});
  }
  sum = tw::team_reduce<LANES>(sum, tw::Sum{}, of_sum);
  both = tw::team_reduce<LANES>(both, tw::PairOf<tw::Max, tw::Min>{}, of_pair);
  most = tw::team_reduce<LANES>(most, tw::ArgMax{}, of_most);
  least = tw::team_reduce<LANES>(least, tw::ArgMin{}, of_least);
  if (lane == 0 && row < rows) {
    total[row] = sum, largest[row] = both.first, smallest[row] = both.second;
    where_largest[row] = most.index, where_smallest[row] = least.index;
  }
}
