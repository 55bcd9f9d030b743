// Dynamic shared memory is used, and the launch asks for none.

//! op      reverse(x) -> y
//! out     y: f32[x.shape]
//! need    x.dtype == f32 and x.numel <= 128
//! let     n = x.numel
//! launch  reverse<<<1, 128>>>(x, y, n)  # mend: //! launch reverse<<<1, 128, 512>>>(x, y, n)

__global__ void reverse(const float* x, float* y, int n) {
  extern __shared__ float row[];
  const int i = threadIdx.x;
  if (i < n) row[i] = x[i];  // BUG
  __syncthreads();
  if (i < n) y[i] = row[n - 1 - i];  // BUG
}
