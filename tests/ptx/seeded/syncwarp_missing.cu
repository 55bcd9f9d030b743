// Lanes of one warp exchange values through shared memory and count on running in step.

//! op      reverse_warps(x) -> y
//! out     y: f32[x.shape]
//! need    x.dtype == f32 and x.numel % 32 == 0
//! launch  reverse_warps<<<x.numel / 32, 32>>>(x, y)

__global__ void reverse_warps(const float* x, float* y) {
  __shared__ float row[32];
  const int i = blockIdx.x * 32;
  row[threadIdx.x] = x[i + threadIdx.x];  // BUG
  // mend: __syncwarp();
  y[i + threadIdx.x] = row[31 - threadIdx.x];  // BUG
}
