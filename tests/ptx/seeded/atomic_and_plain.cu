// A total that is set to zero by a plain store while others already add to it.

//! op      total(x) -> y
//! out     y: f32[1]
//! need    x.dtype == f32
//! let     n = x.numel
//! scratch sum: f32[1] zeroed
//! launch  add<<<ceil_div(n, 64), 64>>>(x, sum, n)
//! launch  finish<<<1, 1>>>(sum, y)

__global__ void add(const float* x, float* sum, int n) {
  const int i = blockIdx.x * 64 + threadIdx.x;
  if (i == 0) sum[0] = 0.0f;  // BUG mend:
  if (i < n) atomicAdd(sum, x[i]);  // BUG
}
__global__ void finish(const float* sum, float* y) { y[0] = sum[0]; }
