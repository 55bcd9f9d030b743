// Two tiles in turn save one of the two barriers of a step, not both: every other step has none.

//! op      sum_of_reversed_tiles(x) -> y
//! out     y: f32[128]
//! need    x.dtype == f32 and x.ndim == 2 and x.shape[1] == 128
//! launch  sum_of_reversed_tiles<<<1, 128>>>(x, y, x.shape[0])

__global__ void sum_of_reversed_tiles(const float* x, float* y, int rows) {
  __shared__ float tile[2][128];
  float sum = 0.0f;
#pragma unroll 1
  for (int row = 0; row < rows; ++row) {
    tile[row % 2][threadIdx.x] = x[row * 128 + threadIdx.x];  // BUG
    if (row % 2 == 0)  // mend:
      __syncthreads();
    sum += tile[row % 2][127 - threadIdx.x];  // BUG
  }
  y[threadIdx.x] = sum;
}
