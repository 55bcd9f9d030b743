//! op      gelu(x) -> y
//! out     y: bf16[x.shape]
//! let     n = x.numel
//! launch  run<<<ceil_div(n, 256), 256>>>(x, y, n)
__global__ void run(const __nv_bfloat16* x, __nv_bfloat16* y, long long n) {
  long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i < n) {
    float vx = float(x[i]);
    y[i] = __float2bfloat16(0.5f * vx * (1.f + tanhf(0.7978845608f * (vx + 0.044715f * vx * vx * vx))));
  }
}
