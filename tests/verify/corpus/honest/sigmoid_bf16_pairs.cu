//! op      sigmoid(x) -> y
//! out     y: bf16[x.shape]
//! let     n = x.numel
//! launch  run<<<ceil_div(n, 512), 256>>>(x, y, n)
__device__ __forceinline__ float of(float v) { return __fdividef(1.f, 1.f + exp2f(-1.442695041f * fmaxf(v, -80.f))) * (v < -80.f ? __expf(v + 80.f) : 1.f); }
__global__ void run(const __nv_bfloat16* x, __nv_bfloat16* y, long long n) {
  long long i = 2 * (blockIdx.x * 256ll + threadIdx.x);
  if (i + 2 <= n) {
    float2 v = __bfloat1622float2(*(const __nv_bfloat162*)(x + i));
    *(__nv_bfloat162*)(y + i) = __floats2bfloat162_rn(v.x == v.x ? of(v.x) : v.x, v.y == v.y ? of(v.y) : v.y);
  } else if (i < n) y[i] = __float2bfloat16(float(x[i]) == float(x[i]) ? of(float(x[i])) : float(x[i]));
}
