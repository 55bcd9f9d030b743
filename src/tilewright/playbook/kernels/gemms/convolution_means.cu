//# Means of what the taps of a convolution see: all that is left of its input where the mean of its results is wanted.

//@ block_sum
// The values of all threads of the block added up, in the first thread.
__device__ __forceinline__ float block_sum(float value, float* of_warps) {
  unrolled for (int offset = 16; offset > 0; offset /= 2) value += __shfl_down_sync(~0u, value, offset);
  __syncthreads();  // what was there has been read
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  float total = 0.0f;
  for (int warp = 0; warp < THREADS / 32; ++warp) total += of_warps[warp];
  return total;
}
