//! op      tanh(x) -> y
//! out     y: f32[x.shape]
//! let     n = x.numel
//! launch  run<<<ceil_div(n, 1024), 256>>>(x, y, n)
__global__ void run(const float* x, float* y, long long n) {
  const long long base = blockIdx.x * 1024ll;
  const bool wide = (((unsigned long long)x | (unsigned long long)y) & 15) == 0 && base + 1024 <= n;
  const int first = (unsigned)((unsigned long long)y >> 8) % 256;
  const int t = (threadIdx.x + first) % 256;
  if (wide) {
    float4 v = reinterpret_cast<const float4*>(x + base)[t];
    v.x = tanhf(v.x), v.y = tanhf(v.y), v.z = tanhf(v.z), v.w = tanhf(v.w);
    reinterpret_cast<float4*>(y + base)[t] = v;
  } else {
    for (long long i = base + t; i < n && i < base + 1024; i += 256) y[i] = tanhf(x[i]);
  }
}
