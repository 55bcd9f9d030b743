//! op      isum(x) -> y
//! out     y: i64[x.shape]
//! need    x.dtype == i32 and x.ndim == 1
//! let     n = x.numel, blocks = ceil_div(n, 2048)
//! scratch sums: i64[2, blocks]
//! scratch state: i32[blocks] zeroed
//! scratch ticket: i32[1] zeroed
//! launch  k<<<blocks, 128>>>(x, sums, state, ticket, y, n, blocks)

// HONEST: a scan in one pass. Blocks are numbered by ticket, publish their own total first, then look back over earlier ones until one
// has published all that lies before it.
#include <cuda/atomic>
using Flag = cuda::atomic_ref<int, cuda::thread_scope_device>;
__global__ void k(const int* __restrict__ x, long long* sums, int* state, int* ticket, long long* __restrict__ y, long long n, int blocks) {
  __shared__ int mine;
  __shared__ long long of_warps[4], carried;
  if (threadIdx.x == 0) mine = atomicAdd(ticket, 1);
  __syncthreads();
  const int block = mine, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const long long first = block * 2048ll + threadIdx.x * 16;
  long long held[16], s = 0;
#pragma unroll
  for (int i = 0; i < 16; ++i) held[i] = s += first + i < n ? x[first + i] : 0;
  long long through = s;
  for (int o = 1; o < 32; o *= 2) {
    const long long u = __shfl_up_sync(~0u, through, o);
    if (lane >= o) through += u;
  }
  if (lane == 31) of_warps[warp] = through;
  __syncthreads();
  if (threadIdx.x == 0) {
    const long long all = of_warps[0] + of_warps[1] + of_warps[2] + of_warps[3];
    long long before = 0;
    sums[block] = all;
    Flag(state[block]).store(1, cuda::memory_order_release);
    for (int at = block - 1; at >= 0; --at) {
      int found;
      while ((found = Flag(state[at]).load(cuda::memory_order_acquire)) == 0) {}
      if (found == 2) {
        before += sums[blocks + at];
        break;
      }
      before += sums[at];
    }
    sums[blocks + block] = before + all;
    Flag(state[block]).store(2, cuda::memory_order_release);
    carried = before;
  }
  __syncthreads();
  long long before = carried + through - s;
  for (int w = 0; w < warp; ++w) before += of_warps[w];
#pragma unroll
  for (int i = 0; i < 16; ++i)
    if (first + i < n) y[first + i] = before + held[i];
}
