//! op      swiglu(a, b) -> y
//! out     y: a.dtype[a.shape]
//! need    a.dtype in [f32, f16, bf16] and b.dtype == a.dtype and b.shape == a.shape
//! tune    THREADS = 128 | 256 | 512
//! const   WIDTH = 16 / a.itemsize                       # elements of one 16-byte access
//! launch  swiglu<a.dtype><<<ceil_div(a.numel, THREADS * WIDTH), THREADS>>>(a, b, y, a.numel)

template <typename T> struct alignas(16) Vector { T at[WIDTH]; };   // copying one is one 16-byte load or store

__device__ __forceinline__ float swiglu_of(float a, float b) { return a / (1.0f + expf(-a)) * b; }

template <typename T>
__global__ void __launch_bounds__(THREADS) swiglu(const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ y, long long n) {
  const long long first = (blockIdx.x * (long long)THREADS + threadIdx.x) * WIDTH;
  if (first + WIDTH <= n) {
    const Vector<T> va = *reinterpret_cast<const Vector<T>*>(a + first), vb = *reinterpret_cast<const Vector<T>*>(b + first);
    Vector<T> out;
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) out.at[i] = T(swiglu_of(float(va.at[i]), float(vb.at[i])));
    *reinterpret_cast<Vector<T>*>(y + first) = out;
  } else {
    for (long long i = first; i < n; ++i) y[i] = T(swiglu_of(float(a[i]), float(b[i])));   // the tail, in one thread
  }
}
