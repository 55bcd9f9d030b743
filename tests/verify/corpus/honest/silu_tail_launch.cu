//! op      silu(x) -> y
//! out     y: f32[x.shape]
//! let     n = x.numel, quads = n / 4, left = n % 4
//! launch  quads4<<<ceil_div(quads, 128), 128>>>(x, y, quads)
//! launch  rest<<<1, 32>>>(x, y, 4 * quads, n) when left > 0
__device__ __forceinline__ float silu(float v) { return v / (1.f + __expf(-v)); }
__global__ void quads4(const float4* x, float4* y, long long quads) {
  long long i = blockIdx.x * 128ll + threadIdx.x;
  if (i >= quads) return;
  float4 v = x[i];
  y[i] = make_float4(silu(v.x), silu(v.y), silu(v.z), silu(v.w));
}
__global__ void rest(const float* x, float* y, long long first, long long n) {
  if (first + threadIdx.x < n) y[first + threadIdx.x] = silu(x[first + threadIdx.x]);
}
