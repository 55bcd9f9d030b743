// SiLU, y = x * sigmoid(x), for f32, f16 and bf16: the simplest kernel that runs at memory speed.
//
// A pointwise kernel has nothing to reuse, so all that matters is how bytes move. Every thread moves one 16-byte
// vector, neighbouring threads move neighbouring vectors, and many small blocks walk memory in address order, so the
// hardware always has enough loads in flight. Arithmetic is in f32 whatever the element type.

//! op      silu(x) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype in [f32, f16, bf16]
//! tune    THREADS = 128 | 256 | 512
//! let     n = x.numel, width = 16 / x.itemsize
//! launch  silu<x.dtype><<<ceil_div(n, THREADS * width), THREADS>>>(x, y, n)

#include <cuda_bf16.h>
#include <cuda_fp16.h>

// As many elements as one 16-byte load brings.
template <typename T>
struct alignas(16) Vector {
  static constexpr int WIDTH = 16 / sizeof(T);
  T at[WIDTH];
};

template <typename T>
__device__ float silu_of(float v) {
  // The quick exponential and division are a few units off in the last places of an f32, which a 16-bit result does not
  // have. There are twice as many elements per byte then, so their speed matters too.
  if constexpr (sizeof(T) == 2) return __fdividef(v, 1.0f + __expf(-v));
  return v / (1.0f + expf(-v));
}

template <typename T>
__global__ void __launch_bounds__(THREADS) silu(const T* __restrict__ x, T* __restrict__ y, long long n) {
  constexpr int WIDTH = Vector<T>::WIDTH;
  const long long first = (blockIdx.x * static_cast<long long>(THREADS) + threadIdx.x) * WIDTH;

  if (first + WIDTH <= n) {
    Vector<T> v = *reinterpret_cast<const Vector<T>*>(x + first);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) v.at[i] = static_cast<T>(silu_of<T>(static_cast<float>(v.at[i])));
    *reinterpret_cast<Vector<T>*>(y + first) = v;
  } else {
    // The last, incomplete vector of a tensor whose size is not a multiple of WIDTH.
    for (long long i = first; i < n; ++i) y[i] = static_cast<T>(silu_of<T>(static_cast<float>(x[i])));
  }
}
