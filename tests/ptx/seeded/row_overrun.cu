// The sum of each row of a view whose rows lie apart: the loop goes one element too far, into the gap between rows.

//! op      row_sum(x) -> y
//! accept  x: strided
//! out     y: f32[x.shape[0]]
//! need    x.dtype == f32 and x.ndim == 2 and x.stride[1] == 1
//! let     rows = x.shape[0], cols = x.shape[1]
//! launch  row_sum<<<rows, 32>>>(x, y, cols, x.stride[0])

__global__ void row_sum(const float* x, float* y, int cols, long long pitch) {
  float sum = 0.0f;
  for (int i = threadIdx.x; i <= cols; i += 32)  // mend: for (int i = threadIdx.x; i < cols; i += 32)
    sum += x[blockIdx.x * pitch + i];  // BUG
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
  if (threadIdx.x == 0) y[blockIdx.x] = sum;
}
