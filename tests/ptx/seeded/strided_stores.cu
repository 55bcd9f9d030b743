// A transpose that stores down the columns: a sector of 32 bytes for every element of four.

//! op      transpose(x) -> y
//! out     y: f32[x.shape[1], x.shape[0]]
//! need    x.dtype == f32 and x.ndim == 2 and x.shape[0] % 32 == 0 and x.shape[1] % 32 == 0
//! let     rows = x.shape[0], cols = x.shape[1]
//! launch  transpose<<<dim3(cols / 32, rows), 32>>>(x, y, rows, cols)

__global__ void transpose(const float* x, float* y, int rows, int cols) {
  const int row = blockIdx.y, col = blockIdx.x * 32 + threadIdx.x;
  const float value = x[row * cols + col];
  y[col * rows + row] = value;  // BUG
}
