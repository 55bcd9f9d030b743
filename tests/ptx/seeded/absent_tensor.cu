// An optional tensor used without asking whether it is there.

//! op      add_bias(x, bias?) -> y
//! out     y: f32[x.shape]
//! need    x.dtype == f32
//! let     n = x.numel
//! launch  add_bias<<<ceil_div(n, 128), 128>>>(x, bias, y, n)

__global__ void add_bias(const float* x, const float* bias, float* y, int n) {
  const int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= n) return;
  y[i] = x[i] + bias[i];  // BUG mend: y[i] = x[i] + (bias ? bias[i] : 0.0f);
}
