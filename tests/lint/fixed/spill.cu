//! op      mirrored(x) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype == f32 and x.ndim == 2 and x.shape[1] == 1024
//! launch  mirrored<<<x.shape[0], 1024>>>(x, y)
__global__ void __launch_bounds__(1024) mirrored(const float* __restrict__ x, float* __restrict__ y) {
  float sum = 0.0f;
  for (int k = 0; k < 64; ++k) sum = sum * x[blockIdx.x * 1024LL + (threadIdx.x * 7 + k) % 1024];
  y[blockIdx.x * 1024LL + threadIdx.x] = sum;
}
