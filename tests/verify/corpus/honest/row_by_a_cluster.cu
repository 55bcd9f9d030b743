//! op      clsum(x) -> y
//! need    device.cc >= 90 and x.dtype == f32 and x.ndim == 2
//! let     rows = x.shape[0], cols = x.shape[1]
//! out     y: f32[rows]
//! launch  k<<<rows * 4, 128>>>(x, y, cols) cluster(4)

// HONEST: four blocks of a cluster share a row; the first reads the others' sums from their shared memory between two cluster barriers.
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
__global__ void k(const float* __restrict__ x, float* __restrict__ y, int cols) {
  __shared__ float of_warps[4];
  __shared__ float of_block;
  cg::cluster_group cluster = cg::this_cluster();
  const int rank = blockIdx.x % 4, row = blockIdx.x / 4;
  float s = 0.0f;
  for (int c = rank * 128 + threadIdx.x; c < cols; c += 512) { const float v = x[(long long)row * cols + c]; s = fmaf(v, v, s); }
  for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = s;
  __syncthreads();
  if (threadIdx.x == 0) of_block = of_warps[0] + of_warps[1] + of_warps[2] + of_warps[3];
  cluster.sync();
  if (rank == 0 && threadIdx.x == 0) {
    s = 0.0f;
    for (int r = 0; r < 4; ++r) s += *cluster.map_shared_rank(&of_block, r);
    y[row] = s;
  }
  cluster.sync();
}
