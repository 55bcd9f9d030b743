// A stencil that forgets that the first element has no left neighbour.

//! op      smooth(x) -> y
//! out     y: f32[x.shape]
//! need    x.dtype == f32
//! let     n = x.numel
//! launch  smooth<<<ceil_div(n, 128), 128>>>(x, y, n)

__global__ void smooth(const float* x, float* y, int n) {
  const int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= n) return;
  float left = x[i - 1];  // BUG mend: float left = i > 0 ? x[i - 1] : 0.0f;
  y[i] = 0.5f * (left + x[i]);
}
