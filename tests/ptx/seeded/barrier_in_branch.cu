// A barrier that only the threads with work reach. Half a warp stays away.

//! op      reverse(x) -> y
//! out     y: f32[x.shape]
//! need    x.dtype == f32 and x.numel <= 128
//! let     n = x.numel
//! launch  reverse<<<1, 128>>>(x, y, n)

__global__ void reverse(const float* x, float* y, int n) {
  __shared__ float row[128];
  const int i = threadIdx.x;
  if (i < n) {
    row[i] = x[i];
    __syncthreads();  // BUG mend: } __syncthreads(); if (i < n) {
    y[i] = row[n - 1 - i];
  }
}
