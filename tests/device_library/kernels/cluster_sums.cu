// Rows shared by the two blocks of a cluster, two rows in turn.
//! op      row_sums(x) -> y
//! need    device.cc == 90 and x.dtype == f32 and x.ndim == 2
//! out     y: f32[x.shape[0]]
//! launch  row_sums<<<2, 64>>>(x, y, x.shape[0], x.shape[1]) cluster(2)
#include <tilewright/reduce.cuh>

__global__ void row_sums(const float* x, float* y, int rows, int columns) {
  __shared__ float of_warp[2], of_block[2];
  __shared__ int places[2];
  const uint32_t peer = tw::cluster_rank() ^ 1;
  if (threadIdx.x == 0) places[0] = tw::cluster_rank();
  tw::cluster_sync();
  if (threadIdx.x == 0) places[1] = *tw::cluster_pointer(places, peer);
  uint32_t same;  // what lies at the same address in the peer
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(same) : "r"(tw::cluster_address(tw::shared_address(places), peer)));
  __syncthreads();
  for (int row = 0; row < rows; ++row) {
    float sum = 0.f;
    for (int i = threadIdx.x + 64 * tw::cluster_rank(); i < columns; i += 128) sum += x[row * columns + i];
    sum = tw::team_reduce<64>(sum, tw::Sum{}, of_warp);
    sum = tw::cluster_reduce(sum, tw::Sum{}, of_block);
    if (threadIdx.x == 0 && tw::cluster_rank() == 0) y[row] = sum + (places[1] == 1 && same == 1 ? 0.f : NAN);
  }
}
