// Sums of rows: one block a row, a tree over warps, a tail that does not fill a warp.
extern "C" __global__ void __launch_bounds__(128) row_sum(const float* __restrict__ x, float* __restrict__ y, int columns) {
  __shared__ float partial[4];
  float sum = 0.f;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) sum += x[(long long)blockIdx.x * columns + i];
  for (int offset = 16; offset; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) y[blockIdx.x] = partial[0] + partial[1] + partial[2] + partial[3];
}
