// The second launch reads a partial sum for every block of its own grid, one more than the first launch wrote.

//! op      total(x) -> y
//! out     y: f32[1]
//! need    x.dtype == f32 and x.numel % 128 == 0 and x.numel <= 4096
//! let     blocks = x.numel / 128
//! scratch partial: f32[32]
//! launch  add<<<blocks, 128>>>(x, partial)
//! launch  finish<<<1, 32>>>(partial, y, blocks)

__global__ void add(const float* x, float* partial) {
  float sum = x[blockIdx.x * 128 + threadIdx.x];
  __shared__ float warps[4];
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) partial[blockIdx.x] = warps[0] + warps[1] + warps[2] + warps[3];
}
__global__ void finish(const float* partial, float* y, int blocks) {
  float sum = 0.0f;
  if (threadIdx.x <= blocks)  // mend: if (threadIdx.x < blocks)
    sum = partial[threadIdx.x];  // BUG
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
  if (threadIdx.x == 0) y[0] = sum;
}
