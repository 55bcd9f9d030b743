//! op      shift_mix(y!)
//! let     cols = y.shape[1], n = y.numel
//! launch  run<<<ceil_div(n, 256), 256>>>(y, n, cols)
__global__ void run(float* y, long long n, int cols) {
  long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i < n && i % cols) y[i] += 0.5f * y[i - 1];
}
