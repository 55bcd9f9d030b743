// A tail that no thread takes: the last elements of the output stay as they were.

//! op      twice(x) -> y
//! out     y: f32[x.shape]
//! need    x.dtype == f32
//! let     n = x.numel
//! launch  twice<<<n / 128, 128>>>(x, y, n)  # mend: //! launch twice<<<ceil_div(n, 128), 128>>>(x, y, n)

__global__ void twice(const float* x, float* y, int n) {
  const int i = blockIdx.x * 128 + threadIdx.x;
  if (i < n) y[i] = 2.0f * x[i];
}
