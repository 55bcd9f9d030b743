//! op      quotient(x, y) -> z
//! out     z: f32[x.shape]
//! let     n = x.numel
//! launch  run<<<ceil_div(n, 256), 256>>>(x, y, z, n)
__global__ void run(const float* x, const float* y, float* z, long long n) {
  long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i < n) z[i] = __fdividef(x[i], y[i]);
}
