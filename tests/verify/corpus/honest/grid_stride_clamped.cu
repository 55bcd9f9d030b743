//! op      tanh1(x) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype == f32 and x.ndim == 1
//! let     n = x.numel
//! launch  k<<<min(ceil_div(n, 256), 65535), 256>>>(x, y, n)

// HONEST: the grid is clamped at 65535 blocks, and every thread walks by the size of the grid.
__global__ void k(const float* __restrict__ x, float* __restrict__ y, long long n) {
  for (long long i = blockIdx.x * 256ll + threadIdx.x; i < n; i += gridDim.x * 256ll) y[i] = tanhf(x[i]) * 3.0f - 1.0f;
}
