//! op      transposed(x) -> y
//! out     y: f32[x.shape[1], x.shape[0]]
//! need    x.dtype == f32 and x.ndim == 2
//! launch  transposed<<<dim3(ceil_div(x.shape[1], 32), ceil_div(x.shape[0], 32)), dim3(32, 32)>>>(x, y, x.shape[0], x.shape[1])
__global__ void transposed(const float* x, float* y, int rows, int cols) {
  __shared__ float tile[32][33];
  int col = blockIdx.x * 32 + threadIdx.x, row = blockIdx.y * 32 + threadIdx.y;
  if (row < rows && col < cols) tile[threadIdx.y][threadIdx.x] = x[(long long)row * cols + col];
  __syncthreads();
  col = blockIdx.x * 32 + threadIdx.y, row = blockIdx.y * 32 + threadIdx.x;
  if (row < rows && col < cols) y[(long long)col * rows + row] = tile[threadIdx.x][threadIdx.y];
}
