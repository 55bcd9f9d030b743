// One tile in a loop, filled for the next step while slower warps still read this one.

//! op      sum_of_reversed_tiles(x) -> y
//! out     y: f32[128]
//! need    x.dtype == f32 and x.ndim == 2 and x.shape[1] == 128
//! launch  sum_of_reversed_tiles<<<1, 128>>>(x, y, x.shape[0])

__global__ void sum_of_reversed_tiles(const float* x, float* y, int rows) {
  __shared__ float tile[128];
  float sum = 0.0f;
#pragma unroll 1
  for (int row = 0; row < rows; ++row) {
    tile[threadIdx.x] = x[row * 128 + threadIdx.x];  // BUG
    __syncthreads();
    sum += tile[127 - threadIdx.x];  // BUG
    // mend: __syncthreads();
  }
  y[threadIdx.x] = sum;
}
