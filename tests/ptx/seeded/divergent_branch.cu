// Neighbouring lanes take different ways: every iteration of the longer one runs with half the lanes idle.

//! op      power(x) -> y
//! out     y: f32[x.shape]
//! need    x.dtype == f32 and x.numel % 64 == 0
//! launch  power<<<x.numel / 64, 64>>>(x, y)

__global__ void power(const float* x, float* y) {
  const int i = blockIdx.x * 64 + threadIdx.x;
  float v = x[i];
  const int steps = threadIdx.x % 2 ? 16 : 0;
#pragma unroll 1
  for (int step = 0; step < steps; ++step)
    v = v * v - 0.5f;  // BUG
  y[i] = v;
}
