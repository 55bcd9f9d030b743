//! op      soft_capped_square(x, cap: float = 6.0) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype == bf16
//! tune    THREADS = 128 | 256 | 512
//! launch  soft_capped_square<<<ceil_div(x.numel, THREADS * 8), THREADS>>>(x, y, x.numel, cap)

#include <cuda_bf16.h>

__device__ __forceinline__ float tanh_fast(float v) {
  float r;
  asm("tanh.approx.f32 %0, %1;" : "=f"(r) : "f"(v));
  return r;
}

__device__ __forceinline__ float capped(float x, float cap, float inverse_cap) {
  const float p = fmaxf(x, 0.0f);
  return cap * tanh_fast(p * p * inverse_cap);
}

// |x| < 2^18: reduced by multiples of pi in two parts, then an odd polynomial with the factor 0.01 folded in.
__device__ __forceinline__ float value(float x, float cap, float inverse_cap) {
  const float magic = 12582912.0f;
  const float t = fmaf(x, 0.318309886f, magic);
  const float k = t - magic;
  float r = fmaf(k, -3.14159274f, x);
  r = fmaf(k, 8.74227766e-8f, r);
  r = __uint_as_float(__float_as_uint(r) ^ (__float_as_uint(t) << 31));   // odd multiples of pi change the sign
  const float q = r * r;
  float h = fmaf(q, -1.8363e-6f, 8.30629e-5f);
  h = fmaf(h, q, -1.6664824e-3f);
  h = fmaf(h, q, 9.999966e-3f);
  return fmaf(h, r, capped(x, cap, inverse_cap));
}

__device__ __forceinline__ unsigned pack(float low, float high) {
  unsigned r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

__global__ void __launch_bounds__(THREADS) soft_capped_square(const __nv_bfloat16* __restrict__ x,
    __nv_bfloat16* __restrict__ y, long long n, float cap) {
  const long long first = (blockIdx.x * (long long)THREADS + threadIdx.x) * 8;
  if (first >= n) return;
  const float inverse_cap = __fdividef(1.0f, cap);
  if (first + 8 <= n) {
    const uint4 v = *reinterpret_cast<const uint4*>(x + first);
    unsigned w[4] = {v.x, v.y, v.z, v.w};
    unsigned big = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) big |= (w[i] & 0x7fff7fffu) + 0x37803780u;   // bit 15 of a half: |x| >= 2^18, infinity or NaN
    if ((big & 0x80008000u) == 0) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        w[i] = pack(value(__uint_as_float(w[i] << 16), cap, inverse_cap),
                    value(__uint_as_float(w[i] & 0xffff0000u), cap, inverse_cap));
      *reinterpret_cast<uint4*>(y + first) = make_uint4(w[0], w[1], w[2], w[3]);
      return;
    }
  }
  const long long end = first + 8 < n ? first + 8 : n;   // the tail, and vectors with huge values
#pragma unroll 1
  for (long long i = first; i < end; ++i) {
    const float f = __bfloat162float(x[i]);
    y[i] = __float2bfloat16(fmaf(0.01f, sinf(f), capped(f, cap, inverse_cap)));
  }
}
