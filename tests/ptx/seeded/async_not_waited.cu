// An asynchronous copy whose data are read after a barrier, but before the copy was waited for.

//! op      reverse_blocks(x) -> y
//! out     y: f32[x.shape]
//! need    x.dtype == f32 and x.numel % 128 == 0 and device.cc >= 80
//! launch  reverse_blocks<<<x.numel / 128, 128>>>(x, y)

#include <cuda_pipeline.h>

__global__ void reverse_blocks(const float* x, float* y) {
  __shared__ float tile[128];
  const int start = blockIdx.x * 128;
  __pipeline_memcpy_async(&tile[threadIdx.x], &x[start + threadIdx.x], 4);  // OTHER SIDE
  __pipeline_commit();
  // mend: __pipeline_wait_prior(0);
  __syncthreads();
  y[start + threadIdx.x] = tile[127 - threadIdx.x];  // BUG
}
