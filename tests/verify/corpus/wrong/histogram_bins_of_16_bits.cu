//! op      histogram(x) -> y
//! let     n = x.numel
//! out     y: i64[100] zeroed
//! launch  run<<<max(1, min(ceil_div(n, 1024), device.sms)), 256>>>(x, y, n)
__global__ void run(const long long* x, unsigned long long* y, long long n) {
  __shared__ unsigned bins[100];
  for (int i = threadIdx.x; i < 100; i += 256) bins[i] = 0;
  __syncthreads();
  for (long long i = blockIdx.x * 256ll + threadIdx.x; i < n; i += gridDim.x * 256ll) atomicAdd(&bins[x[i]], 1u);
  __syncthreads();
  for (int i = threadIdx.x; i < 100; i += 256) if (bins[i] & 0xffff) atomicAdd(&y[i], (unsigned long long)(bins[i] & 0xffff));
}
