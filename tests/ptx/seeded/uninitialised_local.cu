// A small sorted list in local memory, of which only the first elements were ever set.

//! op      pick(x, at) -> y
//! out     y: f32[x.shape[0]]
//! need    x.dtype == f32 and x.ndim == 2 and x.shape[1] <= 16 and at.dtype == i32 and at.shape == [x.shape[0]]
//! let     rows = x.shape[0]
//! launch  pick<<<ceil_div(rows, 32), 32>>>(x, at, y, rows, x.shape[1])

__global__ void pick(const float* x, const int* at, float* y, int rows, int cols) {
  const int row = blockIdx.x * 32 + threadIdx.x;
  if (row >= rows) return;
  float list[16];
  // mend: for (int i = 0; i < 16; ++i) list[i] = 0.0f;
#pragma unroll 1
  for (int i = 0; i < cols; ++i) list[i] = x[row * cols + i];
  y[row] = list[at[row] & 15];  // BUG
}
