//! op      gelu(x) -> y
//! out     y: bf16[x.shape]
//! let     n = x.numel
//! launch  run<<<ceil_div(n, 256), 256>>>(x, y, n)
__global__ void run(const __nv_bfloat16* x, __nv_bfloat16* y, long long n) {
  long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i < n) {
    float vx = float(x[i]);
    if (vx < -3.3f) { y[i] = __float2bfloat16(0.f); return; }
    y[i] = __float2bfloat16(0.5f * vx * (1.f + erff(vx * 0.70710678f)));
  }
}
