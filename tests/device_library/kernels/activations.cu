// The functions of the epilogue header, one row each.
//! op      activations(x) -> y
//! need    device.cc >= 80 and x.dtype == f32 and x.ndim == 1
//! out     y: f32[7, x.shape[0]]
//! launch  activations<<<ceil_div(x.numel, 64), 64>>>(x, y, x.shape[0])
#include <tilewright/epilogue.cuh>

__global__ void activations(const float* x, float* y, int n) {
  const int i = blockIdx.x * 64 + threadIdx.x;
  if (i >= n) return;
  const float results[7] = {tw::relu(x[i]),      tw::sigmoid(x[i]),   tw::silu(x[i]),           tw::gelu(x[i]),
                            tw::gelu_tanh(x[i]), tw::gelu_fast(x[i]), tw::Identity{}(x[i], 0, i)};
  for (int k = 0; k < 7; ++k) y[k * n + i] = results[k];
}
