// Two blocks of a cluster, each of which loads half of every tile for both; y[i] is the sum of tile i, by each block.
//! op      sums_of_tiles(x, z) -> y
//! need    device.cc == 90 and x.dtype == f32 and x.ndim == 2 and x.shape[1] == 32 and x.shape[0] % 16 == 0
//! need    z.dtype == f32 and z.shape == [x.shape[0] / 16, 16, 32]
//! let     tiles = x.shape[0] / 16
//! out     y: f32[2, tiles]
//! const   STAGES = 2
//! map     x_map = tiled(x, box=[8, 32])
//! map     z_map = tiled(z, box=[1, 8, 32])
//! launch  sums_of_tiles<<<2, 64>>>(x_map, z_map, y, tiles) cluster(2)
#include <tilewright/cluster.cuh>
#include <tilewright/mbarrier.cuh>
#include <tilewright/reduce.cuh>
#include <tilewright/shared_memory.cuh>
#include <tilewright/tma.cuh>

__global__ void sums_of_tiles(const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap z, float* y, int tiles) {
  __shared__ __align__(128) float slots[STAGES][2][16 * 32];
  __shared__ __align__(8) char barriers[tw::Ring<STAGES>::BYTES];
  const bool is_producer = threadIdx.x >= 32;
  const uint32_t rank = tw::cluster_rank();
  tw::Ring<STAGES> ring(tw::shared_address(barriers), is_producer);
  if (threadIdx.x == 0) ring.init(1, 2);
  tw::cluster_sync();
  if (is_producer) {
    if (threadIdx.x == 32)
      for (int tile = 0; tile < tiles; ++tile) {
        ring.wait_empty();
        ring.expect(2 * 16 * 32 * 4);
        tw::tma_load_2d_multicast(&x, ring.full(), tw::shared_address(slots[ring.slot][0] + rank * 256), 0, tile * 16 + rank * 8, 3);
        tw::tma_load_3d_multicast(&z, ring.full(), tw::shared_address(slots[ring.slot][1] + rank * 256), 0, rank * 8, tile, 3);
        ring.advance();
      }
  } else {
    for (int tile = 0; tile < tiles; ++tile) {
      ring.wait_full();
      float sum = 0.f;
      for (int i = threadIdx.x; i < 512; i += 32) sum += slots[ring.slot][0][i] + slots[ring.slot][1][i];
      sum = tw::warp_reduce<32>(sum, tw::Sum{});
      if (threadIdx.x < 2) tw::mbarrier_arrive_at(ring.empty(), threadIdx.x);
      if (threadIdx.x == 0) y[rank * tiles + tile] = sum;
      ring.advance();
    }
  }
  tw::cluster_sync();
}
