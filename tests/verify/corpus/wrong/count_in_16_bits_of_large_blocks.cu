//! op      histogram(x) -> y
//! let     n = x.numel
//! out     y: i64[100] zeroed
//! launch  run<<<ceil_div(n, 131072), 256>>>(x, y, n)
__global__ void run(const long long* x, unsigned long long* y, long long n) {
  __shared__ unsigned bins[50];
  for (int i = threadIdx.x; i < 50; i += 256) bins[i] = 0;
  __syncthreads();
  long long first = blockIdx.x * 131072ll, end = min(first + 131072, n);
  for (long long i = first + threadIdx.x; i < end; i += 256) {
    int bin = x[i];
    atomicAdd(&bins[bin / 2], 1u << bin % 2 * 16);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < 100; i += 256) {
    unsigned count = bins[i / 2] >> i % 2 * 16 & 0xffffu;
    if (count) atomicAdd(&y[i], (unsigned long long)count);
  }
}
