// An offset computed in the wrong unit leaves every tensor far behind.

//! op      copy(x) -> y
//! out     y: f32[x.shape]
//! need    x.dtype == f32
//! let     n = x.numel
//! launch  copy<<<ceil_div(n, 128), 128>>>(x, y, n)

__global__ void copy(const float* x, float* y, long long n) {
  const long long i = blockIdx.x * 128 + threadIdx.x;
  if (i >= n) return;
  y[i] = x[i << 30];  // BUG mend: y[i] = x[i];
}
