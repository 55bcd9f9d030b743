//! op      swish(x) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype == f32 and x.ndim == 1
//! let     n = x.numel, tiles = ceil_div(n, 1024), two = n >= 16777216, first = tiles / 2 if two else tiles
//! launch  k<<<first, 256>>>(x, y, n, 0)
//! launch  k<<<tiles / 2, 256>>>(x, y, n, tiles / 2) when two

// WRONG at its own call: from 2^24 elements on tiles are done by two launches of tiles / 2 each; of 19,532 tiles (an even number) none is
// lost, but the second begins in the middle and n % 4 elements behind the last whole float4 are left to a tail that only the
// undivided launch has: elements 20,000,000 to 20,000,002 are never written.
__device__ __forceinline__ float f(float v) { return v / (1.0f + expf(-1.5f * v)); }
__global__ void k(const float* __restrict__ x, float* __restrict__ y, long long n, int from) {
  const long long quads = n / 4, i = (from + (long long)blockIdx.x) * 256 + threadIdx.x;
  if (i < quads) {
    float4 v = reinterpret_cast<const float4*>(x)[i];
    v.x = f(v.x), v.y = f(v.y), v.z = f(v.z), v.w = f(v.w);
    reinterpret_cast<float4*>(y)[i] = v;
  }
  const long long rest = quads * 4 + threadIdx.x;
  if (rest < n && blockIdx.x == quads / 256) y[rest] = f(x[rest]);
}
