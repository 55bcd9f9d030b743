//! op      silu(x) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype == f32
//! tune    THREADS = 256 | 128 | 512          # first choice = default
//! let     n = x.numel
//! launch  silu<<<ceil_div(n, 4 * THREADS), THREADS>>>(x, y, n)

__device__ __forceinline__ float silu_of(float v) { return v / (1.f + __expf(-v)); }

__global__ void silu(const float* __restrict__ x, float* __restrict__ y, long long n) {
  long long i = 4ll * (blockIdx.x * (long long)THREADS + threadIdx.x);
  if (i + 4 <= n) {
    float4 v = *reinterpret_cast<const float4*>(x + i);
    v.x = silu_of(v.x);
    v.y = silu_of(v.y);
    v.z = silu_of(v.z);
    v.w = silu_of(v.w);
    *reinterpret_cast<float4*>(y + i) = v;
  } else {
    for (; i < n; ++i) y[i] = silu_of(x[i]);
  }
}
