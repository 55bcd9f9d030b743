//! op      irowmax(x) -> values, indices
//! need    x.dtype == i32 and x.ndim == 2
//! let     rows = x.shape[0], cols = x.shape[1]
//! out     values: i32[rows]
//! out     indices: i64[rows]
//! scratch best: i64[rows] zeroed
//! launch  k<<<dim3(ceil_div(cols, 512), rows), 128>>>(x, best, cols)
//! launch  split<<<ceil_div(rows, 128), 128>>>(best, values, indices, rows)

// HONEST: value and place are one 64-bit key, the largest by atomicMax; of equal values the first, as its complement is larger.
__global__ void k(const int* __restrict__ x, unsigned long long* best, int cols) {
  unsigned long long key = 0;
  for (int c = blockIdx.x * 512 + threadIdx.x; c < min(cols, (int)blockIdx.x * 512 + 512); c += 128) {
    const unsigned v = (unsigned)x[(long long)blockIdx.y * cols + c] ^ 0x80000000u;
    key = max(key, (unsigned long long)v << 32 | ~(unsigned)c);
  }
  for (int o = 16; o; o >>= 1) key = max(key, __shfl_xor_sync(~0u, key, o));
  if (threadIdx.x % 32 == 0) atomicMax(&best[blockIdx.y], key);
}
__global__ void split(const unsigned long long* __restrict__ best, int* __restrict__ values, long long* __restrict__ indices, int rows) {
  const int r = blockIdx.x * 128 + threadIdx.x;
  if (r >= rows) return;
  values[r] = (int)((unsigned)(best[r] >> 32) ^ 0x80000000u);
  indices[r] = ~(unsigned)best[r];
}
