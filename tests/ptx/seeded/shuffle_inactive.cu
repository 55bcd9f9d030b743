// The lower half of a warp takes its value from a lane of the upper half, which takes no part.

//! op      add_last(x) -> y
//! out     y: f32[16]
//! need    x.dtype == f32 and x.shape == [16]
//! launch  add_last<<<1, 32>>>(x, y)

__global__ void add_last(const float* x, float* y) {
  if (threadIdx.x < 16) {
    const float v = x[threadIdx.x];
    y[threadIdx.x] = v + __shfl_sync(0x0000ffff, v, 31);  // BUG mend: y[threadIdx.x] = v + __shfl_sync(0x0000ffff, v, 15);
  }
}
