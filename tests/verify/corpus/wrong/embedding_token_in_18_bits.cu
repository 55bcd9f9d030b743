//! op      embed(table, idx) -> y
//! need    table.dtype == f32 and table.ndim == 2 and idx.dtype == i64 and idx.ndim == 1
//! let     rows = table.shape[0], cols = table.shape[1], n = idx.numel
//! out     y: f32[n, cols]
//! need    cols > 0 and cols <= 1048576
//! launch  k<<<ceil_div(n * cols, 1024), 256>>>(table, idx, y, n, rows, cols, log2(next_pow2(cols)) + 8)

// WRONG at its own call: token and column are packed into 32 bits, 6 for 64 columns, 8 spare, 18 for the token. Tokens 262,144 to 299,999 wrap and
// write tokens 0 to 37,855 again (the same values); 37,856 of 300,000 rows of y are never written.
__global__ void k(const float* __restrict__ table, const long long* __restrict__ idx, float* y, int n, int rows, int cols, int bits) {
  __shared__ unsigned work[1024];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const long long at = blockIdx.x * 1024ll + j * 256 + threadIdx.x;
    work[j * 256 + threadIdx.x] = (unsigned)(at / cols) << bits | (unsigned)(at % cols);
  }
  __syncthreads();
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int mine = threadIdx.x * 4 + j;
    const unsigned item = work[mine];
    const int token = item >> bits, col = item & (1 << bits) - 1;
    if (blockIdx.x * 1024ll + mine < (long long)n * cols) {
      long long r = idx[token];
      if (r < 0) r += rows;
      y[(long long)token * cols + col] = table[r * cols + col];
    }
  }
}
