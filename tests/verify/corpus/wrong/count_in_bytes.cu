//! op      histogram(x) -> y
//! let     n = x.numel
//! out     y: i64[100] zeroed
//! launch  run<<<ceil_div(n, 8192), 256>>>(x, y, n)
__global__ void run(const long long* x, unsigned long long* y, long long n) {
  __shared__ unsigned bins[25];
  for (int i = threadIdx.x; i < 25; i += 256) bins[i] = 0;
  __syncthreads();
  long long first = blockIdx.x * 8192ll, end = min(first + 8192, n);
  for (long long i = first + threadIdx.x; i < end; i += 256) {
    int bin = x[i];
    atomicAdd(&bins[bin / 4], 1u << bin % 4 * 8);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < 100; i += 256) {
    unsigned count = bins[i / 4] >> i % 4 * 8 & 0xffu;
    if (count) atomicAdd(&y[i], (unsigned long long)count);
  }
}
