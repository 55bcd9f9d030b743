// The gate of Llama's feed-forward: silu(gate) * up, with silu rounded to the element type as it would be between two
// operations. Eight elements a thread, one load of 16 bytes for each tensor; the last threads go element by element.
// Its gradients: swiglu_backward.cu.

//! op      swiglu(gate, up) -> y
//! out     y: gate.dtype[gate.shape]
//! need    gate.dtype in [f16, bf16] and up.dtype == gate.dtype and up.shape == gate.shape
//! tune    THREADS = 256 | 128 | 512
//! let     n = gate.numel
//! launch  swiglu<gate.dtype><<<ceil_div(n, 8 * THREADS), THREADS>>>(gate, up, y, n) when n > 0

#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <typename T>
struct alignas(16) Eight {
  T at[8];
};

template <typename T>
__device__ T swiglu_of(T gate, T up) {
  const float g = static_cast<float>(gate);
  const T gated = static_cast<T>(g / (1.0f + __expf(-g)));
  return static_cast<T>(static_cast<float>(gated) * static_cast<float>(up));
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    swiglu(const T* __restrict__ gate, const T* __restrict__ up, T* __restrict__ y, long long n) {
  const long long i = 8 * (blockIdx.x * static_cast<long long>(THREADS) + threadIdx.x);
  if (i + 8 <= n) {
    const Eight<T> g = *reinterpret_cast<const Eight<T>*>(gate + i), u = *reinterpret_cast<const Eight<T>*>(up + i);
    Eight<T> result;
#pragma unroll
    for (int k = 0; k < 8; ++k) result.at[k] = swiglu_of(g.at[k], u.at[k]);
    *reinterpret_cast<Eight<T>*>(y + i) = result;
  } else {
    for (long long k = i; k < n; ++k) y[k] = swiglu_of(gate[k], up[k]);
  }
}
