// relu_scale at memory speed: a pointwise kernel has nothing to reuse, so all that matters is how bytes move.
//
// Every thread moves one 16-byte vector, neighbouring threads move neighbours, and many small blocks walk memory in
// address order, so the hardware always has enough loads in flight. Arithmetic is in f32 whatever the element type.

//! op      relu_scale(x) -> y
//! out     y: f16[x.shape]
//! need    x.dtype == f16 and x.ndim == 2
//! tune    THREADS = 128 | 256 | 512
//! const   WIDTH = 8  # elements of a vector: 16 bytes of the widest tensor
//! let     n = x.numel
//! launch  relu_scale_vectors<<<ceil_div(n, THREADS * WIDTH), THREADS>>>(x, y, n)

#include <cuda_fp16.h>

// Elements that move together.
template <typename T>
struct alignas(WIDTH * sizeof(T)) Vector {
  T at[WIDTH];
};

// A NaN stays one: it is not below zero.
template <typename T>
__device__ __forceinline__ T relu_of(T v) {
  return v < T(0) ? T(0) : v;
}

__global__ void __launch_bounds__(THREADS)
    relu_scale_vectors(const __half* __restrict__ x, __half* __restrict__ y, long long n) {
  const auto* x_vectors = reinterpret_cast<const Vector<__half>*>(x);
  const long long place = blockIdx.x * static_cast<long long>(THREADS) + threadIdx.x;
  if ((place + 1) * WIDTH <= n) {
    const Vector<__half> x_here = x_vectors[place];
    Vector<__half> y_made;
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
      y_made.at[i] = static_cast<__half>(relu_of(static_cast<float>(x_here.at[i])) * 3.0f);
    }
    reinterpret_cast<Vector<__half>*>(y)[place] = y_made;
  } else {
    // The last, incomplete vector.
    for (long long i = place * WIDTH; i < n; ++i) {
      y[i] = static_cast<__half>(relu_of(static_cast<float>(x[i])) * 3.0f);
    }
  }
}
