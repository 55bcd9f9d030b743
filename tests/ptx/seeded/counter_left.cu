// A ticket counter that is not put back to zero for the next call.

//! op      total(x) -> y
//! out     y: f32[1]
//! need    x.dtype == f32 and x.numel % 32 == 0 and x.numel > 0
//! let     blocks = x.numel / 32
//! scratch partial: f32[blocks]
//! scratch done: i32[1] counter
//! launch  total<<<blocks, 32>>>(x, y, partial, done)

__global__ void total(const float* x, float* y, float* partial, int* done) {
  float sum = x[blockIdx.x * 32 + threadIdx.x];
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
  if (threadIdx.x > 0) return;
  partial[blockIdx.x] = sum;
  __threadfence();
  if (atomicAdd(done, 1) + 1 < gridDim.x) return;
  __threadfence();
  // mend: *done = 0;
  sum = 0.0f;
#pragma unroll 1
  for (int i = 0; i < gridDim.x; ++i) sum += partial[i];
  y[0] = sum;
}
