//# A matrix times a vector: every element of the matrix is used once, so all that matters is how its bytes move.

//@ block_sum
// The values of all threads of the block added up, in every thread of the first warp.
__device__ __forceinline__ float block_sum(float value, float* of_warps) {
  unrolled for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(~0u, value, offset);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  value = threadIdx.x % 32 < THREADS / 32 ? of_warps[threadIdx.x % 32] : 0.0f;
  unrolled for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(~0u, value, offset);
  return value;
}
