//! op      placed(idx, v) -> y
//! need    v.dtype == f32 and idx.dtype == i64 and v.ndim == 1
//! let     rows = idx.shape[0]
//! out     y: f32[rows, 256] zeroed
//! launch  k<<<ceil_div(rows, 128), 128>>>(idx, v, y, rows)

// HONEST: one element in 256 is written, at a place that a tensor names; the others are the zeros that the plan asks for.
__global__ void k(const long long* __restrict__ idx, const float* __restrict__ v, float* __restrict__ y, int rows) {
  const int r = blockIdx.x * 128 + threadIdx.x;
  if (r < rows) y[r * 256ll + idx[r]] = v[r];
}
