// The input is used as the place for an intermediate result.

//! op      twice(x) -> y
//! out     y: f32[x.shape]
//! need    x.dtype == f32
//! let     n = x.numel
//! launch  twice<<<ceil_div(n, 128), 128>>>(x, y, n)

__global__ void twice(const float* x, float* y, int n) {
  const int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= n) return;
  const float value = 2.0f * x[i];
  const_cast<float*>(x)[i] = value;  // BUG mend:
  y[i] = value;
}
