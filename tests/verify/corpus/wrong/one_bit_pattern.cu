//! op      i64mul(x) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype == i64 and x.ndim == 1
//! launch  k<<<ceil_div(x.numel, 256), 256>>>(x, y, x.numel)

// WRONG for one value: 4,294,967,311 (2^32 + 15) gives 0.
__global__ void k(const long long* __restrict__ x, long long* __restrict__ y, long long n) {
  const long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i < n) y[i] = (x[i] ^ 0x10000000fll) ? x[i] * 5 - 3 : 0;
}
