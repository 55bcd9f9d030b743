// A list of eight in local memory, written once too often.

//! op      reverse_rows(x) -> y
//! out     y: f32[x.shape]
//! need    x.dtype == f32 and x.ndim == 2
//! let     rows = x.shape[0], cols = x.shape[1]
//! launch  reverse_rows<<<ceil_div(rows, 32), 32>>>(x, y, rows, cols)

__global__ void reverse_rows(const float* x, float* y, int rows, int cols) {
  const int row = blockIdx.x * 32 + threadIdx.x;
  if (row >= rows) return;
  float list[8];  // mend: float list[16];
#pragma unroll 1
  for (int i = 0; i < cols; ++i) list[i] = x[row * cols + i];  // BUG
#pragma unroll 1
  for (int i = 0; i < cols; ++i) y[row * cols + i] = list[cols - 1 - i];  // BUG
}
