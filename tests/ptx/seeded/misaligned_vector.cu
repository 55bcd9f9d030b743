// Vectors of four that start at the second element.

//! op      sum_after_first(x) -> y
//! out     y: f32[x.numel / 4]
//! need    x.dtype == f32 and x.numel % 4 == 1
//! let     n = x.numel / 4
//! launch  sum_after_first<<<ceil_div(n, 128), 128>>>(x, y, n)

__global__ void sum_after_first(const float* x, float* y, int n) {
  const int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= n) return;
  const float* from = x + 1 + 4 * i;
  float4 v = *reinterpret_cast<const float4*>(from);  // BUG mend: float4 v = {from[0], from[1], from[2], from[3]};
  y[i] = v.x + v.y + v.z + v.w;
}
