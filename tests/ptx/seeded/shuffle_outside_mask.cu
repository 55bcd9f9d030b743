// All lanes shuffle with a mask that names half of them.

//! op      pair_sums(x) -> y
//! out     y: f32[32]
//! need    x.dtype == f32 and x.shape == [32]
//! launch  pair_sums<<<1, 32>>>(x, y)

__global__ void pair_sums(const float* x, float* y) {
  const float v = x[threadIdx.x];
  y[threadIdx.x] = v + __shfl_xor_sync(0x0000ffff, v, 1);  // BUG mend: y[threadIdx.x] = v + __shfl_xor_sync(0xffffffff, v, 1);
}
