//! op      transpose(x) -> y
//! let     rows = x.shape[0], cols = x.shape[1]
//! need    rows <= 65535 and cols <= 65535
//! out     y: f32[cols, rows]
//! launch  run<<<dim3(ceil_div(cols, 32), ceil_div(rows, 8)), dim3(32, 8)>>>(x, y, rows, cols)
__global__ void run(const float* x, float* y, int rows, int cols) {
  const unsigned short col = blockIdx.x * 32 + threadIdx.x, row = blockIdx.y * 8 + threadIdx.y;
  if (row < rows && col < cols) y[(size_t)col * rows + row] = x[(size_t)row * cols + col];
}
