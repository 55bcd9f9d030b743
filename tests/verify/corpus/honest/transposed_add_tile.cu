//! op      transposed_add(x, y) -> out
//! let     rows = x.shape[0], cols = x.shape[1]
//! out     out: f32[rows, cols]
//! accept  x: strided
//! need    x.stride[0] == 1 and x.stride[1] == rows
//! launch  run<<<dim3(ceil_div(cols, 32), ceil_div(rows, 32)), dim3(32, 8)>>>(x, y, out, rows, cols)
__global__ void run(const float* x, const float* y, float* out, int rows, int cols) {
  __shared__ float tile[32][33];
  int r = blockIdx.y * 32 + threadIdx.x, c = blockIdx.x * 32 + threadIdx.y;
  for (int k = 0; k < 32; k += 8) if (r < rows && c + k < cols) tile[threadIdx.x][threadIdx.y + k] = x[(long long)(c + k) * rows + r];
  __syncthreads();
  r = blockIdx.y * 32 + threadIdx.y; c = blockIdx.x * 32 + threadIdx.x;
  for (int k = 0; k < 32; k += 8) if (r + k < rows && c < cols) {
    long long at = (long long)(r + k) * cols + c;
    out[at] = tile[threadIdx.y + k][threadIdx.x] + y[at];
  }
}
