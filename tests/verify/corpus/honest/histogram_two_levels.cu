//! op      hist(x) -> y
//! need    x.dtype == i64 and x.ndim == 1
//! let     n = x.numel
//! out     y: i64[256] zeroed
//! launch  k<<<max(1, min(ceil_div(n, 4096), device.sms * 8)), 256>>>(x, y, n)

// HONEST: counts of 32 bits in shared memory, added to 64-bit ones by one atomic for each bin and block that is not zero.
__global__ void k(const long long* __restrict__ x, unsigned long long* y, long long n) {
  __shared__ unsigned bins[256];
  bins[threadIdx.x] = 0;
  __syncthreads();
  for (long long first = blockIdx.x * 256ll + (threadIdx.x & ~31); first < n; first += gridDim.x * 256ll) {  // warps stay whole
    const long long i = first + (threadIdx.x & 31);
    const unsigned inside = __ballot_sync(~0u, i < n);
    if (i < n) {
      const int v = (int)x[i];
      const unsigned same = __match_any_sync(inside, v);
      if ((threadIdx.x & 31) == __ffs(same) - 1) atomicAdd(&bins[v], __popc(same));
    }
  }
  __syncthreads();
  if (bins[threadIdx.x]) atomicAdd(&y[threadIdx.x], (unsigned long long)bins[threadIdx.x]);
}
