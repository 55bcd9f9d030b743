// Two warps meet at a barrier that expects three.

//! op      reverse(x) -> y
//! out     y: f32[64]
//! need    x.dtype == f32 and x.shape == [64]
//! launch  reverse<<<1, 128>>>(x, y)

__global__ void reverse(const float* x, float* y) {
  __shared__ float row[64];
  if (threadIdx.x >= 64) return;
  row[threadIdx.x] = x[threadIdx.x];
  asm volatile("bar.sync 1, 96;" ::: "memory");  // BUG mend: asm volatile("bar.sync 1, 64;" ::: "memory");
  y[threadIdx.x] = row[63 - threadIdx.x];
}
