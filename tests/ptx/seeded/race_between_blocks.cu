// A histogram in global memory without atomics.

//! op      histogram(x) -> counts
//! out     counts: i32[4]
//! need    x.dtype == i32
//! scratch bins: i32[4] zeroed
//! launch  count<<<x.numel, 1>>>(x, bins)
//! launch  copy<<<1, 4>>>(bins, counts)

__global__ void count(const int* x, int* bins) {
  bins[x[blockIdx.x] & 3] += 1;  // BUG mend: atomicAdd(&bins[x[blockIdx.x] & 3], 1);
}
__global__ void copy(const int* bins, int* counts) { counts[threadIdx.x] = bins[threadIdx.x]; }
