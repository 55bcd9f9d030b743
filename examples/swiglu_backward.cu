// The gradients of swiglu.cu, from gate and up: each of the three inputs is read once, and the sigmoid is found again
// rather than saved by the forward, since it costs no memory traffic:
// grad_up = grad_y * silu(gate),  grad_gate = grad_y * up * (s + silu(gate) * (1 - s)) with s = sigmoid(gate).

//! op      swiglu_backward(grad_y, gate, up) -> grad_gate, grad_up
//! out     grad_gate: gate.dtype[gate.shape]
//! out     grad_up: gate.dtype[gate.shape]
//! need    gate.dtype in [f16, bf16] and up.dtype == gate.dtype and grad_y.dtype == gate.dtype
//! need    up.shape == gate.shape and grad_y.shape == gate.shape
//! tune    THREADS = 256 | 128 | 512
//! let     n = gate.numel
//! launch  swiglu_backward<gate.dtype><<<ceil_div(n, 8 * THREADS), THREADS>>>(
//!             grad_y, gate, up, grad_gate, grad_up, n) when n > 0

#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <typename T>
struct alignas(16) Eight {
  T at[8];
};

struct Gradients {
  float gate, up;
};

__device__ Gradients gradients_of(float arriving, float gate, float up) {
  const float sigmoid = 1.0f / (1.0f + __expf(-gate));
  const float gated = gate * sigmoid;
  return {arriving * up * (sigmoid + gated * (1.0f - sigmoid)), arriving * gated};
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    swiglu_backward(const T* __restrict__ grad_y, const T* __restrict__ gate, const T* __restrict__ up,
                    T* __restrict__ grad_gate, T* __restrict__ grad_up, long long n) {
  const long long i = 8 * (blockIdx.x * static_cast<long long>(THREADS) + threadIdx.x);
  if (i + 8 <= n) {
    const Eight<T> d = *reinterpret_cast<const Eight<T>*>(grad_y + i);
    const Eight<T> g = *reinterpret_cast<const Eight<T>*>(gate + i), u = *reinterpret_cast<const Eight<T>*>(up + i);
    Eight<T> of_gate, of_up;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const Gradients both =
          gradients_of(static_cast<float>(d.at[k]), static_cast<float>(g.at[k]), static_cast<float>(u.at[k]));
      of_gate.at[k] = static_cast<T>(both.gate);
      of_up.at[k] = static_cast<T>(both.up);
    }
    *reinterpret_cast<Eight<T>*>(grad_gate + i) = of_gate;
    *reinterpret_cast<Eight<T>*>(grad_up + i) = of_up;
  } else {
    for (long long k = i; k < n; ++k) {
      const Gradients both =
          gradients_of(static_cast<float>(grad_y[k]), static_cast<float>(gate[k]), static_cast<float>(up[k]));
      grad_gate[k] = static_cast<T>(both.gate);
      grad_up[k] = static_cast<T>(both.up);
    }
  }
}
