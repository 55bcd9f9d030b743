//! op      icsum(x) -> y
//! out     y: i64[x.shape]
//! need    x.dtype == i32 and x.ndim == 1
//! let     n = x.numel, blocks = ceil_div(n, 4096)
//! scratch sums: i64[blocks]
//! launch  totals<<<blocks, 256>>>(x, sums, n)
//! launch  offsets<<<1, 1024>>>(sums, blocks)
//! launch  apply<<<blocks, 256>>>(x, sums, y, n)

// WRONG at its own call: `offsets` is one block of 1024 threads, one for each of the first 1024 sums; 6,000,000 elements have
// 1465. From element 4,194,304 on every value is wrong (all are written): the carry is the block's own sum.
__device__ __forceinline__ long long warp_scan(long long v) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int o = 1; o < 32; o *= 2) {
    const long long u = __shfl_up_sync(~0u, v, o);
    if (lane >= o) v += u;
  }
  return v;
}
template <int WARPS>
__device__ __forceinline__ long long block_scan(long long v) {  // inclusive
  __shared__ long long held[WARPS];
  v = warp_scan(v);
  if (threadIdx.x % 32 == 31) held[threadIdx.x / 32] = v;
  __syncthreads();
  long long before = 0;
  for (int w = 0; w < threadIdx.x / 32; ++w) before += held[w];
  __syncthreads();
  return before + v;
}
__global__ void totals(const int* __restrict__ x, long long* __restrict__ sums, long long n) {
  const long long first = blockIdx.x * 4096ll;
  long long s = 0;
  for (int i = threadIdx.x; i < 4096; i += 256)
    if (first + i < n) s += x[first + i];
  s = block_scan<8>(s);
  if (threadIdx.x == 255) sums[blockIdx.x] = s;
}
__global__ void offsets(long long* sums, int blocks) {
  const long long own = threadIdx.x < blocks ? sums[threadIdx.x] : 0;
  const long long through = block_scan<32>(own);
  if (threadIdx.x < blocks) sums[threadIdx.x] = through - own;
}
__global__ void apply(const int* __restrict__ x, const long long* __restrict__ sums, long long* __restrict__ y, long long n) {
  const long long first = blockIdx.x * 4096ll + threadIdx.x * 16;
  long long held[16], s = 0;
#pragma unroll
  for (int i = 0; i < 16; ++i) held[i] = s += first + i < n ? x[first + i] : 0;
  const long long before = block_scan<8>(s) - s + sums[blockIdx.x];
#pragma unroll
  for (int i = 0; i < 16; ++i)
    if (first + i < n) y[first + i] = before + held[i];
}
