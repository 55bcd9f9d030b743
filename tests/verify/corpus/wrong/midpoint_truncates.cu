//! op      midpoint(x, y) -> out
//! out     out: i32[x.shape]
//! let     n = x.numel
//! launch  run<<<ceil_div(n, 256), 256>>>(x, y, out, n)
__global__ void run(const int* x, const int* y, int* out, long long n) {
  long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i < n) out[i] = (int)(((long long)x[i] + y[i]) / 2);
}
