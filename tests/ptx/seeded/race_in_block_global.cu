// Two warps of one block store different values to the same element of the output.

//! op      last_of_pairs(x) -> y
//! out     y: f32[32]
//! need    x.dtype == f32 and x.shape == [64]
//! launch  last_of_pairs<<<1, 64>>>(x, y)

__global__ void last_of_pairs(const float* x, float* y) {
  y[threadIdx.x % 32] = x[threadIdx.x];  // BUG mend: if (threadIdx.x >= 32) y[threadIdx.x % 32] = x[threadIdx.x];
}
