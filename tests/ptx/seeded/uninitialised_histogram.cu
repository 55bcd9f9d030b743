// Counts in shared memory that nobody set to zero.

//! op      histogram(x) -> counts
//! out     counts: i32[64]
//! need    x.dtype == i32
//! let     n = x.numel
//! launch  histogram<<<1, 128>>>(x, counts, n)

__global__ void histogram(const int* x, int* counts, int n) {
  __shared__ int bins[64];
  // mend: if (threadIdx.x < 64) bins[threadIdx.x] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += 128) atomicAdd(&bins[x[i] & 63], 1);  // BUG
  __syncthreads();
  if (threadIdx.x < 64) counts[threadIdx.x] = bins[threadIdx.x];  // BUG
}
