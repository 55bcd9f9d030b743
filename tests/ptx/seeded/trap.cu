// A trap for what was thought impossible.

//! op      root(x) -> y
//! out     y: f32[x.shape]
//! need    x.dtype == f32
//! let     n = x.numel
//! launch  root<<<ceil_div(n, 128), 128>>>(x, y, n)

__global__ void root(const float* x, float* y, int n) {
  const int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= n) return;
  if (!(x[i] > 0.0f)) __trap();  // BUG mend: if (!(x[i] >= 0.0f)) __trap();
  y[i] = sqrtf(x[i]);
}
