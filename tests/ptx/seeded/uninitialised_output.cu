// An output that is added to as if it had been zero before.

//! op      add_three(x) -> y
//! out     y: f32[x.shape]
//! need    x.dtype == f32
//! let     n = x.numel
//! launch  add_three<<<ceil_div(n, 128), 128>>>(x, y, n)

__global__ void add_three(const float* x, float* y, int n) {
  const int i = blockIdx.x * 128 + threadIdx.x;
  if (i < n) y[i] += x[i] + 3.0f;  // BUG mend: if (i < n) y[i] = x[i] + 3.0f;
}
