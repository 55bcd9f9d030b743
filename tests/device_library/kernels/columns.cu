// Sums, largest elements and their places over the rows of a matrix, by LANES threads a column that lie 32 apart.
//! op      columns(x) -> total, where_largest
//! need    device.cc >= 80 and x.dtype == f32 and x.ndim == 2
//! let     rows = x.shape[0], columns = x.shape[1]
//! out     total: f32[columns]
//! out     where_largest: i64[columns]
//! tune    LANES = 4 | 1 | 8
//! launch  columns<<<ceil_div(columns, 32), 32 * LANES>>>(x, total, where_largest, rows, columns)
#include <tilewright/reduce.cuh>

__global__ void columns(const float* x, float* total, long long* where_largest, long long rows, long long columns) {
  using Where = tw::Indexed<float>;
  __shared__ float of_sum[32 * LANES];
  __shared__ Where of_most[32 * LANES];
  const long long column = blockIdx.x * 32ll + threadIdx.x % 32, own = min(column, columns - 1);
  float sum = 0.f;
  Where most = {-INFINITY, rows};
  for (long long row = threadIdx.x / 32; row < rows; row += LANES) {
    sum += x[row * columns + own];
    most = tw::ArgMax{}(most, {x[row * columns + own], row});
  }
  sum = tw::column_reduce<32, LANES>(sum, tw::Sum{}, of_sum);
  most = tw::column_reduce<32, LANES>(most, tw::ArgMax{}, of_most);
  if (threadIdx.x / 32 == 0 && column < columns) total[column] = sum, where_largest[column] = most.index;
}
