//! op      swish(x) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype == f32 and x.ndim == 1
//! let     n = x.numel
//! launch  tiles<<<ceil_div(n, 1024), 256>>>(x, y, n) when n >= 1024
//! launch  few<<<1, 1024>>>(x, y, n) when n < 1024

// HONEST: the last tile begins at n - 1024, so that it is whole; up to 1023 elements are stored twice, with the same values.
__device__ __forceinline__ float f(float v) { return v / (1.0f + expf(-1.5f * v)); }
__global__ void tiles(const float* __restrict__ x, float* __restrict__ y, long long n) {
  const long long first = min(blockIdx.x * 1024ll, n - 1024);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const long long i = first + j * 256 + threadIdx.x;
    y[i] = f(x[i]);
  }
}
__global__ void few(const float* __restrict__ x, float* __restrict__ y, long long n) {
  if (threadIdx.x < n) y[threadIdx.x] = f(x[threadIdx.x]);
}
