//! op      lookup(table, idx) -> y
//! need    table.dtype == f32 and table.ndim == 2 and idx.dtype == i64 and idx.ndim == 1
//! let     rows = table.shape[0], cols = table.shape[1], n = idx.numel
//! out     y: f32[n, cols]
//! launch  k<<<ceil_div(n * cols, 1024), 256>>>(table, idx, y, n * cols, rows, cols)

// HONEST: places are exchanged through shared memory, packed into 64 bits; 300,000 tokens pass 18 bits. An index is read by many.
__global__ void k(const float* __restrict__ table, const long long* __restrict__ idx, float* y, long long n, int rows, int cols) {
  __shared__ unsigned long long work[1024];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const long long at = blockIdx.x * 1024ll + j * 256 + threadIdx.x;
    work[j * 256 + threadIdx.x ^ 21] = (unsigned long long)(at / cols) << 32 | (unsigned)(at % cols);
  }
  __syncthreads();
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const unsigned long long item = work[threadIdx.x * 4 + j];
    const long long token = item >> 32;
    const int col = (int)(unsigned)item;
    if (token * cols + col < n) {
      long long r = idx[token];
      if (r < 0) r += rows;
      y[token * cols + col] = table[r * cols + col];
    }
  }
}
