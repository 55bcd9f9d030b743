// y = 2 x, tile by tile: bulk loads through a ring, bulk stores from two buffers.
//! op      double_it(x) -> y
//! need    device.cc == 90 and x.dtype == f32 and x.ndim == 1 and x.shape[0] % 4 == 0
//! out     y: f32[x.shape]
//! const   STAGES = 3, TILE = 256
//! launch  double_it<<<2, 96>>>(x, y, x.numel)
#include <tilewright/bulk_copy.cuh>
#include <tilewright/mbarrier.cuh>
#include <tilewright/shared_memory.cuh>

__global__ void __launch_bounds__(96) double_it(const float* __restrict__ x, float* __restrict__ y, long long n) {
  __shared__ __align__(16) float in[STAGES][TILE], out[2][TILE];
  __shared__ __align__(8) char barriers[tw::Ring<STAGES>::BYTES];
  const bool is_producer = threadIdx.x >= 64;
  tw::Ring<STAGES> ring(tw::shared_address(barriers), is_producer);
  if (threadIdx.x == 0) ring.init(1, 2);
  __syncthreads();
  const long long tiles = (n + TILE - 1) / TILE;
  if (is_producer) {
    if (threadIdx.x != 64) return;
    for (long long tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      const uint32_t bytes = min(n - tile * TILE, (long long)TILE) * 4;
      ring.wait_empty();
      ring.expect(bytes);
      tw::bulk_load(tw::shared_address(in[ring.slot]), x + tile * TILE, bytes, ring.full());
      ring.advance();
    }
    return;
  }
  int buffer = 0;
  for (long long tile = blockIdx.x; tile < tiles; tile += gridDim.x, buffer ^= 1) {
    const int count = min(n - tile * TILE, (long long)TILE);
    if (threadIdx.x == 0) tw::bulk_wait_read<1>();
    tw::named_barrier_sync(1, 64);
    ring.wait_full();
    for (int i = threadIdx.x; i < count; i += 64) out[buffer][i] = 2.f * in[ring.slot][i];
    __syncwarp();
    if (threadIdx.x % 32 == 0) ring.release();
    ring.advance();
    tw::fence_proxy_async();
    tw::named_barrier_sync(1, 64);
    if (threadIdx.x == 0) tw::bulk_store(y + tile * TILE, tw::shared_address(out[buffer]), count * 4), tw::bulk_commit();
  }
  if (threadIdx.x == 0) tw::bulk_wait<0>();
}
