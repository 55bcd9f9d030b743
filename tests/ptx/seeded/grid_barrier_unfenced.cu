// A barrier across the grid by an atomic counter, without a fence on either side.

//! op      reverse_blocks(x) -> y
//! out     y: f32[x.shape]
//! need    x.dtype == f32 and x.numel % 32 == 0 and x.numel > 0 and x.numel <= 32 * device.sms
//! scratch middle: f32[x.numel]
//! scratch arrived: i32[1] zeroed
//! launch  reverse_blocks<<<x.numel / 32, 32>>>(x, middle, y, arrived) cooperative

__global__ void reverse_blocks(const float* x, float* middle, float* y, int* arrived) {
  const int i = blockIdx.x * 32 + threadIdx.x, n = gridDim.x * 32;
  middle[i] = x[i];  // BUG
  // mend: __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    atomicAdd(arrived, 1);
    while (atomicAdd(arrived, 0) < gridDim.x) {}
  }
  __syncthreads();
  // mend: __threadfence();
  y[i] = middle[n - 1 - i];  // BUG
}
