//! op      trd(x) -> y
//! need    x.dtype == f32 and x.ndim == 2
//! let     rows = x.shape[0], cols = x.shape[1], tm = ceil_div(rows, 32), tn = ceil_div(cols, 32)
//! out     y: f32[cols, rows]
//! launch  k<<<dim3(tn, min(tm, 65535)), dim3(32, 8)>>>(x, y, rows, cols, tm)

// HONEST: tiles are walked along diagonals (column (i + j) mod tn), a permutation for every size.
__global__ void k(const float* __restrict__ x, float* __restrict__ y, int rows, int cols, int tm) {
  __shared__ float held[32][33];
  for (int tr = blockIdx.y; tr < tm; tr += gridDim.y) {
    const int tc = (blockIdx.x + tr) % gridDim.x;
    for (int j = threadIdx.y; j < 32; j += 8) {
      const int r = tr * 32 + j, c = tc * 32 + threadIdx.x;
      if (r < rows && c < cols) held[j][threadIdx.x] = x[(long long)r * cols + c];
    }
    __syncthreads();
    for (int j = threadIdx.y; j < 32; j += 8) {
      const int r = tr * 32 + threadIdx.x, c = tc * 32 + j;
      if (r < rows && c < cols) y[(long long)c * rows + r] = held[threadIdx.x][j];
    }
    __syncthreads();
  }
}
