// Sums gathered by atomics in scratch memory that nobody set to zero: right only where the memory happens to be new.

//! op      total(x) -> y
//! out     y: f32[1]
//! scratch sum: f32[1]  # mend: //! scratch sum: f32[1] zeroed
//! need    x.dtype == f32
//! let     n = x.numel
//! launch  add<<<ceil_div(n, 128), 128>>>(x, sum, n)
//! launch  finish<<<1, 1>>>(sum, y)

__global__ void add(const float* x, float* sum, int n) {
  const int i = blockIdx.x * 128 + threadIdx.x;
  if (i < n) atomicAdd(sum, x[i]);  // BUG
}
__global__ void finish(const float* sum, float* y) { y[0] = sum[0]; }
