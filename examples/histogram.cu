// How often each byte value occurs: a histogram of 256 bins.
//
// Adding straight to 256 global counters would make all threads of the device queue for the same few addresses. So
// every warp counts in a histogram of its own in shared memory; a block adds these up and touches each global counter
// once.
// The counters start from zero because `zeroed` has the output cleared before the launch. Integer addition does not
// depend on order, so the result is the same on every run.

//! op      histogram(x) -> counts
//! out     counts: i64[256] zeroed
//! need    x.dtype == u8
//! tune    THREADS = 256 | 512 | 128
//! tune    CHUNK = 65536 | 16384 | 262144                  # bytes per block
//! let     n = x.numel
//! launch  histogram<<<ceil_div(n, CHUNK), THREADS>>>(x, counts, n)

constexpr int WARPS = THREADS / 32, BINS = 256;
static_assert(CHUNK % 16 == 0, "a block's first byte starts a 16-byte vector");

struct alignas(16) Vector {
  unsigned char at[16];
};

__global__ void __launch_bounds__(THREADS)
    histogram(const unsigned char* __restrict__ x, unsigned long long* __restrict__ counts, long long n) {
  __shared__ unsigned of_warps[WARPS][BINS];
  for (int i = threadIdx.x; i < WARPS * BINS; i += THREADS) of_warps[i / BINS][i % BINS] = 0;
  __syncthreads();

  unsigned* own = of_warps[threadIdx.x / 32];
  const long long first = blockIdx.x * static_cast<long long>(CHUNK);
  const int bytes = static_cast<int>(min(static_cast<long long>(CHUNK), n - first));
  const int vectors = bytes / 16;
#pragma unroll 2
  for (int place = threadIdx.x; place < vectors; place += THREADS) {
    const Vector loaded = reinterpret_cast<const Vector*>(x + first)[place];
#pragma unroll
    for (int i = 0; i < 16; ++i) atomicAdd(own + loaded.at[i], 1u);
  }
  // Only the last block can have bytes left over, fewer than 16 of them.
  const int left_over = vectors * 16 + threadIdx.x;
  if (left_over < bytes) atomicAdd(own + x[first + left_over], 1u);
  __syncthreads();

  for (int bin = threadIdx.x; bin < BINS; bin += THREADS) {
    unsigned count = 0;
#pragma unroll
    for (int warp = 0; warp < WARPS; ++warp) count += of_warps[warp][bin];
    if (count > 0) atomicAdd(counts + bin, static_cast<unsigned long long>(count));
  }
}
