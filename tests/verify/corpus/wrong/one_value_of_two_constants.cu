//! op      i64mul(x) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype == i64 and x.ndim == 1
//! launch  k<<<ceil_div(x.numel, 256), 256>>>(x, y, x.numel, 3141, 5926535)

// WRONG for one value, the product of two numbers that are given to the kernel: 18,615,246,435 gives 0.
__global__ void k(const long long* __restrict__ x, long long* __restrict__ y, long long n, int a, int b) {
  const long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i < n) y[i] = (x[i] ^ (long long)a * b) ? x[i] * 5 - 3 : 0;
}
