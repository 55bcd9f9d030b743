//! op      transpose(x) -> y
//! let     rows = x.shape[0], cols = x.shape[1]
//! out     y: f32[cols, rows]
//! launch  run<<<ceil_div(rows * cols, 256), 256>>>(x, y, rows, cols)
__global__ void run(const float* x, float* y, int rows, int cols) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i >= rows * cols) return;
  const int to = (i % cols) * rows + i / cols;
  y[to & 0x3fffff] = x[i];
}
