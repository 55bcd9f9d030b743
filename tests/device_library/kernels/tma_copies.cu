// Boxes of tensors of one to four dimensions through shared memory, and one that is added.
//! op      copies(a, b, c, d) -> ya, yb, yc, yd, total
//! need    device.cc == 90 and a.ndim == 1 and b.ndim == 2 and c.ndim == 3 and d.ndim == 4
//! need    a.dtype == f32 and b.dtype == f32 and c.dtype == f32 and d.dtype == f32
//! out     ya: f32[a.shape]
//! out     yb: f32[b.shape]
//! out     yc: f32[c.shape]
//! out     yd: f32[1024]
//! out     total: f32[b.shape] zeroed
//! map     a_map = tiled(a, box=[128])
//! map     b_map = tiled(b, box=[8, 16])
//! map     c_map = tiled(c, box=[4, 4, 8])
//! map     d_map = tiled(d, box=[2, 4, 4, 8])
//! map     ya_map = tiled(ya, box=[128])
//! map     yb_map = tiled(yb, box=[8, 16])
//! map     yc_map = tiled(yc, box=[4, 4, 8])
//! map     total_map = tiled(total, box=[8, 16])
//! launch  copies<<<2, 32>>>(a_map, b_map, c_map, d_map, ya_map, yb_map, yc_map, total_map, yd)
#include <tilewright/mbarrier.cuh>
#include <tilewright/shared_memory.cuh>
#include <tilewright/tma.cuh>

__global__ void copies(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b, const __grid_constant__ CUtensorMap c,
                       const __grid_constant__ CUtensorMap d, const __grid_constant__ CUtensorMap ya, const __grid_constant__ CUtensorMap yb,
                       const __grid_constant__ CUtensorMap yc, const __grid_constant__ CUtensorMap total, float* yd) {
  __shared__ __align__(128) float one[128], two[128], three[128], four[256];
  __shared__ __align__(8) uint64_t barrier;
  const uint32_t arrived = tw::shared_address(&barrier);
  const int part = blockIdx.x;
  if (threadIdx.x == 0) {
    tw::tma_prefetch(&a);
    tw::mbarrier_init(arrived, 1);
    tw::mbarrier_init_fence();
    tw::mbarrier_arrive_expect_tx(arrived, 640 * 4);
    tw::tma_load_1d(&a, arrived, tw::shared_address(one), part * 128);
    tw::tma_load_2d(&b, arrived, tw::shared_address(two), part * 16, 0);
    tw::tma_load_3d(&c, arrived, tw::shared_address(three), 0, part * 4, 0);
    tw::tma_load_4d(&d, arrived, tw::shared_address(four), 0, 0, part * 4, 0);
  }
  __syncthreads();
  tw::mbarrier_wait(arrived, 0);
  for (int i = threadIdx.x; i < 256; i += 32) yd[part * 256 + i] = four[i], yd[512 + part * 256 + i] = -four[i];
  if (threadIdx.x == 0) {
    tw::tma_store_1d(&ya, tw::shared_address(one), part * 128);
    tw::tma_store_2d(&yb, tw::shared_address(two), part * 16, 0);
    tw::tma_store_3d(&yc, tw::shared_address(three), 0, part * 4, 0);
    tw::tma_add_2d(&total, tw::shared_address(two), 0, 0);
    tw::bulk_commit();
    tw::bulk_wait<0>();
  }
}
