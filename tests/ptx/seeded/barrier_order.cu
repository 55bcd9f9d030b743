// Two named barriers that two warps pass in opposite order.

//! op      copy(x) -> y
//! out     y: f32[64]
//! need    x.dtype == f32 and x.shape == [64]
//! launch  copy<<<1, 64>>>(x, y)

__global__ void copy(const float* x, float* y) {
  if (threadIdx.x < 32) {
    asm volatile("bar.sync 1, 64;" ::: "memory");  // BUG
    asm volatile("bar.sync 2, 64;" ::: "memory");
  } else {
    asm volatile("bar.sync 2, 64;" ::: "memory");  // BUG mend: asm volatile("bar.sync 1, 64;" ::: "memory");
    asm volatile("bar.sync 1, 64;" ::: "memory");  // mend: asm volatile("bar.sync 2, 64;" ::: "memory");
  }
  y[threadIdx.x] = x[threadIdx.x];
}
