//! op      sgd(p!, g, rate: float = 0.01, decay: float = 0.1)
//! need    p.dtype == f32 and g.dtype == f32 and p.ndim == 1
//! let     n = p.numel
//! launch  body<<<min(ceil_div(n / 4, 256), device.sms * 8), 256>>>(p, g, rate, decay, n / 4)
//! launch  tail<<<1, 4>>>(p, g, rate, decay, n) when n % 4 != 0

// HONEST: changed in place; whole float4 by a clamped grid, up to three elements by a second launch.
__device__ __forceinline__ float f(float p, float g, float rate, float decay) { return p - rate * (g + decay * p); }
__global__ void body(float4* p, const float4* __restrict__ g, float rate, float decay, long long quads) {
  for (long long i = blockIdx.x * 256ll + threadIdx.x; i < quads; i += gridDim.x * 256ll) {
    float4 a = p[i];
    const float4 b = g[i];
    a.x = f(a.x, b.x, rate, decay), a.y = f(a.y, b.y, rate, decay), a.z = f(a.z, b.z, rate, decay), a.w = f(a.w, b.w, rate, decay);
    p[i] = a;
  }
}
__global__ void tail(float* p, const float* __restrict__ g, float rate, float decay, long long n) {
  const long long i = n / 4 * 4 + threadIdx.x;
  if (i < n) p[i] = f(p[i], g[i], rate, decay);
}
