// A 16 x 16 tile transposed by storing its fragments the other way round.
//! op      transposed(x) -> y
//! need    device.cc == 90 and x.dtype == f16 and x.shape == [16, 16]
//! out     y: f16[16, 16]
//! launch  transposed<<<1, 32>>>(x, y)
#include <tilewright/matrix_fragments.cuh>
#include <tilewright/shared_memory.cuh>

__global__ void transposed(const uint4* x, uint4* y) {
  __shared__ __align__(16) uint4 in[32], out[32];  // a row is two
  const int lane = threadIdx.x, matrix = lane / 8;
  in[lane] = x[lane];
  __syncwarp();
  uint32_t r[4];
  tw::ldmatrix_x4(r, tw::shared_address(in + (matrix / 2 * 8 + lane % 8) * 2 + matrix % 2));
  tw::stmatrix_x4_trans(tw::shared_address(out + (matrix % 2 * 8 + lane % 8) * 2 + matrix / 2), r[0], r[1], r[2], r[3]);
  __syncwarp();
  y[lane] = out[lane];
}
