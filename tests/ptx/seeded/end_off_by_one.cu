// The last thread steps one element past the end.

//! op      twice(x) -> y
//! out     y: f32[x.shape]
//! need    x.dtype == f32
//! let     n = x.numel
//! launch  twice<<<ceil_div(n + 1, 128), 128>>>(x, y, n)

__global__ void twice(const float* x, float* y, int n) {
  const int i = blockIdx.x * 128 + threadIdx.x;
  if (i <= n)  // mend: if (i < n)
    y[i] = 2.0f * x[i];  // BUG
}
