// Half a warp shuffles with a mask that names the whole.

//! op      pair_sums(x) -> y
//! out     y: f32[16]
//! need    x.dtype == f32 and x.shape == [16]
//! launch  pair_sums<<<1, 32>>>(x, y)

__global__ void pair_sums(const float* x, float* y) {
  if (threadIdx.x < 16) {
    const float v = x[threadIdx.x];
    y[threadIdx.x] = v + __shfl_xor_sync(0xffffffff, v, 1);  // BUG mend: y[threadIdx.x] = v + __shfl_xor_sync(0x0000ffff, v, 1);
  }
}
