//! op      compact(x) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype == f32 and x.ndim == 1
//! let     n = x.numel, blocks = ceil_div(n, 1024)
//! scratch counts: i32[blocks + 1]
//! launch  count<<<blocks, 256>>>(x, counts, n)
//! launch  scan<<<1, 256>>>(counts, blocks)
//! launch  place<<<blocks, 256>>>(x, counts, y, n, blocks)

// HONEST: the positive elements to the front, zeros behind them: every address depends on the values. Each block also clears
// those of its places that lie behind the last kept one.
__global__ void count(const float* __restrict__ x, int* counts, int n) {
  __shared__ int of_warps[8];
  int c = 0;
  for (int j = 0; j < 4; ++j) {
    const int i = blockIdx.x * 1024 + j * 256 + threadIdx.x;
    c += __popc(__ballot_sync(~0u, i < n && x[min(i, n - 1)] > 0.0f));
  }
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = c;
  __syncthreads();
  if (threadIdx.x == 0) {
    c = 0;
    for (int w = 0; w < 8; ++w) c += of_warps[w];
    counts[blockIdx.x] = c;
  }
}
__global__ void scan(int* counts, int blocks) {
  __shared__ int held[256];
  int carry = 0;
  for (int first = 0; first < blocks; first += 256) {
    const int i = first + threadIdx.x, own = i < blocks ? counts[i] : 0;
    held[threadIdx.x] = own;
    __syncthreads();
    for (int o = 1; o < 256; o *= 2) {
      const int u = threadIdx.x >= o ? held[threadIdx.x - o] : 0;
      __syncthreads();
      held[threadIdx.x] += u;
      __syncthreads();
    }
    if (i < blocks) counts[i] = carry + held[threadIdx.x] - own;
    carry += held[255];
    __syncthreads();
  }
  if (threadIdx.x == 0) counts[blocks] = carry;
}
__global__ void place(const float* __restrict__ x, const int* __restrict__ counts, float* y, int n, int blocks) {
  __shared__ int of_warps[8];
  int before = counts[blockIdx.x];
  const int kept = counts[blocks], lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int j = 0; j < 4; ++j) {
    const int i = blockIdx.x * 1024 + j * 256 + threadIdx.x;
    const float v = i < n ? x[i] : 0.0f;
    const unsigned mask = __ballot_sync(~0u, v > 0.0f);
    if (lane == 0) of_warps[warp] = __popc(mask);
    __syncthreads();
    int front = 0, all = 0;
    for (int w = 0; w < 8; ++w) {
      if (w < warp) front += of_warps[w];
      all += of_warps[w];
    }
    if (v > 0.0f) y[before + front + __popc(mask & (1u << lane) - 1)] = v;
    before += all;
    __syncthreads();
    if (i < n && i >= kept) y[i] = 0.0f;
  }
}
