// relu_scale at memory speed: a pointwise kernel has nothing to reuse, so all that matters is how bytes move.
//
// Every thread loads VECTORS 16-byte vectors before it computes anything, so more bytes are under way. Arithmetic is
// in f32 whatever the element type.

//! op      relu_scale(x) -> y
//! out     y: f16[x.shape]
//! need    x.dtype == f16 and x.ndim == 2
//! tune    THREADS = 128 | 256 | 512
//! tune    VECTORS = 2 | 4  # of a thread, loaded together
//! const   WIDTH = 8        # elements of a vector: 16 bytes of the widest tensor
//! let     n = x.numel
//! launch  relu_scale_vectors<<<ceil_div(n, THREADS * VECTORS * WIDTH), THREADS>>>(x, y, n)

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
  const long long place = blockIdx.x * static_cast<long long>(THREADS * VECTORS) + threadIdx.x;
  Vector<__half> x_here[VECTORS];
#pragma unroll
  for (int k = 0; k < VECTORS; ++k) {
    if ((place + k * THREADS + 1) * WIDTH <= n) x_here[k] = x_vectors[place + k * THREADS];
  }
#pragma unroll
  for (int k = 0; k < VECTORS; ++k) {
    if ((place + k * THREADS + 1) * WIDTH <= n) {
      Vector<__half> y_made;
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) {
        const float product = relu_of(static_cast<float>(x_here[k].at[i])) * 3.0f;
        y_made.at[i] = static_cast<__half>(product);
      }
      reinterpret_cast<Vector<__half>*>(y)[place + k * THREADS] = y_made;
    } else {
      // The last, incomplete vector.
      for (long long i = (place + k * THREADS) * WIDTH; i < n; ++i) {
        y[i] = static_cast<__half>(relu_of(static_cast<float>(x[i])) * 3.0f);
      }
    }
  }
}
