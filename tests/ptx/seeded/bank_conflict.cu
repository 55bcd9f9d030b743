// A transpose through a tile without padding: a column lies in one bank.

//! op      transpose(x) -> y
//! out     y: f32[x.shape[1], x.shape[0]]
//! need    x.dtype == f32 and x.ndim == 2 and x.shape[0] % 32 == 0 and x.shape[1] % 32 == 0
//! let     rows = x.shape[0], cols = x.shape[1]
//! launch  transpose<<<dim3(cols / 32, rows / 32), dim3(32, 8)>>>(x, y, rows, cols)

__global__ void transpose(const float* x, float* y, int rows, int cols) {
  __shared__ float tile[32][32];  // mend: __shared__ float tile[32][33];
  const float* from = x + blockIdx.y * 32 * cols + blockIdx.x * 32;
  float* to = y + blockIdx.x * 32 * rows + blockIdx.y * 32;
  for (int i = threadIdx.y; i < 32; i += 8) tile[i][threadIdx.x] = from[i * cols + threadIdx.x];
  __syncthreads();
  for (int i = threadIdx.y; i < 32; i += 8)
    to[i * rows + threadIdx.x] = tile[threadIdx.x][i];  // BUG
}
